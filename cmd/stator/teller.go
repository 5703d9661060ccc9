package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/config"
)

// teller says to the person at the terminal what is going on. Rules: one line per part when
// it is ready, with the time since the start; no colour, no cursor movement, so that the
// output can be piped; what a program should read goes to the log instead.
type teller struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func newTeller(w io.Writer) *teller { return &teller{w: w, began: time.Now()} }

func (t *teller) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, format, args...)
}

func (t *teller) title(cfg *config.Config) {
	t.printf("stator up: gateway http://%s\n", cfg.Gateway.Listen)
	for _, m := range cfg.Models {
		var parts []string
		for _, l := range m.Launch {
			parts = append(parts, fmt.Sprintf("%d × %s", l.Count, l.Engine))
		}
		if n := len(m.Workers); n > 0 {
			parts = append(parts, fmt.Sprintf("%d from the file", n))
		}
		t.printf("  model %s (%s), policy %s: %s\n", m.Name, m.Path, m.Router.Policy, strings.Join(parts, ", "))
	}
	t.printf("\n")
}

func (t *teller) ready(part, text string) {
	t.printf("  %-8s ready after %5.2f s  %s\n", part, time.Since(t.began).Seconds(), text)
}

func (t *teller) waiting(part string, err error) {
	t.printf("  %-8s still waiting: %v\n", part, err)
}

func (t *teller) stopping(hard context.Context) {
	if hard.Err() == nil {
		t.printf("\nstopping: requests in flight may end first; Ctrl-C again stops at once\n")
	}
}

func (t *teller) stopped() { t.printf("stopped\n") }

// invite prints three requests whose effect can be seen.
func (t *teller) invite(cfg *config.Config, admin string) {
	url, model := "http://"+strings.Replace(cfg.Gateway.Listen, "0.0.0.0", "127.0.0.1", 1), cfg.Models[0].Name
	explain := "bin/stator explain"
	if admin != "127.0.0.1:8081" {
		explain += " --admin-address " + admin
	}
	t.printf(`
Ready after %.1f s. Try, from another terminal:

  # 1. A chat. Send it twice: the second time usage.prompt_tokens_details.cached_tokens
  #    shows that it went back to the worker that holds its KV blocks.
  curl -s %[2]s/v1/chat/completions -H 'content-type: application/json' -d '{
    "model": "%[3]s", "max_tokens": 24, "messages": [
      {"role": "system", "content": "You are a patient assistant who explains how caches work: what they keep, what they evict, and why a request should go where its prefix already is."},
      {"role": "user", "content": "Why does a prefix cache make the first token come sooner?"}]}'

  # 2. The same as a stream.
  curl -sN %[2]s/v1/chat/completions -H 'content-type: application/json' -d '{
    "model": "%[3]s", "max_tokens": 24, "stream": true, "messages": [{"role": "user", "content": "Count to five."}]}'

  # 3. Why did the last request go where it went?
  %[4]s

Ctrl-C drains and stops everything.
`, time.Since(t.began).Seconds(), url, model, explain)
}
