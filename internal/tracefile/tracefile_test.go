package tracefile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/trace"
)

// unchanged passes a source on.
func unchanged(next trace.Source) trace.Source { return next }

// TestOpenDetectsTheFormat opens a trace of each format and reads it to its end.
func TestOpenDetectsTheFormat(t *testing.T) {
	dir := t.TempDir()
	sessions := filepath.Join(dir, "sessions")
	for _, name := range []string{sessions, filepath.Join(dir, "programs")} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	weka := `{"id":"p","block_size":64,"requests":[{"t":0,"type":"n","in":5,"out":1,"hash_ids":[1]}]}` + "\n"
	session := `{"timestamp": 0, "input": "hello", "output": "hi", "session_id": "1"}` + "\n"
	for name, content := range map[string]string{
		"mooncake.jsonl": `{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}` + "\n",
		"azure.csv":      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n",
		"weka.json":      weka, "programs/a.json": weka,
		"agent.jsonl": session, "sessions/a.jsonl": session,
		"log.jsonl": `{"version":1,"format":"stator-decisions"}
{"decision":{"id":"x","at":"2026-01-02T03:04:05Z","prompt_tokens":9,"blocks":2,"block_size":4},"hash_every":2,"hashes":["00000000000000aa"]}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for _, o := range []Options{
		{Path: "mooncake.jsonl", MooncakeBlock: 512}, {Path: "azure.csv"}, {Path: "agent.jsonl"}, {Path: "sessions"},
		{Path: "weka.json"}, {Path: "programs"}, {Path: "programs", Format: "weka"}, {Path: "log.jsonl"}, {Decisions: "log.jsonl"},
		{Format: "generate", Generated: trace.Generated{Requests: 1}},
	} {
		o.AgentModel = "builtin:sim"
		if o.Path != "" {
			o.Path = filepath.Join(dir, o.Path)
		}
		if o.Decisions != "" {
			o.Decisions = filepath.Join(dir, o.Decisions)
		}
		opened, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		next := opened.Source(unchanged)
		if _, ok, err := next(); !ok || err != nil {
			t.Errorf("%+v: %v, %v", o, ok, err)
		}
		if _, ok, err := next(); ok || err != nil || opened.Done() < 1 {
			t.Errorf("%+v: %v, %v at the end, %v done", o, ok, err, opened.Done())
		}
		opened.Close()
	}
}

// TestOpenErrors checks the errors of contradicting options and of files that cannot be read.
func TestOpenErrors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "name a trace with --trace"},
		{Options{Path: "a", Decisions: "b"}, "--decisions names a decision log"},
		{Options{Path: "absent"}, "open trace: stat absent"},
		{Options{Path: empty}, "it is empty"},
		{Options{Path: t.TempDir(), Format: "azure"}, "only agents' sessions and Weka's programs may be one"},
		{Options{Path: t.TempDir(), AgentModel: "absent"}, "model absent does not exist"},
		{Options{Format: "parquet"}, "--format: trace format"},
		{Options{Format: "generate", Generated: trace.Generated{Rate: -1}}, "rate -1"},
	} {
		if _, err := Open(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
