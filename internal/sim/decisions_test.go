package sim

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
)

// logged is a log of decisions and ends.
type logged struct {
	t *testing.T
	b []byte
}

func (l *logged) add(line decisionlog.Line) {
	l.t.Helper()
	var err error
	if l.b, err = line.Append(l.b); err != nil {
		l.t.Fatal(err)
	}
}

// decision logs a prompt of so many tokens, in blocks of 4, with a hash every 2.
func (l *logged) decision(id string, at time.Time, tokens int, chain []blockhash.Sequence, change func(*route.Decision)) {
	d := &route.Decision{ID: id, At: at, Model: "m", PromptTokens: tokens, Blocks: tokens / 4, BlockSize: 4, Session: "s-" + id}
	if change != nil {
		change(d)
	}
	l.add(decisionlog.Line{Decision: d, HashEvery: 2, Hashes: decisionlog.Sample(nil, chain[:tokens/4], 2)})
}

// What was decided comes again as what was asked: in order of arrival, alike up to the hash at which
// prompts part, and with answers as long as their bytes say.
func TestDecisions(t *testing.T) {
	chain := []blockhash.Sequence{1, 2, 3, 4, 5}
	other := []blockhash.Sequence{1, 2, 3, 44, 55}
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &logged{t: t}
	l.decision("first", begin, 22, chain, func(d *route.Decision) { d.Stream = true })
	l.decision("waited", begin.Add(9*time.Second), 16, other, func(d *route.Decision) {
		d.Wait, d.MaxTokens = &route.Wait{Since: begin.Add(time.Second), Took: 8 * time.Second}, 77
	})
	l.add(decisionlog.Line{End: &decisionlog.End{ID: "first", ResponseBytes: 40 * 231}})
	l.decision("third", begin.Add(2*time.Second), 20, chain, nil)
	l.add(decisionlog.Line{End: &decisionlog.End{ID: "unknown", ResponseBytes: 1 << 60}})
	l.decision("unreadable", begin, 0, nil, nil)
	l.decision("too long", begin, 20, chain, func(d *route.Decision) {
		d.Outcome, d.Err = route.Refused, &prompt.Error{Status: 400}
	})
	l.decision("too busy", begin.Add(3*time.Second), 8, chain, func(d *route.Decision) {
		d.Outcome, d.Err = route.Refused, &prompt.Error{Status: 503}
	})
	l.b = append(l.b, `{"decision":{"ID":"torn`...)

	next, n, err := Decisions(bytes.NewReader(l.b))
	if err != nil {
		t.Fatal(err)
	}
	var got []Arrival
	var prompts [][]uint32
	for a, ok, _ := next(); ok; a, ok, _ = next() {
		got, prompts = append(got, a), append(prompts, a.Prompt.Append(nil))
	}
	if len(got) != 4 || n != 4 {
		t.Fatalf("%d arrivals, %d promised", len(got), n)
	}
	for i, want := range []struct {
		at             time.Duration
		tokens, output int
		session        string
	}{{0, 22, 40, "s-first"}, {time.Second, 16, 77, "s-waited"}, {2 * time.Second, 20, 200, "s-third"}, {3 * time.Second, 8, 200, "s-too busy"}} {
		a := got[i]
		if a.At != want.at || len(prompts[i]) != want.tokens || a.Output != want.output || a.Session != want.session {
			t.Errorf("arrival %d: at %v, %d tokens, %d of output, session %q; want %+v", i, a.At, len(prompts[i]), a.Output, a.Session, want)
		}
	}
	common := func(a, b []uint32) int {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				return i
			}
		}
		return min(len(a), len(b))
	}
	if n := common(prompts[0], prompts[2]); n != 20 {
		t.Errorf("%d tokens of equal prompts are equal, want 20: only what is no block is their own", n)
	}
	if n := common(prompts[0], prompts[1]); n != 8 {
		t.Errorf("%d tokens are equal of prompts that part in the fourth block, want 8: they share a hash of two", n)
	}
}

// A log that makes no sense is refused with its line.
func TestDecisionsAreChecked(t *testing.T) {
	good := `{"decision":{"ID":"x","At":"2026-01-02T03:04:05Z","PromptTokens":9,"Blocks":2,"BlockSize":4},"hashEvery":2,"hashes":["00000000000000aa"]}` + "\n"
	for _, c := range []struct{ log, want string }{
		{"", "there is none"},
		{`{"end":{"id":"x"}}`, "there is none"},
		{good + "{}\n", "line 2: it has neither"},
		{strings.Replace(good, `"Blocks":2`, `"Blocks":3`, 1), "line 1: 9 prompt tokens in 3 blocks of 4"},
		{strings.Replace(good, `"BlockSize":4`, `"BlockSize":0`, 1), "do not agree"},
		{strings.Replace(good, `"PromptTokens":9`, `"PromptTokens":99999999999`, 1), "do not agree"},
		{strings.Replace(good, `"hashEvery":2`, `"hashEvery":1`, 1), "do not name 2 blocks"},
		{strings.Replace(good, `"hashEvery":2`, `"hashEvery":0`, 1), "do not name 2 blocks"},
		{strings.Replace(good, `00aa`, `00a`, 1) + good, "line 1: hash \"00000000000000a\""},
		{"nonsense\n" + good, "line 1: "},
		{good + strings.Replace(good, "2026", "2226", 1), "100 years"},
	} {
		_, _, err := Decisions(strings.NewReader(c.log))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.log, err, c.want)
		}
	}
}

// FuzzDecisions: whatever a log holds is refused or played, in bounds.
func FuzzDecisions(f *testing.F) {
	f.Add([]byte(`{"decision":{"ID":"x","At":"2026-01-02T03:04:05Z","PromptTokens":9,"Blocks":2,"BlockSize":4},"hashEvery":2,"hashes":["00000000000000aa"]}`))
	f.Add([]byte(`{"end":{"id":"x","responseBytes":5}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		next, n, err := Decisions(bytes.NewReader(data))
		if err != nil {
			return
		}
		var at []time.Duration
		for a, ok, _ := next(); ok; a, ok, _ = next() {
			if a.At < 0 || a.Output < 1 || a.Output > maxTraceTokens {
				t.Fatalf("%q: %+v", data, a)
			}
			at = append(at, a.At)
		}
		if len(at) != n || !slices.IsSorted(at) {
			t.Fatalf("%d arrivals of %d, at %v", len(at), n, at)
		}
	})
}
