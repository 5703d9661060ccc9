// Command tokenizer is our side of make oracle-tokenizer: it reads JSON lines and writes JSON
// lines, one out for each in, with one vocabulary.
//
// A line is {"text": "…"} and is answered with the ids; or {"ids": […]} and is answered with
// the text, with and without special tokens, and as a stream gives it. With -bench it reads
// texts and answers once, with the CPU time of encoding them all.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/stator-project/stator/internal/prompt/tokenizer"
	"github.com/stator-project/stator/test/process"
)

type question struct {
	Text string `json:"text"`
}

// exitRefused is the exit status for a vocabulary that is refused.
const exitRefused = 3

func main() {
	model := flag.String("model", "", "tokenizer.json")
	bench := flag.Int("bench", 0, "encode the texts so many times and report the time")
	flag.Parse()

	if err := answerLines(*model, *bench, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, errRefused) {
			os.Exit(exitRefused)
		}
		os.Exit(1)
	}
}

var errRefused = errors.New("refused")

func answerLines(model string, bench int, in io.Reader, out io.Writer) error {
	src, err := os.ReadFile(model)
	if err != nil {
		return err
	}

	load := process.OwnCPU()
	t, err := tokenizer.Load(src)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}

	load = process.OwnCPU() - load
	w := bufio.NewWriterSize(out, 1<<20)
	defer w.Flush()
	lines := json.NewDecoder(bufio.NewReaderSize(in, 1<<20))
	answers := json.NewEncoder(w)
	answers.SetEscapeHTML(false)
	if bench > 0 {
		return benchmark(t, model, load, bench, lines, answers)
	}

	for {
		var q question
		if err := lines.Decode(&q); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := answers.Encode(map[string]any{"ids": t.Encode([]uint32{}, q.Text)}); err != nil {
			return err
		}
	}
}

// benchmark encodes all texts so many times, each time with a tokenizer that has seen none of
// them, and then again with one that has seen all.
func benchmark(t *tokenizer.Tokenizer, model string, load time.Duration, times int, lines *json.Decoder, answers *json.Encoder) error {
	runtime.GOMAXPROCS(1)
	var texts []string
	size := 0
	for {
		var q question
		if err := lines.Decode(&q); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		texts = append(texts, q.Text)
		size += len(q.Text)
	}

	t.Forget()
	debug.FreeOSMemory()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	dst := make([]uint32, 0, 1<<20)
	pass := func() time.Duration {
		before := process.OwnCPU()
		for _, s := range texts {
			dst = t.Encode(dst[:0], s)
		}
		return process.OwnCPU() - before
	}

	cold, warm := time.Duration(1<<62), time.Duration(1<<62)
	for range times {
		t.Forget()
		t.Encode(nil, "x") // makes the encoder, whose time must not count
		cold = min(cold, pass())
		warm = min(warm, pass())
	}
	return answers.Encode(map[string]any{
		"bytes": size, "cold_seconds": cold.Seconds(), "warm_seconds": warm.Seconds(), "load_seconds": load.Seconds(),
		"heap_mib": float64(memory.HeapAlloc-uint64(size)) / (1 << 20),
	})
}
