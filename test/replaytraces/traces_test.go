package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/tracefiles"
)

// TestGeneratedTracesAreReadable generates each trace that is not at hand, and reads it in its format.
func TestGeneratedTracesAreReadable(t *testing.T) {
	var notes strings.Builder
	files, err := newTraceSet(t.TempDir(), &notes)
	if err != nil {
		t.Fatal(err)
	}
	defer files.close()

	read := map[string]func(path string) (trace.Source, error){
		tracefiles.Mooncake.Path: func(path string) (trace.Source, error) {
			f, err := os.Open(path)
			return trace.Mooncake(f, trace.MooncakeBlock), err
		},
		tracefiles.Azure.Path: func(path string) (trace.Source, error) {
			f, err := os.Open(path)
			return trace.Azure(f, true), err
		},
		tracefiles.Sessions: func(path string) (trace.Source, error) {
			next, _, err := trace.Sessions(os.DirFS(path), trace.SessionConfig{Encode: func(dst []uint32, text string) []uint32 { return append(dst, 1) }})
			return next, err
		},
	}
	for _, s := range situations {
		flags, err := files.flags(s)
		if err != nil {
			t.Fatal(err)
		}
		if s.trace == "" {
			continue
		}
		path := strings.Fields(flags)[1]
		if !strings.HasPrefix(path, filepath.Clean(files.generated)) {
			t.Errorf("%s is played from %s", s.name, path)
		}
		next, err := read[s.trace](path)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			_, ok, err := next()
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			if !ok {
				if n < 100 {
					t.Errorf("%s has %d arrivals", s.name, n)
				}
				break
			}
		}
	}
	if n := strings.Count(notes.String(), "make traces"); n != 3 {
		t.Errorf("%d notes:\n%s", n, notes.String())
	}
}

// TestUnknownSituation plays nothing.
func TestUnknownSituation(t *testing.T) {
	if err := run(io.Discard, "absent", "", "no such situation", 1); err != nil {
		t.Error(err)
	}
}
