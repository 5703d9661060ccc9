package scenario

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// streamed is a stream as its client reads it.
type streamed struct {
	text, finish, failure string
	prompt, ids           []int
	heads                 []string // of all events, without repetitions
	total, answer         int      // tokens by its usage
	events                int
	done                  bool
	err                   error
}

// readStream sends a request for a stream and reads it. After the first events, or if it fails before, it calls begun once.
func (g *gateway) readStream(ctx context.Context, path, body string, begun func()) (s streamed) {
	if begun == nil {
		begun = func() {}
	}
	begun = sync.OnceFunc(begun)
	defer begun()
	s.err = func() error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("content-type", "application/json")
		response, err := g.do(r)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", response.StatusCode)
		}
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if len(lines.Bytes()) == 0 {
				continue
			}
			if err := s.read(lines.Bytes()); err != nil {
				return err
			}
			if s.events == 5 {
				begun()
			}
		}
		return lines.Err()
	}()
	s.heads = slices.Compact(s.heads)
	return s
}

// read reads an event.
func (s *streamed) read(line []byte) error {
	data, ok := bytes.CutPrefix(line, []byte("data: "))
	if !ok {
		return fmt.Errorf("a line that is no event: %q", line)
	}
	if string(data) == "[DONE]" {
		s.done = true
		return nil
	}
	var e struct {
		ID, Object, Model string
		Created           int
		Choices           []struct {
			Text   string
			Delta  struct{ Content string }
			Reason string `json:"finish_reason"`
			Prompt []int  `json:"prompt_token_ids"`
			IDs    []int  `json:"token_ids"`
		}
		Prompt []int `json:"prompt_token_ids"`
		Usage  struct {
			Total  int `json:"total_tokens"`
			Answer int `json:"completion_tokens"`
		}
		Error struct{ Code string }
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%w: %q", err, data)
	}
	s.events++
	if e.Error.Code != "" {
		s.failure = e.Error.Code
		return nil
	}
	s.heads = append(s.heads, fmt.Sprint(e.ID, e.Object, e.Model, e.Created))
	s.prompt = append(s.prompt, e.Prompt...)
	s.total, s.answer = max(s.total, e.Usage.Total), max(s.answer, e.Usage.Answer)
	for _, c := range e.Choices {
		s.text += c.Text + c.Delta.Content
		s.finish += c.Reason
		s.prompt, s.ids = append(s.prompt, c.Prompt...), append(s.ids, c.IDs...)
	}
	return nil
}

// same reports whether two streams have the same content, with one head each.
func (s *streamed) same(other *streamed) bool {
	return s.err == nil && s.text == other.text && s.finish == other.finish && slices.Equal(s.ids, other.ids) &&
		slices.Equal(s.prompt, other.prompt) && s.total == other.total && s.answer == other.answer && s.done && len(s.heads) == 1
}

// TestStreamsMigrate kills one of three engines while it answers. Streams that are promised go on at the others: each has the text, the
// token ids and the usage of an unbroken run. The others end with an error event. No booking is left.
func TestStreamsMigrate(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  migration: {limit: 2}
  launch: [{engine: sim, count: 3, args: {engineSpeedup: 0.1}}]
`))
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	const usage = `,"stream_options":{"include_usage":true}`
	const greedy = `{"model":"sim","stream":true,"temperature":0,`
	requests := []struct {
		path, body string
		promised   bool
	}{
		{chat, greedy + `"max_tokens":100,"messages":[{"role":"user","content":"a greedy chat"}]` + usage, true},
		{chat, greedy + `"messages":[{"role":"user","content":"without a bound"}]` + usage, true},
		{chat, greedy + `"max_completion_tokens":90,"return_token_ids":true,"messages":[{"role":"user","content":"ids"}]` + usage, true},
		{completions, greedy + `"max_tokens":100,"prompt":"a greedy completion"` + usage, true},
		{completions, greedy + `"max_tokens":100,"return_token_ids":true,"prompt":[5,6,7,8,9]`, true},
		{chat, `{"model":"sim","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"sampled"}]`, false},
		{chat, greedy + `"max_tokens":100,"stop":"x","messages":[{"role":"user","content":"a stop string"}]`, false},
		{completions, greedy + `"max_tokens":100,"presence_penalty":0.5,"prompt":"a penalty"`, false},
	}
	want := make([]streamed, len(requests))
	var unbroken sync.WaitGroup
	for i, r := range requests {
		unbroken.Go(func() { want[i] = g.readStream(t.Context(), r.path, r.body+"}", nil) })
	}
	unbroken.Wait()
	for i, r := range requests {
		if want[i].err != nil || !want[i].done || want[i].events < 30 {
			t.Fatalf("%s: %+v", r.body, want[i])
		}
	}

	// Each engine has each of the requests.
	var all, begun sync.WaitGroup
	got := make([]streamed, 3*len(requests))
	for i := range got {
		r := requests[i/3]
		begun.Add(1)
		body := fmt.Sprintf(`%s,"nvext":{"router":{"worker":"sim-%d"}}}`, r.body, i%3)
		all.Go(func() { got[i] = g.readStream(t.Context(), r.path, body, begun.Done) })
	}
	begun.Wait()
	if err := syscall.Kill(childWith(t, g.up.cmd.Process.Pid, "sim-1"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	all.Wait()

	failed := 0
	for i := range got {
		r := requests[i/3]
		if got[i].failure == "stream_broken" && !r.promised && got[i].err == nil && !got[i].done {
			failed++
			continue
		}
		if !got[i].same(&want[i/3]) {
			t.Errorf("%s:\n%+v\nwant\n%+v", r.body, got[i], want[i/3])
		}
	}
	if failed != 3 {
		t.Errorf("%d streams have an error event, want 3", failed)
	}
	// The chat without a bound may have ended before.
	if n := g.metric("stator_relay_migrations_total", `outcome="continued"`); n < 4 || n > 5 {
		t.Errorf("%g streams were continued, want 4 or 5", n)
	}
	g.assertNothingBooked()
}
