package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stator-project/stator/test/process"
)

const (
	// cutStreams is the number of streams that are cut, and cutTokens that of the tokens of their answers. killedStreams run when an engine
	// is killed.
	cutStreams, cutTokens = 60, 80
	killedStreams         = 16
)

// cutter cuts the streams of engines after random numbers of bytes.
type cutter struct {
	on  atomic.Bool
	mu  sync.Mutex
	rng *rand.Rand // guarded by mu
}

// wrap replaces a response's body. Three of four streams are cut.
func (c *cutter) wrap(body io.ReadCloser) io.ReadCloser {
	if !c.on.Load() {
		return body
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(4) == 0 {
		return body
	}
	return &cutBody{body, 200 + c.rng.IntN(cutTokens*250)}
}

// cutBody ends with an error after some bytes.
type cutBody struct {
	io.ReadCloser
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// greedyStream is a stream as its client received it.
type greedyStream struct {
	text       string
	prompt     []uint32
	ids        []uint32
	finish     string
	usage      int // tokens in all
	heads      []string
	done, fail bool
}

// readGreedy sends a request for a greedy stream with token ids. first is called after the first event.
func readGreedy(ctx context.Context, g *gateway, path string, body map[string]any, first func()) (s greedyStream, err error) {
	body["model"] = modelName
	body["temperature"], body["max_tokens"] = 0, cutTokens
	body["stream"], body["return_token_ids"] = true, true
	body["stream_options"] = map[string]any{"include_usage": true}
	text, err := json.Marshal(body)
	if err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+path, bytes.NewReader(text))
	if err != nil {
		return s, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.Client.Do(req)
	if err != nil {
		return s, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("status %d", resp.StatusCode)
	}

	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if err := s.add(data); err != nil {
			return s, err
		}
		first()
		first = func() {}
	}
	return s, lines.Err()
}

// add adds an event.
func (s *greedyStream) add(data []byte) error {
	if string(data) == "[DONE]" {
		s.done = true
		return nil
	}
	var e struct {
		ID, Object string
		Choices    []struct {
			Text   string
			Delta  struct{ Content string }
			Finish string   `json:"finish_reason"`
			IDs    []uint32 `json:"token_ids"`
			Prompt []uint32 `json:"prompt_token_ids"`
		}
		Prompt []uint32 `json:"prompt_token_ids"`
		Usage  struct {
			Total int `json:"total_tokens"`
		}
		Error *struct{} `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%w: %.200s", err, data)
	}
	if e.Error != nil {
		s.fail = true
		return nil
	}

	s.heads = slices.Compact(append(s.heads, e.ID+e.Object))
	s.usage = max(s.usage, e.Usage.Total)
	s.prompt = append(s.prompt, e.Prompt...)
	for _, c := range e.Choices {
		s.text += c.Text + c.Delta.Content
		s.prompt = append(s.prompt, c.Prompt...)
		s.ids = append(s.ids, c.IDs...)
		s.finish += c.Finish
	}
	return nil
}

// migrations has the results of streams that were cut, or whose engine was killed.
type migrations struct {
	what                                              string
	streams, sameIDs, sameTexts, whole, failed, moved int
}

// compare counts a stream beside an unbroken one.
func (m *migrations) compare(got, want *greedyStream) {
	m.streams++
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	count(&m.failed, got.fail)
	count(&m.sameIDs, slices.Equal(got.ids, want.ids) && slices.Equal(got.prompt, want.prompt))
	count(&m.sameTexts, got.text == want.text)
	count(&m.whole, got.done && got.usage == want.usage && got.finish == want.finish && len(got.heads) == 1)
}

// migrationSection cuts streams, and then kills an engine. With 32 bits an engine computes the same for a token in a prompt and for one
// that it has made; with 16 bits the model of random weights has many ties.
func migrationSection(ctx context.Context, b *bench, _ []*engine, p *page) error {
	c := &cutter{rng: rand.New(rand.NewPCG(b.seed, 1))}
	var engines []*engine
	defer func() { stopAll(engines) }()
	for _, name := range []string{"a", "b"} {
		e, err := startEngine(name, engineConfig{vllm: b.vllm, model: b.model, folder: b.folder, blocks: largeCache, maxSeqs: largeBatch,
			extra: []string{"--dtype", "float32"}})
		if err != nil {
			return err
		}
		engines = append(engines, e)
		f, err := startFront(e)
		if err != nil {
			return err
		}
		f.stream = c.wrap
		defer f.stop()
	}
	if err := b.awaitEngines(ctx, engines); err != nil {
		return err
	}
	cfg := b.gatewayConfig(process.Router("round-robin"))
	cfg.migration = "{limit: 20}"
	g, err := b.startGatewayWith(ctx, cfg, engines)
	if err != nil {
		return err
	}
	defer g.Stop()

	cut, err := cutAll(ctx, b, g, c)
	if err != nil {
		return err
	}
	killed, err := killOne(ctx, b, g, engines[1])
	if err != nil {
		return err
	}
	printMigrations(p, cut, killed)
	return nil
}

// greedyRequest returns the i-th request: a chat, or a completion of random tokens.
func greedyRequest(b *bench, i int) (path string, body map[string]any) {
	if i%2 == 0 {
		text := fmt.Sprintf("Write about the number %d, and add one word in 中文 and one emoji.", i)
		return chats, map[string]any{"messages": []any{message("user", text)}}
	}
	return completions, map[string]any{"prompt": randomIDs(rand.New(rand.NewPCG(b.seed, uint64(i))), 50+i)}
}

// cutAll sends streams, and sends them again while most are cut.
func cutAll(ctx context.Context, b *bench, g *gateway, c *cutter) (*migrations, error) {
	m := &migrations{what: "cut at random bytes"}
	before, err := g.continued(ctx)
	if err != nil {
		return nil, err
	}
	for i := range cutStreams {
		var got [2]greedyStream
		for turn := range got {
			c.on.Store(turn == 1)
			path, body := greedyRequest(b, i)
			got[turn], err = readGreedy(ctx, g, path, body, func() {})
			if err != nil {
				return nil, err
			}
		}
		m.compare(&got[1], &got[0])
	}
	c.on.Store(false)
	after, err := g.continued(ctx)
	m.moved = after - before
	return m, err
}

// killOne kills an engine while both answer.
func killOne(ctx context.Context, b *bench, g *gateway, e *engine) (*migrations, error) {
	m := &migrations{what: "one of two engines killed"}
	before, err := g.continued(ctx)
	if err != nil {
		return nil, err
	}
	var got [2][killedStreams]greedyStream
	for turn := range got {
		var all, begun sync.WaitGroup
		errs := make([]error, killedStreams)
		for i := range killedStreams {
			begun.Add(1)
			all.Go(func() {
				once := sync.OnceFunc(begun.Done)
				defer once()
				path, body := greedyRequest(b, 1000+i)
				got[turn][i], errs[i] = readGreedy(ctx, g, path, body, once)
			})
		}
		begun.Wait()
		if turn == 1 {
			b.progressf("migration: kill an engine")
			e.kill()
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return nil, err
			}
		}
	}

	for i := range got[0] {
		m.compare(&got[1][i], &got[0][i])
	}
	after, err := g.continued(ctx)
	m.moved = after - before
	return m, err
}

// continued returns how often the gateway has continued a stream.
func (g *gateway) continued(ctx context.Context) (int, error) {
	text, err := g.Get(ctx, g.Admin+"/metrics")
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte(`stator_relay_migrations_total{outcome="continued"} `)); ok {
			_, err = fmt.Sscan(string(rest), &n)
		}
	}
	return n, err
}

func printMigrations(p *page, cut, killed *migrations) {
	p.section("Streams that go on at another engine")
	p.text("Greedy streams of %d tokens, chats and completions of random tokens, each beside an unbroken run. Three of four responses of "+
		"engines are cut, those of continuations, too; then an engine is killed. The engines compute with 32 bits.", cutTokens)
	p.writeRow("streams", "sent", "continued", "equal token ids", "equal texts", "whole, with one id and the usage", "ended with an error")
	for _, m := range []*migrations{cut, killed} {
		p.writeRow(m.what, m.streams, m.moved, m.sameIDs, m.sameTexts, m.whole, m.failed)
	}
	p.endTable()
	p.bar("streams were continued, after cuts and after a kill", min(cut.moved, killed.moved) > 0)
	p.bar("all token ids are those of an unbroken run", cut.sameIDs+killed.sameIDs == cut.streams+killed.streams)
	p.bar("all streams are whole", cut.whole+killed.whole == cut.streams+killed.streams)
}
