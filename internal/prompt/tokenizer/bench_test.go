package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// benchTexts returns 64 prompts of about 16 KB. They come from the agent sessions in the folder of traces beside the repository if it
// exists, else from the sources of this package.
func benchTexts(b *testing.B) []string {
	var all strings.Builder
	files, _ := filepath.Glob("../../../../shared/traces/agent/*/*.jsonl")
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			b.Fatal(err)
		}
		line, _, _ := strings.Cut(string(src), "\n")
		var row struct{ Input string }
		if json.Unmarshal([]byte(line), &row) == nil {
			all.WriteString(row.Input)
		}
	}
	if all.Len() == 0 {
		sources, _ := filepath.Glob("*.go")
		for _, f := range sources {
			src, _ := os.ReadFile(f)
			all.Write(src)
		}
	}
	var texts []string
	for s := all.String(); len(texts) < 64; s = s[16_000:] {
		if len(s) < 16_000 {
			s += all.String()
		}
		texts = append(texts, strings.ToValidUTF8(s[:16_000], ""))
	}
	return texts
}

// benchModel loads $STATOR_BENCH_MODEL/tokenizer.json, or the simulator's vocabulary if that is not set.
func benchModel(b *testing.B) *Tokenizer {
	dir := os.Getenv("STATOR_BENCH_MODEL")
	if dir == "" {
		return sim(b)
	}
	src, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	tok, err := Load(src)
	if err != nil {
		b.Fatal(err)
	}
	return tok
}

// BenchmarkEncode measures encoding of English with code. With cache=cold the cache is emptied before every
// 64 prompts; with cache=warm it is full.
//
//	go test -run - -bench Encode -cpu 1 -count 6 ./internal/prompt/tokenizer | benchstat -col /cache -
func BenchmarkEncode(b *testing.B) {
	tok, texts := benchModel(b), benchTexts(b)
	size := 0
	for _, s := range texts {
		size += len(s)
	}
	var dst []uint32
	for _, cache := range []string{"cold", "warm"} {
		b.Run("cache="+cache, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if cache == "cold" {
					b.StopTimer()
					tok.Forget()
					tok.Encode(nil, "x")
					b.StartTimer()
				}
				for _, s := range texts {
					dst = tok.Encode(dst[:0], s)
				}
			}
		})
	}
}

// BenchmarkLoad measures the time to load a vocabulary and the memory that it keeps.
//
//	STATOR_BENCH_MODEL=DIR go test -run - -bench Load ./internal/prompt/tokenizer
func BenchmarkLoad(b *testing.B) {
	dir := os.Getenv("STATOR_BENCH_MODEL")
	if dir == "" {
		dir = "../../models/sim"
	}
	src, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(src)))
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	var tok *Tokenizer
	for b.Loop() {
		if tok, err = Load(src); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(heap()-before, "heap-MiB")
	runtime.KeepAlive(tok)
	runtime.KeepAlive(src)
}

// BenchmarkSplit compares an expression that type pattern runs with its handwritten scanner.
//
//	go test -run - -bench Split -count 6 ./internal/prompt/tokenizer | benchstat -col /by -
func BenchmarkSplit(b *testing.B) {
	texts := benchTexts(b)
	size := 0
	for _, s := range texts {
		size += len(s)
	}
	var source string
	for s := range patterns {
		if strings.Contains(s, `(?i:'s|`) && strings.Contains(s, `|\p{N}| `) {
			source = s
		}
	}
	p, err := parsePattern(source)
	if err != nil {
		b.Fatal(err)
	}
	var m search
	for by, split := range map[string]splitter{"hand": qwen, "pattern": func(s string, i int) int {
		_, end := p.findMatch(&m, s, i)
		return end
	}} {
		b.Run("by="+by, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				for _, s := range texts {
					for i := 0; i < len(s); {
						i = split(s, i)
					}
				}
			}
		})
	}
}
