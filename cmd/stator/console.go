package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

// console prints the progress of `stator up` for the person at the terminal: one line for each part when it
// is ready, with the time since the start. There are no colours and no cursor movements, so that the output
// can be piped. Messages for programs go to the log.
type console struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func newConsole(w io.Writer) *console { return &console{w: w, began: time.Now()} }

func (t *console) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, format, args...)
}

func (t *console) title(cfg *config.Config) {
	t.printf("stator up: gateway %s%s\n", cfg.Gateway.Scheme(), cfg.Gateway.Listen)
	for _, m := range cfg.Models {
		var parts []string
		for _, l := range m.Launch {
			parts = append(parts, fmt.Sprintf("%d × %s", l.Count, l.Engine))
		}
		if n := len(m.Workers); n > 0 {
			parts = append(parts, fmt.Sprintf("%d from the file", n))
		}
		if n := len(slices.DeleteFunc(slices.Clone(cfg.Found), func(w fleet.Worker) bool { return w.Model != m.Name })); n > 0 {
			parts = append(parts, fmt.Sprintf("%d of --to", n))
		}
		files := cmp.Or(m.Path, "prompts are not read")
		t.printf("  model %s (%s), policy %s: %s\n", m.Name, files, m.Router.Policy, strings.Join(parts, ", "))
	}
	t.printf("\n")
}

func (t *console) ready(part, text string) {
	t.printf("  %-8s ready after %5.2f s  %s\n", part, time.Since(t.began).Seconds(), text)
}

func (t *console) waiting(part string, err error) {
	t.printf("  %-8s still waiting: %v\n", part, err)
}

func (t *console) stopping(hard context.Context) {
	if hard.Err() == nil {
		t.printf("\nstopping: running requests may end first; Ctrl-C again stops at once\n")
	}
}

func (t *console) stopped() { t.printf("stopped\n") }

// gatewayURL returns the address of the gateway for a client on this machine.
func gatewayURL(cfg *config.Config) string {
	return cfg.Gateway.Scheme() + strings.Replace(cfg.Gateway.Listen, "0.0.0.0", "127.0.0.1", 1)
}

// explainCommand returns the command that explains the last decision.
func explainCommand(admin string) string {
	explain := "bin/stator explain"
	if admin != "127.0.0.1:8081" {
		explain += " --admin-address " + admin
	}
	return explain
}

// inviteOwn prints what clients of the engines of --to set, and a request to try.
func (t *console) inviteOwn(cfg *config.Config, admin string) {
	t.printf(`
Ready after %.1f s. Clients of the engines use the gateway's address instead:

  export OPENAI_BASE_URL=%[2]s/v1

  curl -s %[2]s/v1/chat/completions -H 'content-type: application/json' -d '{
    "model": "%[3]s", "max_tokens": 24, "messages": [{"role": "user", "content": "Count to five."}]}'
  %[4]s

Ctrl-C drains and stops the gateway, and leaves the engines running.
`, time.Since(t.began).Seconds(), gatewayURL(cfg), cfg.Models[0].Name, explainCommand(admin))
}

// invite prints three requests to try.
func (t *console) invite(cfg *config.Config, admin string) {
	url, model := gatewayURL(cfg), cfg.Models[0].Name
	explain := explainCommand(admin)
	key := ""
	if cfg.Gateway.Auth.IsOn() {
		key = ` -H "authorization: Bearer $KEY"`
	}
	t.printf(`
Ready after %.1f s. Try, from another terminal:

  # 1. A long prompt, three times. From the second time on it goes to the worker with its KV blocks.
  { echo '{"model": "%[3]s", "max_tokens": 1, "messages": [{"role": "user", "content": "'
    printf 'lighthouse %%.0s' $(seq 4000); echo '"}]}'; } | tr -d '\n' > /tmp/long.json
  for i in 1 2 3; do curl -s%[5]s %[2]s/v1/chat/completions -H 'content-type: application/json' \
    -d @/tmp/long.json -w '\n%%{time_total} s\n' | grep -oE '"(prompt|cached)_tokens":[0-9]+|[0-9.]+ s$' | xargs; done

  # 2. The same as a stream.
  curl -sN%[5]s %[2]s/v1/chat/completions -H 'content-type: application/json' -d '{
    "model": "%[3]s", "max_tokens": 24, "stream": true, "messages": [{"role": "user", "content": "Count to five."}]}'

  # 3. Why did the last request go where it went?
  %[4]s

Ctrl-C drains and stops everything.
`, time.Since(t.began).Seconds(), url, model, explain, key)
}
