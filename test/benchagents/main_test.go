package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadResult reads a report of AIPerf, and refuses one of a run with an error.
func TestReadResult(t *testing.T) {
	const file = "testdata/profile_export_aiperf.json"
	r, err := readResult(file)
	if err != nil || r[requests] != 10 || r[ttft] < 100 || r[ttft] > r[ttft99] || r[cached] <= 0 {
		t.Errorf("%v, %v", r, err)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	failed := filepath.Join(t.TempDir(), "report.json")
	text = []byte(strings.Replace(string(text), `"error_summary": []`, `"error_summary": [{"count": 1}]`, 1))
	if err := os.WriteFile(failed, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readResult(failed); err == nil {
		t.Error("a run with an error is accepted")
	}
}
