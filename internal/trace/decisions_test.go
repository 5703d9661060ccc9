package trace

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
)

// logged is a decision log that a test writes.
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

// decision logs a prompt of so many tokens, in blocks of 4, with a hash every 2 blocks.
func (l *logged) decision(id string, at time.Time, tokens int, chain []blockhash.Sequence, change func(*decision.Decision)) {
	d := &decision.Decision{
		ID: id, At: at, Model: "m", Client: decision.Client{Session: "s-" + id},
		PromptUse: decision.PromptUse{PromptTokens: tokens, Blocks: tokens / 4, BlockSize: 4},
	}
	if change != nil {
		change(d)
	}
	l.add(decisionlog.Of(d, chain[:tokens/4], 2))
}

// TestDecisionsAsTrace reads a log as the requests that were made: in order of arrival, equal up to the
// last common hash, and with answers whose length follows from their bytes.
func TestDecisionsAsTrace(t *testing.T) {
	chain := []blockhash.Sequence{1, 2, 3, 4, 5}
	other := []blockhash.Sequence{1, 2, 3, 44, 55}
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &logged{t: t}
	l.add(decisionlog.Header())
	l.decision("first", begin, 22, chain, func(d *decision.Decision) { d.Stream = true })
	l.decision("waited", begin.Add(9*time.Second), 16, other, func(d *decision.Decision) {
		d.Wait, d.MaxTokens = &decision.Wait{Since: begin.Add(time.Second), Took: 8 * time.Second}, 77
	})
	l.add(decisionlog.Line{End: &decisionlog.End{ID: "first", ResponseBytes: 40 * 231}})
	l.decision("third", begin.Add(2*time.Second), 20, chain, nil)
	l.add(decisionlog.Line{End: &decisionlog.End{ID: "unknown", ResponseBytes: 1 << 60}})
	l.decision("unreadable", begin, 0, nil, nil)
	l.decision("too long", begin, 20, chain, func(d *decision.Decision) {
		d.Outcome, d.Err = decision.Refused, &prompt.Error{Status: 400}
	})
	l.decision("too busy", begin.Add(3*time.Second), 8, chain, func(d *decision.Decision) {
		d.Outcome, d.Err = decision.Refused, &prompt.Error{Status: 503}
	})
	l.b = append(l.b, `{"decision":{"id":"torn`...)

	next, n, _, err := Decisions(bytes.NewReader(l.b))
	if err != nil {
		t.Fatal(err)
	}
	var got []Arrival
	var prompts [][]uint32
	for a, ok, _ := next(); ok; a, ok, _ = next() {
		got, prompts = append(got, a), append(prompts, a.Prompt.Append(nil))
	}
	if len(got) != 4 || n != 4 {
		t.Fatalf("%d arrivals, %d announced", len(got), n)
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
		t.Errorf("%d tokens of equal prompts are equal, want 20: the tokens after the last block differ", n)
	}
	if n := common(prompts[0], prompts[1]); n != 8 {
		t.Errorf("%d tokens are equal of prompts that differ from the fourth block on, want 8: they share the hash of two blocks", n)
	}
}

// TestDecisionsShowTheFleet: the fleet has the ranks that were candidates, by their roles. The decision about a prefill worker is no
// request of its own.
func TestDecisionsShowTheFleet(t *testing.T) {
	l := &logged{t: t}
	l.add(decisionlog.Header())
	candidates := func(role fleet.Role, considered int, addresses ...string) func(*decision.Decision) {
		return func(d *decision.Decision) {
			d.Role, d.Considered = role, considered
			for i, at := range addresses {
				d.Candidates = append(d.Candidates, decision.Candidate{Address: at, Capacity: 100 * (i + 1)})
			}
		}
	}
	chain := []blockhash.Sequence{1}
	l.decision("a", time.Unix(0, 0), 4, chain, candidates(fleet.Decode, 2, "d1", "d2"))
	l.decision("a-prefill0", time.Unix(0, 0), 4, chain, candidates(fleet.Prefill, 1, "p1"))
	l.decision("b", time.Unix(1, 0), 4, chain, candidates(fleet.Decode, 2, "d2", "d3"))
	l.decision("b-prefill0", time.Unix(1, 0), 4, chain, candidates(fleet.Prefill, 5, "p2"))

	_, n, got, err := Decisions(bytes.NewReader(l.b))
	if want := (Fleet{Workers: 3, Prefill: 5, Blocks: 200, BlockSize: 4}); err != nil || n != 2 || got != want {
		t.Errorf("%d arrivals on %+v, want 2 on %+v: %v", n, got, want, err)
	}
}

// TestDecisionsOfShadow: an answer has the tokens of its usage, or as many as its bytes. If the shadow has seen neither, the client's bound
// counts.
func TestDecisionsOfShadow(t *testing.T) {
	l := &logged{t: t}
	l.add(decisionlog.Header())
	ends := []decisionlog.End{{OutputTokens: 33, ResponseBytes: 1}, {OutputTokens: 33}, {ResponseBytes: 950}, {}}
	for i, end := range ends {
		id := string(rune('a' + i))
		l.decision(id, time.Unix(int64(i), 0), 4, []blockhash.Sequence{1}, func(d *decision.Decision) { d.MaxTokens = 500 })
		end.ID = id
		end.Outcome = "unconfirmed"
		l.add(decisionlog.Line{End: &end})
	}

	lines := 0
	list, err := ReadDecisions(bytes.NewReader(l.b), func(*decisionlog.Line) error { lines++; return nil })
	if err != nil || len(list) != len(ends) || lines != 2*len(ends) {
		t.Fatalf("%d requests of %d lines, %v", len(list), lines, err)
	}
	for i, want := range []int{33, 33, 100, 500} {
		if got := list[i]; got.Output != want || got.Model != "m" || got.ID != string(rune('a'+i)) {
			t.Errorf("%+v, want %d tokens", got, want)
		}
	}
	_, err = ReadDecisions(bytes.NewReader(l.b), func(*decisionlog.Line) error { return errTooLarge })
	if err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("an error of the caller: %v", err)
	}
}

// TestDecisionErrors reads logs with contradictions.
func TestDecisionErrors(t *testing.T) {
	const version = `{"version":1,"format":"stator-decisions"}` + "\n"
	good := `{"decision":{"id":"x","at":"2026-01-02T03:04:05Z","prompt_tokens":9,"blocks":2,"block_size":4},"hash_every":2,"hashes":["00000000000000aa"]}` + "\n"
	for _, c := range []struct{ log, want string }{
		{"", "it has no decision"},
		{`{"end":{"id":"x"}}`, "it has no decision"},
		{good + "{}\n", "line 3: it has neither"},
		{strings.Replace(good, `"blocks":2`, `"blocks":3`, 1), "line 2: 9 prompt tokens in 3 blocks of 4"},
		{strings.Replace(good, `"block_size":4`, `"block_size":0`, 1), "do not agree"},
		{strings.Replace(good, `"prompt_tokens":9`, `"prompt_tokens":99999999999`, 1), "do not agree"},
		{strings.Replace(good, `"hash_every":2`, `"hash_every":1`, 1), "do not name 2 blocks"},
		{strings.Replace(good, `"hash_every":2`, `"hash_every":0`, 1), "do not name 2 blocks"},
		{strings.Replace(good, `00aa`, `00a`, 1) + good, "line 2: hash \"00000000000000a\""},
		{"nonsense\n" + good[1:], "2 lines that are not JSON"},
		{good + strings.Replace(good, "2026", "2226", 1), "100 years"},
	} {
		_, _, _, err := Decisions(strings.NewReader(version + c.log))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.log, err, c.want)
		}
	}
	if _, _, _, err := Decisions(strings.NewReader(strings.Replace(version, "1", "2", 1) + good)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a log of another version: %v", err)
	}
}

// FuzzDecisions checks that any log is refused, or read as arrivals within their bounds.
func FuzzDecisions(f *testing.F) {
	const version = `{"version":1,"format":"stator-decisions"}` + "\n"
	f.Add([]byte(version + `{"decision":{"id":"x","at":"2026-01-02T03:04:05Z","prompt_tokens":9,"blocks":2,"block_size":4},"hash_every":2,"hashes":["00000000000000aa"]}`))
	f.Add([]byte(version + `{"end":{"id":"x","response_bytes":5}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		next, n, seen, err := Decisions(bytes.NewReader(data))
		if err != nil {
			return
		}
		if most := max(seen.Workers, seen.Prefill); most > maxFleet {
			t.Errorf("%d workers", most)
		}
		var at []time.Duration
		for a, ok, _ := next(); ok; a, ok, _ = next() {
			if a.At < 0 || a.Output < 1 || a.Output > maxRowTokens {
				t.Fatalf("%q: %+v", data, a)
			}
			at = append(at, a.At)
		}
		if len(at) != n || !slices.IsSorted(at) {
			t.Fatalf("%d arrivals of %d, at %v", len(at), n, at)
		}
	})
}
