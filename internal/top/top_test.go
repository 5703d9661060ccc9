package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stator-project/stator/admin/history"
	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/status"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata instead of comparing with it")

// noon is the time of all tests, in the zone that the frames are shown in.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.Local)

// hostile is a name with an escape, a control character, a change of direction, wide characters and characters without width.
const hostile = "a\x1b[2J\x07\u202e模型e\u0301\u200b<b>"

// fleet returns a model of n workers and a few decisions, some of them with hostile names.
func fleet(n int) *Model {
	d := Data{
		At: noon, Ready: "ready",
		Queue: []Waiting{{Model: "m", Class: "batch", Requests: 3, Tokens: 900, Cached: 300}, {Model: hostile, Class: "interactive", Requests: 1}},
		Last:  &history.Point{Picked: 12.25, Refused: 0.5, Retried: 0.1, Prompt: 400, Cached: 100, Answer: 900, First50: 0.12, First95: 1.5},
	}
	for i := range n {
		r := Rank{Rank: status.Rank{
			Worker: fmt.Sprintf("worker-%03d", i), Node: "n1", Model: "m", Role: "aggregated", State: "ready", Health: "ready",
			Address: "10.0.0.1:8000", Engine: "vllm", Cache: "exact", Booked: int64(i % 7), Running: new(i % 5), Waiting: new(i % 3),
			KVUsage: new(float64(i%10) / 10), Prefill: 100, Decode: 20,
		}}
		r.Figures = Figures{Rate: new(1.5), Cached: new(0.25), FirstToken: new(0.08), NextToken: new(0.012)}
		switch i {
		case 1:
			r.Worker, r.Model, r.Cache, r.CacheReason = hostile, hostile, "stale", "the bus was away"
			r.Figures, r.Running, r.KVUsage = Figures{}, nil, nil
		case 2:
			r.Rank.Rank, r.Health, r.Why = 3, "down", hostile
		}
		d.Ranks = append(d.Ranks, r)
	}
	for i := range 30 {
		v := decisionlog.Decision{
			ID: fmt.Sprintf("0123456789-%04d", i), At: noon.Add(-time.Duration(i) * time.Second), Outcome: "picked", Model: "m",
			Pick: decisionlog.Pick{Worker: "worker-000"}, Prompt: decisionlog.Prompt{PromptTokens: 100, CachedTokens: i},
			Asked: decisionlog.Asked{Account: "acme"},
		}
		switch i % 10 {
		case 1:
			v.Outcome, v.Worker, v.Reason, v.Account = "refused", "", "queue_full", hostile
		case 2:
			v.Queue = &decisionlog.Queue{WaitedSeconds: 0.25, Class: "batch"}
		}
		d.Decisions = append(d.Decisions, v)
	}
	m := &Model{Title: "127.0.0.1:8081"}
	m.Read(d, nil)
	return m
}

// TestFrames compares the frames after some keys with testdata, on a small and a large screen. No line is longer than the screen, or has
// a character that a terminal obeys.
func TestFrames(t *testing.T) {
	typed := func(text string) (keys []Key) {
		for _, r := range text {
			keys = append(keys, Key(r))
		}
		return keys
	}
	for name, keys := range map[string][]Key{
		"workers": nil, "queue": typed("2"), "tenants": typed("3"), "decisions": typed("4"), "reasons": typed("5"),
		"chosen": {Down, Down, Down, Down}, "last": {End}, "sorted": typed("ssssssr"),
		"filter": append(typed("/m worker-01"), Enter, Down), "typing": append(typed("/abx"), Backspace, Backspace),
		"worker":  {Down, Enter},
		"request": {Enter, Down, Enter, Down},
	} {
		for _, size := range [][2]int{{80, 24}, {200, 50}} {
			width, height := size[0], size[1]
			m := fleet(1000)
			for _, k := range keys {
				m.Press(k, height)
				if id := m.Wanted(); id != "" {
					m.Explain(id, "The text of "+id+"\nwith "+hostile+"\n\tand a long line: "+strings.Repeat("long ", 60)+"\n")
				}
			}
			if name == "typing" {
				m.Read(Data{}, errors.New("connection refused: "+hostile))
			}
			compare(t, fmt.Sprintf("%s-%d.txt", name, width), m, width, height)
		}
	}
}

func compare(t *testing.T, name string, m *Model, width, height int) {
	t.Helper()
	lines := m.Frame(width, height, false)
	if len(lines) != height {
		t.Errorf("%s has %d lines", name, len(lines))
	}
	for _, line := range lines {
		if cli.Width(line) > width || strings.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("%s: this line has %d columns, or controls: %q", name, cli.Width(line), line)
		}
	}
	got := strings.Join(lines, "\n") + "\n"
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant (or run with -rewrite)\n%s", name, got, want)
	}
}

// TestAnySizeAndKey presses many keys on screens of all sizes: no frame is larger than its screen.
func TestAnySizeAndKey(t *testing.T) {
	keys := []Key{Enter, Down, 's', 'r', Tab, PageDown, Enter, '/', 'w', Enter, End, Escape, Up, BackTab, Home, PageUp, '4', Enter, Enter, 'é'}
	m := fleet(40)
	for i := range 2000 {
		m.Press(keys[(i*i+i/7)%len(keys)], i%40)
		width, height := i%97, i%31
		lines := m.Frame(width, height, false)
		if len(lines) > height {
			t.Fatalf("%d lines for %d", len(lines), height)
		}
		for _, line := range lines {
			if cli.Width(line) > max(width, 2) {
				t.Fatalf("%d columns for %d: %q", cli.Width(line), width, line)
			}
		}
	}
}

// TestColour checks that a frame in colour has the text of a plain one.
func TestColour(t *testing.T) {
	m := fleet(5)
	coloured := strings.Join(m.Frame(80, 24, true), "\n")
	without := strings.NewReplacer(red, "", noRed, "", reverse, "", bold, "", noEffects, "").Replace(coloured)
	if plain := strings.Join(m.Frame(80, 24, false), "\n"); without != plain {
		t.Errorf("without its colours it is\n%s\nnot\n%s", without, plain)
	}
	if strings.Count(coloured, red) != 2 || strings.Count(coloured, reverse) != 1 {
		t.Errorf("it is coloured as %q", coloured)
	}
}

// TestChoiceFollowsItsRow reads workers in another order: the same worker is chosen.
func TestChoiceFollowsItsRow(t *testing.T) {
	m := fleet(10)
	m.Press(End, 24)
	d := m.data
	slices.Reverse(d.Ranks)
	m.Read(d, nil)
	if line := m.Frame(80, 24, false)[headLines]; !strings.HasPrefix(line, "> worker-009 ") {
		t.Errorf("the chosen line is %q", line)
	}
}

// TestKeys parses bytes of a terminal, also if the network divides them.
func TestKeys(t *testing.T) {
	for in, want := range map[string][]Key{
		"q/é":                                   {'q', '/', 'é'},
		"\x1b[A\x1bOB\x1b[Z":                    {Up, Down, BackTab},
		"\x1b[5~\x1b[6;2~":                      {PageUp, PageDown},
		"\x1b[1;5A\x1b[H":                       {Up, Home},
		"\r\x7f\t\x03":                          {Enter, Backspace, Tab, Interrupt},
		"\x1b":                                  {Escape},
		"\x1b\x1b[B":                            {Escape, Down},
		"\x1b[200~\xff\x01x":                    {'x'},
		"\x1b[" + strings.Repeat("1", 14) + "q": {'q'},
	} {
		var byByte []Key
		var rest []byte
		for i := range len(in) {
			var keys []Key
			keys, rest = parseKeys(append(rest, in[i]), i == len(in)-1)
			byByte = append(byByte, keys...)
		}
		if keys, _ := parseKeys([]byte(in), true); !slices.Equal(keys, want) || !slices.Equal(byByte, want) {
			t.Errorf("%q is %d, and byte by byte %d, want %d", in, keys, byByte, want)
		}
	}
}

// TestReader reads a router twice: the figures are those between the readings, and decisions are kept.
func TestReader(t *testing.T) {
	pages := map[string]string{
		"/readyz":            "ok\ndegraded: no planner\n",
		"/debug/fleet":       `{"ranks": [{"worker": "a", "node": "n", "why": "w", "cache_state": "exact", "reported_running": 2}]}`,
		"/debug/decisions":   `[{"id": "2", "outcome": "queued"}, {"id": "1", "outcome": "picked", "candidates": [{"worker": "a"}]}]`,
		"/debug/history":     `[{"picked_per_second": 1}, {"picked_per_second": 2, "first_token_p50_seconds": null}]`,
		"/debug/queue":       `[{"model": "m", "class": "c", "requests": 4}]`,
		"/debug/decisions/2": "the text",
		"/metrics":           metricsOf(10, 5, 1000, 250, 80),
	}
	r := readerOf(t, pages)

	first, err := r.Read(t.Context(), noon)
	if err != nil {
		t.Fatal(err)
	}
	f := first.Ranks[0].Figures
	if f.Rate != nil || *f.Cached != 0.25 || *f.FirstToken != 0.5 || f.NextToken != nil {
		t.Errorf("the first figures are %+v", f)
	}
	if first.Ready != "degraded: no planner" || first.Last.Picked != 2 || first.Queue[0].Requests != 4 || len(first.Decisions) != 2 {
		t.Errorf("the first reading is %+v", first)
	}

	pages["/metrics"] = metricsOf(30, 25, 1400, 450, 480)
	pages["/debug/decisions"] = `[{"id": "3", "outcome": "picked"}, {"id": "2", "outcome": "picked"}]`
	second, err := r.Read(t.Context(), noon.Add(seldom))
	if err != nil {
		t.Fatal(err)
	}
	// 20 requests, all of them streams, of 400 tokens: 10 s to the first tokens together, and 10 s more for the 380 next ones.
	f = second.Ranks[0].Figures
	if *f.Rate != 2 || *f.Cached != 0.5 || *f.FirstToken != 0.5 || f.NextToken == nil || *f.NextToken != 10.0/380 {
		t.Errorf("the figures are %v %v %v %v", *f.Rate, *f.Cached, *f.FirstToken, f.NextToken)
	}
	ids := ""
	for _, d := range second.Decisions {
		ids += d.ID + d.Outcome + " "
	}
	if ids != "3picked 2picked 1picked " || second.Decisions[2].Candidates != nil {
		t.Errorf("the decisions are %s", ids)
	}
	if text := (Readers{r}).Explain(t.Context(), "2"); text != "the text" {
		t.Errorf("the decision is %q", text)
	}

	pages["/debug/fleet"] = "{"
	if _, err := r.Read(t.Context(), noon); err == nil || !strings.Contains(err.Error(), "/debug/fleet") {
		t.Errorf("a broken page: %v", err)
	}
	delete(pages, "/debug/fleet")
	if _, err := r.Read(t.Context(), noon); err == nil || !strings.Contains(err.Error(), "no fleet") {
		t.Errorf("a process without a fleet: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Read(ended, noon); err == nil {
		t.Error("a router that does not answer is no error")
	}
}

// readerOf returns a reader of a router with these pages.
func readerOf(t *testing.T, pages map[string]string) *Reader {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	admin, err := adminclient.New(adminclient.Config{Address: address}, status.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	return &Reader{Port: status.Port{Address: address, Admin: admin}}
}

// TestReaders: two routers are shown as one. The figures of a worker are those of the requests of both, and one that is away is named.
func TestReaders(t *testing.T) {
	a := map[string]string{
		"/readyz":            "ok",
		"/debug/fleet":       `{"ranks": [{"worker": "a", "cache_state": "exact", "booked_requests": 3}]}`,
		"/debug/decisions":   `[{"id": "3", "at": "2026-01-02T00:00:03Z"}, {"id": "1", "at": "2026-01-02T00:00:01Z"}]`,
		"/debug/history":     `[{"picked_per_second": 1, "first_token_p50_seconds": 0.5}]`,
		"/debug/queue":       `[{"model": "m", "class": "c", "requests": 4, "tokens": 10}]`,
		"/debug/decisions/3": "three",
		"/metrics":           metricsOf(10, 10, 100, 50, 110),
	}
	b := maps.Clone(a)
	b["/debug/fleet"] = `{"ranks": [{"worker": "b", "cache_state": "exact"}, {"worker": "a", "cache_state": "stale", "booked_requests": 3}]}`
	b["/debug/decisions"] = `[{"id": "2", "at": "2026-01-02T00:00:02Z"}]`
	b["/debug/history"] = `[{"picked_per_second": 2, "first_token_p50_seconds": 0.25}]`
	b["/debug/queue"] = `[{"model": "m", "class": "c", "requests": 1}, {"model": "m", "class": "d", "requests": 2}]`
	delete(b, "/debug/decisions/3")
	all := Readers{readerOf(t, b), readerOf(t, a)}
	if _, err := all.Read(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	a["/metrics"], b["/metrics"] = metricsOf(20, 20, 200, 150, 220), metricsOf(40, 40, 400, 50, 440)

	d, err := all.Read(t.Context(), noon.Add(seldom))
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Ranks) != 2 || d.Ranks[0].Worker != "b" || d.Ranks[1].Booked != 3 || d.Ranks[1].Cache != "stale" || d.Ranks[0].Rate != nil {
		t.Errorf("ranks %+v", d.Ranks)
	}
	// 10 requests of one router and 30 of the other in 10 s, with 100 and 0 cached tokens of 100 and 300.
	if f := d.Ranks[1].Figures; *f.Rate != 4 || *f.Cached != 0.25 || *f.FirstToken != 0.5 {
		t.Errorf("figures %v %v %v", *f.Rate, *f.Cached, *f.FirstToken)
	}
	if len(d.Queue) != 2 || d.Queue[0].Requests != 5 || d.Queue[0].Tokens != 10 || d.Queue[1].Requests != 2 {
		t.Errorf("queue %+v", d.Queue)
	}
	if d.Ready != "ready" || d.Last.Picked != 3 || d.Last.First50 != 0.5 || len(d.Decisions) != 3 || d.Decisions[1].ID != "2" {
		t.Errorf("%+v", d)
	}
	if text := all.Explain(t.Context(), "3"); text != "three" {
		t.Errorf("the decision is %q", text)
	}

	delete(b, "/debug/fleet")
	d, err = all.Read(t.Context(), noon.Add(seldom))
	if err != nil || len(d.Ranks) != 1 || !strings.HasPrefix(d.Ready, all[0].Port.Address+": ") {
		t.Errorf("with one router away: %+v, %v", d, err)
	}
	delete(a, "/debug/fleet")
	if _, err := all.Read(t.Context(), noon); err == nil {
		t.Error("two routers that are away are no error")
	}
}

// metricsOf returns a page of metrics of one worker. Each stream takes half a second to its first token, and each request one.
func metricsOf(requests, streams, prompt, cached, answer int) string {
	return fmt.Sprintf(`# HELP stator_request_duration_seconds x
stator_request_duration_seconds_bucket{model="m",worker="a",le="+Inf"} %[1]d
stator_request_duration_seconds_count{model="m",worker="a"} %[1]d
stator_request_duration_seconds_sum{model="m",worker="a"} %[1]d
stator_request_first_token_seconds_count{model="m",worker="a"} %[2]d
stator_request_first_token_seconds_sum{model="m",worker="a"} %[3]v
stator_request_prompt_tokens_total{model="m",worker="a"} %[4]d
stator_request_cached_tokens_total{model="m",worker="a"} %[5]d
stator_request_answer_tokens_total{model="m",worker="a",source="usage"} %[6]d
other_metric{worker="a"} broken
stator_request_cut{work`, requests, streams, float64(streams)/2, prompt, cached, answer)
}
