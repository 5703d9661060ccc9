package planner

import (
	"math"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/trace"
)

// Every load that is held out can be generated: with the rate of its clients, in order, and with lengths of the typical shape.
func TestHeldOutLoads(t *testing.T) {
	for text, want := range map[string]int{
		clientsText: 15, secondText: 8, thirdText: 8, fourthText: 16, fifthText: 16, sixthText: 16, seventhText: 16,
	} {
		windows, err := readWindows(text)
		if err != nil || len(windows) != want {
			t.Fatal(len(windows), err)
		}
		testLoads(t, windows)
	}
}

func testLoads(t *testing.T, windows map[string][]clientOf) {
	t.Helper()
	for name, clients := range windows {
		const rate, n = 2.0, 12
		l := loadOf(clients, rate, n, 7)
		next, err := l.source(&bench{less: 1})
		if err != nil {
			t.Fatal(err)
		}
		count, prompts, last := 0.0, 0.0, time.Duration(0)
		for {
			a, ok, err := next()
			if err != nil || !ok {
				break
			}
			if a.At < last || a.At >= n*part {
				t.Fatalf("%s: a request at %v, after one at %v", name, a.At, last)
			}
			last = a.At
			count++
			prompts += float64(a.Prompt.(trace.Segments)[0].Length)
		}
		if mean := count / (n * part).Seconds(); math.Abs(mean/rate-1) > 0.2 {
			t.Errorf("%s: %.2f requests/s, want about %v", name, mean, rate)
		}
		// Long prompts are cut off.
		if mean := prompts / count; mean > 1.25*l.typical.Prompt || mean < 0.5*l.typical.Prompt {
			t.Errorf("%s: %.0f tokens in a prompt, want about %.0f", name, mean, l.typical.Prompt)
		}
	}
}

// The rows of all sets have enough requests, and prompts that fit into the caches of their engines.
func TestHeldOutRows(t *testing.T) {
	rows, err := heldOutIn("all")
	if err != nil || len(rows) != 16+8+8+16+16+16+16 {
		t.Fatal(len(rows), err)
	}
	if _, err := heldOutIn("eighth"); err == nil {
		t.Error("a set that does not exist")
	}
	names := map[string]bool{}
	for _, x := range rows {
		if names[x.name] {
			t.Errorf("%s is in two sets", x.name)
		}
		names[x.name] = true
	}
	b := &bench{traces: t.TempDir(), less: 1, arrivals: map[string][]trace.Arrival{}}
	for _, x := range rows {
		next, err := x.source(b)
		if err != nil {
			continue // its trace is not on this machine
		}
		n := 0
		for {
			a, ok, err := next()
			if err != nil || !ok {
				break
			}
			n++
			if s, ok := a.Prompt.(trace.Segments); ok && s[0].Length+a.Output > x.machine.tokens {
				t.Fatalf("%s: a request of %d tokens, and a cache of %d", x.name, s[0].Length+a.Output, x.machine.tokens)
			}
		}
		if n < 4000 || n > 30000 {
			t.Errorf("%s has %d requests", x.name, n)
		}
	}
}
