package cli

import (
	"bytes"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"
)

// newFlags returns the flags of a command with a group.
func newFlags() (f *Flags, workers *int, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	f = New(out, errs, "play [FILE]", "Plays a file.")
	f.Group("Engines", func() { workers = f.Int("workers", 2, "number of engines") })
	f.Bool("json", false, "print JSON")
	f.Renamed("engines", "workers")
	return f, workers, out, errs
}

// TestReadFlags reads flags, also between other arguments.
func TestReadFlags(t *testing.T) {
	f, workers, _, _ := newFlags()
	if err := f.Read([]string{"--workers", "3"}); err != nil || *workers != 3 {
		t.Errorf("%v, %d workers", err, *workers)
	}
	f, workers, _, _ = newFlags()
	words, err := f.ReadMixed([]string{"a", "--workers", "4", "b"})
	if err != nil || *workers != 4 || !slices.Equal(words, []string{"a", "b"}) {
		t.Errorf("%v, %q, %d workers", err, words, *workers)
	}
}

// TestUsageErrors prints what is wrong with two dashes, and a suggestion.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--worker 3":     "stator play: unknown flag --worker; did you mean --workers?\n",
		"--steam":        "stator play: unknown flag --steam\n",
		"--engines 3":    "stator play: unknown flag --engines; use --workers, which replaces it\n",
		"--workers many": "stator play: invalid value \"many\" for flag --workers: parse error\n",
		"--workers":      "stator play: flag needs an argument: --workers\n",
		"x":              "stator play: unexpected argument \"x\"\n",
	} {
		f, _, out, errs := newFlags()
		err := f.Read(strings.Fields(args))
		if !errors.Is(err, ErrUsage) || out.Len() > 0 || errs.String() != want+"`stator play -h` lists the flags.\n" {
			t.Errorf("%s: %v, %q", args, err, errs.String())
		}
	}
}

// TestHelpInGroups prints help to standard output.
func TestHelpInGroups(t *testing.T) {
	f, _, out, errs := newFlags()
	err := f.Read([]string{"-h"})
	want := `Usage: stator play [FILE] [flags]

Plays a file.

Engines:
  --workers INT                number of engines (default 2)

Other:
  --json                       print JSON
`
	if !errors.Is(err, flag.ErrHelp) || errs.Len() > 0 || out.String() != want {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestProgressOfATime: a bar of a known time is drawn at once, and removed at the end.
func TestProgressOfATime(t *testing.T) {
	var w bytes.Buffer
	(&ProgressBar{w: &w, began: time.Now()}).During(time.Hour)()
	if text := w.String(); !strings.HasPrefix(text, "\r"+strings.Repeat("░", 40)+"   0 %") || !strings.HasSuffix(text, "\r\x1b[K") {
		t.Errorf("%q", text)
	}
	var none *ProgressBar
	none.During(time.Hour)()
}

// TestProgressBar checks that a bar is drawn on terminals alone, at most every 100 ms, and is removed at
// the end.
func TestProgressBar(t *testing.T) {
	var w bytes.Buffer
	if NewProgressBar(&w) != nil {
		t.Error("a buffer is not a terminal")
	}
	var none *ProgressBar
	none.Show(0.5)
	none.Clear()

	b := &ProgressBar{w: &w, began: time.Now().Add(-10 * time.Second)}
	b.Show(0.5)
	b.Show(0.6) // too soon
	if got := w.String(); got != "\r"+strings.Repeat("█", 20)+strings.Repeat("░", 20)+"  50 %  10s left \x1b[K" {
		t.Errorf("%q", got)
	}
	w.Reset()
	b.Clear()
	if w.String() != "\r\x1b[K" {
		t.Errorf("%q", w.String())
	}
}
