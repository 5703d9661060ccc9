// Package nextturns plays conversations with and without the hint of speculative prefill, and other clients beside them. The answers begin
// with thinking, which the clients do not send back as it was.
package nextturns

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/streams"
	"github.com/stator-project/stator/test/talks"
)

// Load is what clients send.
type Load struct {
	API                string // of the conversations: chat, messages or responses
	Conversations      int    // at a time
	Turns              int    // of a conversation
	Thinking, Answer   int    // tokens of an answer
	First, User        int    // words of the instructions and of a message
	Pause              time.Duration
	Others             int // other clients, which send chats
	OtherUser, OtherTo int // words of their messages, and tokens of their answers
	Seed               uint64
	Members            talks.Object // further members of all bodies, which replace the ones of package talks
	Conversation       talks.Object // further members of the bodies of conversations
}

// Result is one play.
type Result struct {
	Later  []streams.Answer // to the turns but the first of each conversation, in an order that plays of one round have in common
	Others []streams.Answer // to the other clients
	// Prefills has the gateway's counts of speculative prefills by result, and Tokens is the number of tokens that they have computed.
	Prefills map[string]float64
	Tokens   float64
}

// Play plays all conversations at a time, with other clients beside them until the last conversation ends. Texts depend on the seed and the
// round.
func (l *Load) Play(ctx context.Context, g *process.Gateway, hinted bool, round uint64) (r Result, err error) {
	var mu sync.Mutex // guards r.Others
	var others sync.WaitGroup
	ending, end := context.WithCancel(ctx)
	defer end()
	failed := make(chan error, l.Others)
	for i := range l.Others {
		others.Go(func() {
			err := l.other(ending, g, rand.New(rand.NewPCG(l.Seed+round, uint64(1000+i))), func(a streams.Answer) {
				mu.Lock()
				defer mu.Unlock()
				r.Others = append(r.Others, a)
			})
			if err != nil && ending.Err() == nil {
				failed <- err
				end()
			}
		})
	}

	later := make([][]streams.Answer, l.Conversations)
	err = process.Each(make(chan struct{}, l.Conversations), l.Conversations, func(i int) (err error) {
		later[i], err = l.converse(ending, g, hinted, rand.New(rand.NewPCG(l.Seed+round, uint64(i))))
		return err
	})
	end()
	others.Wait()
	for _, list := range later {
		r.Later = append(r.Later, list...)
	}
	select {
	case first := <-failed:
		err = errors.Join(first, err)
	default:
	}
	return r, errors.Join(err, r.count(ctx, g))
}

// count reads the gateway's counts of speculative prefills.
func (r *Result) count(ctx context.Context, g *process.Gateway) error {
	page, err := g.Get(ctx, g.Admin+"/metrics")
	if err != nil {
		return err
	}
	r.Prefills = map[string]float64{}
	for line := range strings.Lines(string(page)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		n, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil: // a comment, or a sample without labels
		case strings.HasPrefix(name, "stator_speculative_prefills_total{"):
			_, result, _ := strings.Cut(name, `result="`)
			r.Prefills[strings.TrimSuffix(result, `"`)] += n
		case strings.HasPrefix(name, "stator_speculative_prefill_tokens_total{"):
			r.Tokens += n
		}
	}
	return nil
}

// words returns n random words.
func words(rng *rand.Rand, n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = []string{"stone", "river", "green", "seven", "light", "paper", "under", "house", "north", "quiet"}[rng.IntN(10)]
	}
	return strings.Join(list, " ")
}

// converse plays one conversation. The client sends back the answers without the thinking, or with another one, which the template drops.
func (l *Load) converse(ctx context.Context, g *process.Gateway, hinted bool, rng *rand.Rand) (later []streams.Answer, err error) {
	api, ok := talks.Of(l.API, words(rng, l.First))
	if !ok {
		return nil, fmt.Errorf("there is no API %q: use chat, messages or responses", l.API)
	}
	var history []any
	for turn := range l.Turns {
		history = append(history, api.User(words(rng, l.User))...)
		a, text, err := l.send(ctx, g, &api, history, l.Thinking+l.Answer, hinted, l.Conversation)
		if err != nil {
			return nil, err
		}
		if turn > 0 {
			later = append(later, a)
		}
		history = append(history, api.Answer(text)...)
		select {
		case <-time.After(l.Pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return later, nil
}

// other sends requests of another client until ctx ends: it waits for a quarter of the time that each took.
func (l *Load) other(ctx context.Context, g *process.Gateway, rng *rand.Rand, took func(streams.Answer)) error {
	api := talks.Chat("")
	for ctx.Err() == nil {
		a, _, err := l.send(ctx, g, &api, api.User(words(rng, l.OtherUser)), l.OtherTo, false, nil)
		if err != nil {
			return err
		}
		took(a)
		select {
		case <-time.After(a.Whole / 4):
		case <-ctx.Done():
		}
	}
	return nil
}

// send sends a turn and reads the stream of its answer, with the text without the thinking.
func (l *Load) send(ctx context.Context, g *process.Gateway, api *talks.API, history []any, tokens int, hinted bool,
	more talks.Object,
) (a streams.Answer, text string, err error) {
	body := api.Body(history)
	body[api.Bound], body["stream"] = tokens, true
	if api.Name == "chat" {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	if hinted {
		body["nvext"] = map[string]any{"agent_hints": map[string]bool{"speculative_prefill": true}}
	}
	maps.Copy(body, l.Members)
	maps.Copy(body, more)
	raw, err := json.Marshal(body)
	if err != nil {
		return a, "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+api.Path, bytes.NewReader(raw))
	if err != nil {
		return a, "", err
	}
	r.Header.Set("Content-Type", "application/json")

	begun := time.Now()
	response, err := g.Client.Do(r)
	if err != nil {
		return a, "", err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500))
		return a, "", fmt.Errorf("status %d: %s", response.StatusCode, text)
	}
	a, text, err = readStream(response.Body, api, begun)
	a.Decision = response.Header.Get("x-stator-decision")
	return a, text, err
}

// readStream reads the events of an answer to their end.
func readStream(body io.Reader, api *talks.API, begun time.Time) (a streams.Answer, text string, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		piece, thinking := api.Delta(data)
		text += piece
		if a.First == 0 && piece+thinking != "" {
			a.First = time.Since(begun)
		}
		if bytes.Contains(data, []byte(`"usage":{`)) {
			if _, u, err := api.Read(data); err == nil {
				a.Prompt, a.Cached = max(a.Prompt, u.Prompt), max(a.Cached, u.Cached)
			}
		}
		if isLast(data) {
			a.Whole = time.Since(begun)
			return a, text, nil
		}
	}
	return a, "", errors.Join(errors.New("the stream has ended early"), lines.Err())
}

// isLast reports whether an event is the last one of a stream of any of the APIs.
func isLast(data []byte) bool {
	return string(data) == "[DONE]" || bytes.HasPrefix(data, []byte(`{"type":"message_stop"`)) ||
		bytes.HasPrefix(data, []byte(`{"type":"response.completed"`))
}
