package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/test/process"
)

// goodResult is a run that meets all bars.
func goodResult() *result {
	return &result{
		turns: 40, later: 32, cached: 31, asPromised: 40, promptsEqual: 40, promised: 990, real: 1000, byWorker: map[string]int{},
		ranks:  []process.Rank{{Worker: "a", State: "ready", Cache: "exact"}, {Worker: "b", State: "ready", Cache: "exact"}},
		doctor: "nothing is wrong", left: "down", afterwards: conversations,
	}
}

// TestBars: each fault of a run is a bar that is not met.
func TestBars(t *testing.T) {
	for want, spoil := range map[string]func(r *result){
		"": func(*result) {},
		"at least 31 of 32 later turns are cached":              func(r *result) { r.cached = 30 },
		"promised and real cached tokens differ by at most 2 %": func(r *result) { r.promised = 1021 },
		"prompt tokens are as expected":                         func(r *result) { r.promptsEqual = 39 },
		"cache states are exact":                                func(r *result) { r.ranks[1].Cache = "stale" },
		"the doctor finds nothing":                              func(r *result) { r.doctor = "worker a: wrong" },
		"a worker whose mocker has ended gets no requests":      func(r *result) { r.afterwards-- },
	} {
		r := goodResult()
		spoil(r)
		_, missed := r.report(0.02)
		if strings.Join(missed, "; ") != want {
			t.Errorf("missed %q, want %q", missed, want)
		}
	}
}

func TestReplaceFigures(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+figuresBegin+"old\n"+figuresEnd+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceFigures(page, "new\n"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != "before\n"+figuresBegin+"new\n"+figuresEnd+"after\n" {
		t.Errorf("%q, %v", got, err)
	}

	if err := os.WriteFile(page, []byte(figuresEnd+figuresBegin), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceFigures(page, "new\n"); err == nil {
		t.Error("a page without marks in order is no error")
	}
}
