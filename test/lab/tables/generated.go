package tables

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stator-project/stator/test/conversations"
	"github.com/stator-project/stator/test/lab/tracefiles"
)

const (
	traceRows         = 6000
	generatedSessions = 20
	stepsOfSession    = 20
	generatedSeed     = 2
)

// traceSet finds the traces of situations, and generates those that are not on this machine.
type traceSet struct {
	folder    string // where to look; empty means the usual folders
	generated string // temporary folder of generated traces
	notes     io.Writer
}

func newTraceSet(folder string, notes io.Writer) (*traceSet, error) {
	dir, err := os.MkdirTemp("", "stator-lab-")
	return &traceSet{folder: folder, generated: dir, notes: notes}, err
}

func (t *traceSet) close() { _ = os.RemoveAll(t.generated) }

// flags returns the flags of `stator replay` for a situation.
func (t *traceSet) flags(s situation) (string, error) {
	if s.Trace == "" {
		return s.Flags, nil
	}
	if path, ok := tracefiles.Find(t.folder, s.Trace); ok {
		return "--trace " + path + " " + s.Flags, nil
	}

	path := filepath.Join(t.generated, filepath.FromSlash(s.Trace))
	if _, err := os.Stat(path); err != nil {
		fmt.Fprintf(t.notes, "The trace %s is not at hand: a generated one is played, and figures differ. %s\n", s.Trace, tracefiles.Hint)
		if err := generate(s.Trace, path); err != nil {
			return "", fmt.Errorf("generate trace: %w", err)
		}
	}
	return "--trace " + path + " " + s.Flags, nil
}

// generate writes a trace in the format of the public one.
func generate(name, path string) error {
	write := writeMooncake
	switch name {
	case tracefiles.Azure.Path:
		write = writeAzure
	case tracefiles.Sessions:
		write = writeSessions
		path = filepath.Join(path, "sessions.jsonl")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()

	w := bufio.NewWriter(f)
	write(w)
	return w.Flush()
}

func writeMooncake(w *bufio.Writer) {
	enc := json.NewEncoder(w)
	for _, row := range conversations.Rows(traceRows, generatedSeed) {
		_ = enc.Encode(row) // Flush returns the error
	}
}

func writeAzure(w *bufio.Writer) {
	fmt.Fprintln(w, "TIMESTAMP,ContextTokens,GeneratedTokens")
	began := time.Date(2023, 11, 16, 18, 0, 0, 0, time.UTC)
	for _, row := range conversations.Rows(traceRows, generatedSeed) {
		at := began.Add(time.Duration(row.Timestamp) * time.Millisecond)
		fmt.Fprintf(w, "%s,%d,%d\n", at.Format("2006-01-02 15:04:05.000"), row.Input/8, row.Output)
	}
}

// writeSessions writes sessions whose prompts grow by some words in every step.
func writeSessions(w *bufio.Writer) {
	rng := rand.New(rand.NewPCG(generatedSeed, 0))
	words := strings.Fields("the file test class module returns error value when import path function should check call line")
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(words[rng.IntN(len(words))] + " ")
		}
		return b.String()
	}

	enc := json.NewEncoder(w)
	for session := range generatedSessions {
		prompt := text(400)
		for step := range stepsOfSession {
			answer := text(40)
			at := float64(session*stepsOfSession+step) * 5e6 // microseconds
			_ = enc.Encode(map[string]any{                   // Flush returns the error
				"timestamp": at, "input": prompt, "output": answer, "session_id": fmt.Sprint(session),
			})
			prompt += answer + text(200)
		}
	}
}
