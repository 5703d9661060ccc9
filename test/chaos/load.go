package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/test/streams"
)

// load is the clients. Each holds conversations of a few turns, whose answers are streamed.
type load struct {
	*options
	url      string
	client   *http.Client
	progress io.Writer

	all  sync.WaitGroup
	stop context.CancelFunc
	next atomic.Int64 // number of the next conversation

	asked, failed, broken, wrong, unpicked atomic.Int64

	mu      sync.Mutex
	began   time.Time // guarded by mu; the start of the round
	lastBad time.Time // guarded by mu; when the last request failed or broke
	lastErr string    // guarded by mu
	known   [][]byte  // guarded by mu; bodies of answered requests, at most maxKnown
}

// maxKnown bounds the bodies that probes send again.
const maxKnown = 64

// counts are the counters at one moment.
type counts struct{ asked, failed, broken, wrong, unpicked int64 }

func newLoad(url string, o *options, progress io.Writer) *load {
	// A client that meets a dead connection must not try again by itself: that would hide what happened.
	transport := &http.Transport{MaxIdleConnsPerHost: o.clients, DisableKeepAlives: true}
	return &load{options: o, url: url, client: &http.Client{Transport: transport, Timeout: 2 * time.Minute}, progress: progress}
}

// begin starts the clients, and returns the counts before them.
func (l *load) begin(ctx context.Context, c *cluster) counts {
	ctx, l.stop = context.WithCancel(ctx)
	l.mu.Lock()
	l.began = time.Now()
	l.lastErr = ""
	l.known = nil
	l.mu.Unlock()
	for i := range l.clients {
		rng := rand.New(rand.NewPCG(l.seed, uint64(i)))
		l.all.Go(func() {
			for ctx.Err() == nil {
				l.talk(ctx, rng)
			}
		})
	}
	return l.counts()
}

func (l *load) counts() counts {
	return counts{l.asked.Load(), l.failed.Load(), l.broken.Load(), l.wrong.Load(), l.unpicked.Load()}
}

// end lets the open streams end, and returns the result of all since.
func (l *load) end(since counts, at time.Time) result {
	l.stop()
	l.all.Wait()
	now := l.counts()
	r := result{
		Requests: now.asked - since.asked, Failed: now.failed - since.failed,
		Broken: now.broken - since.broken, Wrong: now.wrong - since.wrong, Unpicked: now.unpicked - since.unpicked,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastBad.After(at) {
		r.Recovered = l.lastBad.Sub(at).Milliseconds()
	}
	r.Last = l.lastErr
	return r
}

// turns is the length of a conversation.
const turns = 4

// talk holds one conversation. An answer that fails ends it.
func (l *load) talk(ctx context.Context, rng *rand.Rand) {
	number := l.next.Add(1)
	messages := []map[string]string{}
	for turn := range turns {
		if ctx.Err() != nil {
			return
		}
		text := fmt.Sprintf("Conversation %d of seed %d, turn %d. ", number, l.seed, turn) +
			strings.Repeat("The harbour was quiet and the tide was low. ", 10+rng.IntN(30))
		messages = append(messages, map[string]string{"role": "user", "content": text})
		body, _ := json.Marshal(map[string]any{
			"model": "sim", "messages": messages, "max_tokens": l.tokens, "temperature": 0, "stream": true,
			"stream_options": map[string]bool{"include_usage": true},
		})
		if !l.ask(body) {
			return
		}
		messages = append(messages, map[string]string{"role": "assistant", "content": "I see."})
	}
}

// ask sends a request, and reports whether its answer was complete. It does not end with the load, so that no client leaves.
func (l *load) ask(body []byte) bool {
	l.asked.Add(1)
	a, err := streams.Send(context.Background(), l.client, l.url+"/v1/chat/completions", body)
	if err == nil && a.Decision == "" {
		l.unpicked.Add(1)
	}
	switch {
	case err != nil && a.First == 0:
		l.failed.Add(1)
		l.bad("failed", a, err)
		// A client that is refused at once would fill the figures with its refusals.
		time.Sleep(100 * time.Millisecond)
		return false
	case err != nil:
		l.broken.Add(1)
		l.bad("broke", a, err)
		return false
	case a.Tokens != l.tokens:
		l.wrong.Add(1)
		l.bad("was wrong", a, fmt.Errorf("an answer has %d tokens, %d were asked for", a.Tokens, l.tokens))
		return false
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.known) == maxKnown {
		copy(l.known, l.known[1:])
		l.known = l.known[:maxKnown-1]
	}
	l.known = append(l.known, body)
	return true
}

// bad notes an error of a client, and prints it beside the faults.
func (l *load) bad(what string, a streams.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	decision := cmp.Or(a.Decision, "without a decision")
	fmt.Fprintf(l.progress, "chaos: %4.1f s: request %s %s, first event after %.1f s: %v\n",
		time.Since(l.began).Seconds(), decision, what, a.First.Seconds(), err)
	l.lastBad = time.Now()
	l.lastErr = err.Error()
}

// probe sends prompts again, one at a time, when the cluster is calm: the engine must find the blocks that a decision promises.
func (r *run) probe(ctx context.Context, res *result) error {
	r.load.mu.Lock()
	bodies := r.load.known
	r.load.mu.Unlock()

	prompt, found := 0, 0
	for _, body := range bodies {
		p, err := r.load.sendAgain(ctx, body)
		if err != nil {
			return fmt.Errorf("send a prompt again: %w", err)
		}
		promised, err := r.cluster.promised(ctx, p.decision)
		if err != nil {
			return err
		}
		res.Probes++
		prompt += p.prompt
		found += p.cached
		// An engine computes the last token of a prompt that it holds whole, with its block.
		if promised > p.cached+blockSize {
			res.Exact++
			fmt.Fprintf(r.progress, "chaos: decision %s promised %d tokens, the engine found %d\n", p.decision, promised, p.cached)
		}
	}
	if prompt > 0 {
		res.Found = float64(found) / float64(prompt)
	}
	return nil
}

// again is an answer to a prompt that was sent again.
type again struct {
	decision       string
	prompt, cached int
}

// sendAgain sends a prompt for one token, without a stream.
func (l *load) sendAgain(ctx context.Context, body []byte) (a again, err error) {
	body = bytes.Replace(body, []byte(`"stream":true`), []byte(`"stream":false`), 1)
	body = bytes.Replace(body, []byte(`,"stream_options":{"include_usage":true}`), nil, 1)
	body = bytes.Replace(body, fmt.Appendf(nil, `"max_tokens":%d`, l.tokens), []byte(`"max_tokens":1`), 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := l.client.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	if err != nil {
		return a, err
	}

	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return a, err
	}
	a = again{resp.Header.Get("x-stator-decision"), answer.Usage.Prompt, answer.Usage.Details.Cached}
	if a.decision == "" {
		err = errors.New("an answer has no x-stator-decision: no router decided")
	}
	return a, err
}
