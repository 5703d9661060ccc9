package tables

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/trace"
	"github.com/stator-project/stator/test/lab/tracefiles"
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
	table, err := load("traces.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range table.Situations {
		flags, err := files.flags(s)
		if err != nil {
			t.Fatal(err)
		}
		if s.Trace == "" {
			continue
		}
		path := strings.Fields(flags)[1]
		if !strings.HasPrefix(path, filepath.Clean(files.generated)) {
			t.Errorf("%s is played from %s", s.Name, path)
		}
		next, err := read[s.Trace](path)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			_, ok, err := next()
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			if !ok {
				if n < 100 {
					t.Errorf("%s has %d arrivals", s.Name, n)
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
	var out strings.Builder
	if err := Traces(t.Context(), []string{"--only", "no such situation"}, &out, io.Discard); err != nil || out.String() != "" {
		t.Errorf("%v, printed %q", err, out.String())
	}
}

// TestTablesAreReadable reads the description of each comparison. Flags of its situations are those of a replay.
func TestTablesAreReadable(t *testing.T) {
	for name, situations := range map[string]int{"golden.yaml": 17, "noise.yaml": 4, "headline.yaml": 1, "traces.yaml": 8} {
		s, err := load(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Situations) != situations || len(s.Contenders) == 0 {
			t.Errorf("%s has %d situations and %d contenders", name, len(s.Situations), len(s.Contenders))
		}
		for _, x := range s.Situations {
			if len(x.Want) > 0 && (len(x.Want) != len(s.Columns) || x.Bound <= 0) {
				t.Errorf("%s: %s has %d figures and the bound %v", name, x.Name, len(x.Want), x.Bound)
			}
		}
	}
}
