package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// talk is one conversation that grows turn by turn.
type talk struct {
	messages []message
	workers  map[string]int // turns served, by worker
	cached   int            // prompt tokens that engines said they had cached
}

// newTalk begins a conversation with so many sentences of instructions.
func newTalk(topic string, sentences int) *talk {
	return &talk{workers: map[string]int{}, messages: []message{{"system",
		"You are the archivist of " + topic + ". " + strings.Repeat("You answer from the records of "+topic+" alone, and you say so when they are silent. ", sentences)}}}
}

func (c *talk) turn(g *gateway, i int) error {
	c.messages = append(c.messages, message{"user", fmt.Sprintf("Question %d: what do the records say of year %d?", i, 1900+i)})
	r, err := g.tryChat(context.Background(), c.messages, 12)
	if err != nil {
		return err
	}
	c.workers[g.decision(r.decision).Worker]++
	c.cached += r.usage.Details.CachedTokens
	c.messages = append(c.messages, message{"assistant", r.text})
	return nil
}

// TestConversationStaysWhileOthersSpread: a conversation of ten turns with many thousand tokens of instructions stays on its worker,
// while forty short ones spread over the fleet. A short one would not stay: its cache saves less than the wait
// for a few prompts, and on a loaded machine those take long.
func TestConversationStaysWhileOthersSpread(t *testing.T) {
	t.Parallel()
	g := up(t, "--workers", "4")
	stays := newTalk("the lighthouse of Ushant", 400)
	var others sync.WaitGroup
	spread := make([]*talk, 40)
	errs := make(chan error, 40)
	limit := make(chan struct{}, 8)
	for i := range spread {
		spread[i] = newTalk(fmt.Sprintf("parish number %d", i), 6)
		others.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			for turn := range 2 {
				if err := spread[i].turn(g, turn); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for turn := range 10 {
		if err := stays.turn(g, turn); err != nil {
			t.Fatal(err)
		}
	}
	others.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if len(stays.workers) != 1 {
		t.Errorf("the conversation's ten turns were served by %v, want one worker", stays.workers)
	}
	if stays.cached == 0 {
		t.Error("the engine had nothing of the conversation cached")
	}
	total := map[string]int{}
	for _, c := range spread {
		for w, n := range c.workers {
			total[w] += n
		}
	}
	for w, n := range total {
		if n > 48 { // of 80; 20 would be even
			t.Errorf("worker %s served %d of the 80 other turns: %v", w, n, total)
		}
	}
	if len(total) != 4 {
		t.Errorf("only %d workers served the others: %v", len(total), total)
	}
	g.assertServed(90)
}

// chunks reads server-sent events until the stream ends or see returns false.
func chunks(resp *http.Response, see func(data string) bool) error {
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && !see(data) {
			return nil
		}
	}
	return lines.Err()
}

func (g *gateway) stream(ctx context.Context, maxTokens int) (*http.Response, error) {
	return g.streamAbout(ctx, "a harbour", maxTokens)
}

func (g *gateway) streamAbout(ctx context.Context, subject string, maxTokens int) (*http.Response, error) {
	body := fmt.Sprintf(`{"model":"sim","stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,
		"messages":[{"role":"user","content":"Tell me a long story about %s."}]}`, maxTokens, subject)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("content-type", "application/json")
	return g.do(req)
}

// TestStreamsEndAndCancel: a stream arrives token by token and ends like OpenAI's. A stream that its client leaves ends in the
// engine too, and its booking ends.
func TestStreamsEndAndCancel(t *testing.T) {
	t.Parallel()
	g := up(t)
	resp, err := g.stream(t.Context(), 20)
	if err != nil {
		t.Fatal(err)
	}
	var deltas int
	var usage bool
	var last string
	err = chunks(resp, func(data string) bool {
		last = data
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				Completion int `json:"completion_tokens"`
			}
		}
		if json.Unmarshal([]byte(data), &c) == nil {
			if len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
				deltas++
			}
			usage = usage || c.Usage != nil && c.Usage.Completion == 20
		}
		return true
	})
	_ = resp.Body.Close()
	if err != nil || last != "[DONE]" || !usage || deltas < 10 {
		t.Errorf("the stream had %d deltas, usage %v, ended with %q, %v", deltas, usage, last, err)
	}
	if resp.Header.Get("x-stator-decision") == "" {
		t.Error("the response names no decision")
	}
	g.assertServed(1)

	ctx, cancel := context.WithCancel(t.Context())
	resp, err = g.stream(ctx, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	if err := chunks(resp, func(string) bool { seen++; return seen < 5 }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the engine reports the request as running", func() error {
		for _, r := range g.fleet() {
			if r.Running > 0 {
				return nil
			}
		}
		return errNotYet
	})
	cancel()
	_ = resp.Body.Close()
	eventually(t, "the engine runs nothing", func() error {
		for _, r := range g.fleet() {
			if r.Running+r.Waiting > 0 {
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	})
	g.assertServed(2)
}

// TestLargeBodyPassesUntouched: a body of 16 MiB passes untouched, and its tokens are counted.
func TestLargeBodyPassesUntouched(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {decisionTimeout: 30s} # a busy machine takes seconds to read the body
models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, count: 2}]}]
`))
	filler := strings.Repeat("0123456789abcdef", 1<<20) // an unknown field: it must pass
	body := fmt.Sprintf(`{"model":"sim","max_tokens":4,"prompt":"The quick brown fox","x_filler":%q}`, filler)
	r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", []byte(body))
	if err != nil || r.status != http.StatusOK {
		t.Fatalf("status %d, %v: %.300s", r.status, err, r.body)
	}
	if r.usage.PromptTokens == 0 || r.usage.PromptTokens != g.decision(r.decision).PromptTokens {
		t.Errorf("the engine counted %d prompt tokens, the router %d", r.usage.PromptTokens, g.decision(r.decision).PromptTokens)
	}
	g.assertServed(1)
}

// TestRouterAndEngineCountTheSameTokens: for chats, and for completions of text, of ids and of several prompts.
func TestRouterAndEngineCountTheSameTokens(t *testing.T) {
	t.Parallel()
	g := up(t)
	for path, bodies := range map[string][]string{
		"/v1/chat/completions": {
			`{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"Hé! 你好 🙂"}]}`,
			`{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":[{"type":"text","text":"parts"},{"type":"text","text":" of text"}]}]}`,
			`{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":"call"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"number"}}}}}]}`,
		},
		"/v1/completions": {
			`{"model":"sim","max_tokens":2,"prompt":"text with <|im_start|> in it"}`,
			`{"model":"sim","max_tokens":2,"prompt":[5,6,7,8,9]}`,
			`{"model":"sim","max_tokens":2,"prompt":["one","two and three"]}`,
			`{"model":"sim","max_tokens":2,"prompt":[[1,2,3],[4,5]]}`,
		},
	} {
		for _, body := range bodies {
			r, err := g.send(t.Context(), http.MethodPost, path, []byte(body))
			if err != nil || r.status != http.StatusOK {
				t.Errorf("%s: status %d, %v: %s", body, r.status, err, r.body)
				continue
			}
			if d := g.decision(r.decision); d.PromptTokens != r.usage.PromptTokens {
				t.Errorf("%s: the engine counted %d prompt tokens, the router %d", body, r.usage.PromptTokens, d.PromptTokens)
			}
		}
	}
	g.assertServed(7)
}

// TestNoBookingLeaks: ten thousand requests that are cancelled, reset or timed out leave no booking behind.
func TestNoBookingLeaks(t *testing.T) {
	t.Parallel()
	const total = 10_000
	g := up(t, "--workers", "2", "--log-level", "warn")
	hurried := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	body := `{"model":"sim","max_tokens":200,"stream":%v,"messages":[{"role":"user","content":"Leave me, number %d."}]}`
	g.untilPicked(total/10, 80*time.Millisecond, func(longest time.Duration) { leaveEarly(g, hurried, body, total, longest) })
	hurried.CloseIdleConnections()
	g.assertNothingBooked()
	if n := g.served("misdirected"); n != 0 {
		t.Errorf("%d requests were misdirected", n)
	}
	if n := g.metric("stator_route_bookings_ended_total", `reason="reconciled"`) + g.metric("stator_accesslog_abandoned_bookings_total"); n > total/1000 { // few: a busy machine delays entries
		t.Errorf("%g bookings ended by the safety nets, not by their access-log entries", n)
	}
}

// untilPicked plays rounds of requests whose clients leave, until routers have picked workers for so many of them. The first round has the
// shortest times until clients leave. On a busy machine a decision takes longer, so each further round has longer times.
func (g *gateway) untilPicked(least int, longest time.Duration, round func(longest time.Duration)) {
	g.t.Helper()
	picked := func() int { return int(g.metric("stator_extproc_requests_total", `outcome="picked"`)) }
	before := picked()
	for ; picked()-before < least && longest < patience; longest *= 4 {
		round(longest)
	}
	if n := picked() - before; n < least {
		g.t.Errorf("only %d requests were picked before they were cancelled, want %d: the test shows little", n, least)
	}
}

// leaveEarly sends so many requests whose clients leave, the last ones after the longest time.
func leaveEarly(g *gateway, hurried *http.Client, body string, total int, longest time.Duration) {
	next := make(chan int)
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for i := range next {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i%80)*longest/80)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(body, i%2 == 0, i)))
				if err == nil {
					req.Header.Set("content-type", "application/json")
					if resp, err := hurried.Do(req); err == nil {
						if i%3 != 0 { // the third reads nothing and closes
							_ = chunks(resp, func(string) bool { return true })
						}
						_ = resp.Body.Close()
					}
				}
				cancel()
			}
		})
	}
	for i := range total {
		next <- i
	}
	close(next)
	clients.Wait()
}
