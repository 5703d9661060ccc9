package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// legTokens is the number of tokens in the answers of split requests.
const legTokens = 8

// legRequest is a request whose prompt one engine may compute and another one decode.
type legRequest struct {
	path   string
	body   map[string]any
	prompt int        // tokens, if the prompt has token ids; else 0
	want   completion // the answer of one engine alone
}

// legRequests returns requests to all endpoints whose requests are split, unary ones and streams. No two have equal prompts.
func legRequests(w *writer, streams ...bool) []*legRequest {
	var list []*legRequest
	add := func(path string, prompt int, stream bool, body map[string]any) {
		body["model"] = modelName
		if stream {
			body["stream"] = true
		}
		list = append(list, &legRequest{path: path, body: body, prompt: prompt})
	}

	for _, stream := range streams {
		ids := w.ids(100)
		add(completions, len(ids), stream, map[string]any{
			"prompt": ids, "max_tokens": legTokens, "temperature": 0, "return_token_ids": true})
		add(chats, 0, stream, map[string]any{
			"messages": []any{message("user", w.text(80))}, "max_tokens": legTokens, "temperature": 0, "return_token_ids": true})
		add(responses, 0, stream, map[string]any{"input": w.text(80), "max_output_tokens": legTokens, "temperature": 0})
		add(messages, 0, stream, map[string]any{
			"messages": []any{message("user", w.text(80))}, "max_tokens": legTokens, "temperature": 0})
		ids = w.ids(140)
		add("/inference/v1/generate", len(ids), stream, map[string]any{
			"token_ids": ids, "sampling_params": map[string]any{"max_tokens": legTokens, "temperature": 0}})
	}
	return list
}

// completion is the answer to a request, unary or streamed.
type completion struct {
	status   int
	id       string // the answer's own, without the endpoint's prefix; empty if it is not the request's
	ids      []uint32
	logprobs []float64 // of the tokens, if the request asked for them
	text     string
	usage    int    // prompt tokens found in a cache, by the engine's usage
	cached   string // the header with the prompt tokens that an engine had in its cache
	decision string // the id of the gateway's decision
	body     string
	took     time.Duration
}

// equal reports whether two answers have the same token ids or, of endpoints that give none, the same text.
func (c *completion) equal(other *completion) bool {
	if len(c.ids) > 0 {
		return slices.Equal(c.ids, other.ids)
	}
	return len(other.ids) == 0 && c.text != "" && c.text == other.text
}

// legPart is an answer, or one event of a stream, of any of the endpoints.
type legPart struct {
	ID      string
	Choices []struct {
		TokenIDs       []uint32 `json:"token_ids"`
		Text           string
		Message, Delta struct{ Content string }
		Logprobs       struct {
			Tokens []float64 `json:"token_logprobs"`
		}
	}
	Output  []struct{ Content []struct{ Text string } } // of a response
	Content []struct{ Text string }                     // of a message
	Type    string
	Delta   json.RawMessage // of an event: a text of a response, or an object of a message
	Usage   struct {
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// readBody reads the body of a good answer.
func (c *completion) readBody() error {
	parts := []string{c.body}
	if streamed := strings.Contains(c.body, "\ndata: {") || strings.HasPrefix(c.body, "data: {"); streamed {
		parts = nil
		for line := range strings.Lines(c.body) {
			if data, found := strings.CutPrefix(line, "data: {"); found {
				parts = append(parts, "{"+data)
			}
		}
	}

	for _, raw := range parts {
		var p legPart
		if err := json.Unmarshal([]byte(raw), &p); err != nil {
			return fmt.Errorf("read %.200s: %w", raw, err)
		}
		c.addPart(&p)
	}
	return nil
}

// idPrefixes are before the request's id in the ids of answers.
var idPrefixes = []string{"cmpl-", "chatcmpl-", "generate-tokens-"}

// addPart adds the tokens of a part.
func (c *completion) addPart(p *legPart) {
	for _, prefix := range idPrefixes {
		if id, found := strings.CutPrefix(p.ID, prefix); found {
			c.id = id
		}
	}
	for i := range p.Choices {
		choice := &p.Choices[i]
		c.ids = append(c.ids, choice.TokenIDs...)
		c.logprobs = append(c.logprobs, choice.Logprobs.Tokens...)
		c.text += choice.Text + choice.Message.Content + choice.Delta.Content
	}
	for i := range p.Output {
		for _, content := range p.Output[i].Content {
			c.text += content.Text
		}
	}
	for i := range p.Content {
		c.text += p.Content[i].Text
	}
	c.usage = max(c.usage, p.Usage.Details.Cached)

	var text string
	var object struct{ Text string }
	switch {
	case p.Type == "response.output_text.delta" && json.Unmarshal(p.Delta, &text) == nil:
		c.text += text
	case p.Type == "content_block_delta" && json.Unmarshal(p.Delta, &object) == nil:
		c.text += object.Text
	}
}

// requestTime bounds a request. All engines answer within seconds.
const requestTime = 3 * time.Minute

// complete sends a request with more members to a server, and reads the answer to its end.
func (r *legRequest) complete(ctx context.Context, url string, more map[string]any) (*completion, error) {
	ctx, stop := context.WithTimeout(ctx, requestTime)
	defer stop()
	full := maps.Clone(r.body)
	maps.Copy(full, more)
	raw, err := json.Marshal(full)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+r.path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")

	begun := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	c := &completion{
		status: resp.StatusCode, body: string(body), took: time.Since(begun),
		cached: resp.Header.Get("X-Stator-Cached-Tokens"), decision: resp.Header.Get("X-Stator-Decision"),
	}
	if c.status != http.StatusOK {
		return c, nil
	}
	return c, c.readBody()
}

// legRound has the results of some requests through the gateway, one after another.
type legRound struct {
	what     string
	requests []*legRequest
	answers  []*completion
	counts   legCounts // of the round
}

// good counts the answers with status 200, and equal those with the tokens of one engine alone.
func (r *legRound) good() (good, equal int) {
	for i, a := range r.answers {
		if a.status == http.StatusOK {
			good++
			if a.equal(&r.requests[i].want) {
				equal++
			}
		}
	}
	return good, equal
}

// longest returns the time of the slowest answer.
func (r *legRound) longest() time.Duration {
	var longest time.Duration
	for _, a := range r.answers {
		longest = max(longest, a.took)
	}
	return longest
}

// legCounts are counters of the gateway and of the engine that decodes.
type legCounts struct {
	transferred int // requests whose prompt a prefill worker computed
	relayed     int // answers that came through the relay
	fetched     int // tokens of prompts that the decode engine got from another engine
	computed    int // tokens of prompts that it computed
}

// readCounts reads the counters.
func readCounts(ctx context.Context, g *gateway, decode *engine) (legCounts, error) {
	var c legCounts
	const bySource = "vllm:prompt_tokens_by_source_total"
	for _, s := range []struct {
		url, name, label string
		into             *int
	}{
		{g.Admin, "stator_extproc_prefills_total", `outcome="transferred"`, &c.transferred},
		{g.Admin, "stator_relay_attempts_total", `outcome="answered"`, &c.relayed},
		{"http://" + decode.address, bySource, `source="external_kv_transfer"`, &c.fetched},
		{"http://" + decode.address, bySource, `source="local_compute"`, &c.computed},
	} {
		text, err := getText(ctx, s.url+"/metrics")
		if err != nil {
			return c, err
		}
		*s.into, err = sample(text, s.name, s.label)
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// sample returns the sum of the samples of a name that have a label.
func sample(text, name, label string) (int, error) {
	sum := 0.0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") || !strings.Contains(line, label) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sum += value
	}
	return int(sum), nil
}

// minus returns the counts since earlier ones.
func (c legCounts) minus(earlier legCounts) legCounts {
	return legCounts{
		c.transferred - earlier.transferred, c.relayed - earlier.relayed, c.fetched - earlier.fetched, c.computed - earlier.computed,
	}
}

// runRound sends requests with more members through the gateway, as many at a time.
func runRound(
	ctx context.Context, g *gateway, decode *engine, what string, list []*legRequest, more map[string]any, atOnce int,
) (*legRound, error) {
	before, err := readCounts(ctx, g, decode)
	if err != nil {
		return nil, err
	}
	r := &legRound{what: what, requests: list, answers: make([]*completion, len(list))}
	errs := make([]error, len(list))
	places := make(chan struct{}, atOnce)
	var senders sync.WaitGroup
	for i, q := range list {
		places <- struct{}{}
		senders.Go(func() {
			r.answers[i], errs[i] = q.complete(ctx, g.URL, more)
			<-places
		})
	}
	senders.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}

	after, err := readCounts(ctx, g, decode)
	r.counts = after.minus(before)
	return r, err
}

// problem describes the first answer that is not as it must be; empty where all are.
func (r *legRound) problem() string {
	for i, a := range r.answers {
		q := r.requests[i]
		if a.status != http.StatusOK {
			return fmt.Sprintf("%s: status %d: %.300s", q.path, a.status, a.body)
		}
		if !a.equal(&q.want) {
			return fmt.Sprintf("%s: %v %q instead of %v %q", q.path, a.ids, a.text, q.want.ids, q.want.text)
		}
	}
	return ""
}

// wantFrom asks an engine alone, with an empty cache, for the answers to requests.
func wantFrom(ctx context.Context, e *engine, rounds []*legRound) error {
	if err := e.forget(ctx); err != nil {
		return err
	}
	for _, r := range rounds {
		for _, q := range r.requests {
			if q.want.status != 0 {
				continue
			}
			c, err := q.complete(ctx, "http://"+e.address, nil)
			if err != nil {
				return err
			}
			if c.status != http.StatusOK {
				return fmt.Errorf("engine %s: %s: status %d: %.300s", e.name, q.path, c.status, c.body)
			}
			q.want = *c
		}
	}
	return nil
}

// printRounds writes the table of rounds.
func printRounds(p *page, rounds []*legRound) {
	p.writeRow("requests", "sent", "status 200", "equal", "prefills", "by the relay", "tokens fetched", "tokens computed there", "longest")
	for _, r := range rounds {
		good, equal := r.good()
		p.writeRow(r.what, len(r.answers), good, equal, r.counts.transferred, r.counts.relayed, r.counts.fetched, r.counts.computed,
			r.longest().Round(10*time.Millisecond))
	}
	p.endTable()
	for _, r := range rounds {
		if problem := r.problem(); problem != "" {
			p.item("%s: %s", r.what, problem)
		}
	}
}

// plus adds counts.
func (c legCounts) plus(more legCounts) legCounts {
	return legCounts{
		c.transferred + more.transferred, c.relayed + more.relayed, c.fetched + more.fetched, c.computed + more.computed,
	}
}
