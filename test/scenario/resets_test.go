package scenario

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// cacheOf is the state of the cache of a worker's first rank, as the router knows it.
type cacheOf struct {
	Worker, State, Reason string
	Blocks                int
}

func (g *gateway) cache(worker string) (found cacheOf) {
	g.t.Helper()
	var ranks []cacheOf
	g.page("/debug/feed", &ranks)
	for _, r := range ranks {
		if r.Worker == worker {
			found = r
		}
	}
	return found
}

// TestResetsWhileIdle resets idle engines, which report that with their next step, or never, and puts one to sleep. The router does not
// believe that their caches are warm. One engine is listed and one is an agent's.
func TestResetsWhileIdle(t *testing.T) {
	t.Parallel()
	at, events, replay := freeAddress(t), "tcp://"+freeAddress(t), "tcp://"+freeAddress(t)
	start(t, "sim", "--name", "listed", "--listen-address", at, "--kv-events", events, "--kv-replay", replay)
	for name, model := range map[string]string{
		"listed": fmt.Sprintf("workers: [{name: listed, address: %q, engine: sim, kvEvents: %q, kvReplay: %q}]", at, events, replay),
		"sim-0":  "launch: [{engine: sim}]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testResets(t, name, up(t, "--config", configFile(t, "models: [{name: sim, path: \"builtin:sim\", "+model+"}]\n")))
		})
	}
}

// TestCanaryShowsReset: an idle engine that is reset reports that with its next step, and a canary is one. No client sends a request.
func TestCanaryShowsReset(t *testing.T) {
	t.Parallel()
	at, events, replay := freeAddress(t), "tcp://"+freeAddress(t), "tcp://"+freeAddress(t)
	start(t, "sim", "--name", "listed", "--listen-address", at, "--kv-events", events, "--kv-replay", replay)
	g := up(t, "--config", configFile(t, fmt.Sprintf(`models:
- name: sim
  path: "builtin:sim"
  canary: 1s
  workers: [{name: listed, address: %q, engine: sim, kvEvents: %q, kvReplay: %q}]
`, at, events, replay)))
	const most = 20
	await := func(what string, is func(cacheOf) bool) {
		t.Helper()
		eventually(t, what, func() error {
			if c := g.cache("listed"); c.State != "exact" || !is(c) {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}

	g.chat([]message{{"user", strings.Repeat("a long question ", 200)}}, 1)
	await("the prompt is cached", func(c cacheOf) bool { return c.Blocks > most })
	eventually(t, "the engine is idle", func() error {
		resp, err := http.Post("http://"+at+"/reset_prefix_cache", "", nil)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
	await("the reset is known", func(c cacheOf) bool { return c.Blocks <= most })
}

func testResets(t *testing.T, worker string, g *gateway) {
	await := func(what string, is func(cacheOf) bool) {
		t.Helper()
		eventually(t, what, func() error {
			if c := g.cache(worker); !is(c) {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
	engine := "http://" + g.fleet()[0].Address
	call := func(path string) {
		t.Helper()
		eventually(t, "the engine is idle", func() error {
			resp, err := http.Post(engine+path, "", nil)
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		})
	}
	prompt := func(i int) []message {
		return []message{{"user", strings.Repeat(fmt.Sprintf("question %d of many ", i), 200)}}
	}
	const most = 20
	warm := func(c cacheOf) bool { return c.State == "exact" && c.Blocks > most }

	// The event of a reset comes with the next request, which has another prompt.
	await("the cache is known", func(c cacheOf) bool { return c.State == "exact" })
	g.chat(prompt(1), 1)
	await("the first prompt is cached", warm)
	call("/reset_prefix_cache")
	g.chat([]message{{"user", "hi"}}, 1)
	await("the reset was reported", func(c cacheOf) bool { return c.State == "exact" && c.Blocks <= most })

	// A sleeping engine reports nothing, and its cache is empty all the same.
	g.chat(prompt(2), 1)
	await("the second prompt is cached", warm)
	call("/sleep")
	await("a sleeping engine has no blocks", func(c cacheOf) bool { return c.State == "exact" && c.Blocks == 0 })
	eventually(t, "the page shows that the engine sleeps", func() error {
		if !g.fleet()[0].Asleep {
			return errNotYet
		}
		return nil
	})
	call("/wake_up")
	eventually(t, "the engine is awake", func() error {
		if g.fleet()[0].Asleep {
			return fmt.Errorf("it sleeps")
		}
		return nil
	})

	// A reset that is never reported is found by the promise that the next request misses.
	g.chat(prompt(3), 1)
	await("the third prompt is cached", warm)
	call("/reset_prefix_cache?events=none")
	r := g.chat(prompt(3), 1)
	if d := g.decision(r.decision); r.usage.Details.CachedTokens != 0 || d.PromptTokens < 500 {
		t.Fatalf("%d of %d tokens cached after the reset", r.usage.Details.CachedTokens, d.PromptTokens)
	}
	await("the engine's blocks are forgotten", func(c cacheOf) bool { return c.State == "stale" && c.Reason == "promise" && c.Blocks <= most })

	// A step that reports an empty cache ends the doubt.
	call("/reset_prefix_cache")
	g.chat(prompt(4), 1)
	await("the cache is known again", warm)
}

// TestRestartWithoutCaching starts an engine again under its address without a prefix cache, and then with one. While it has none, nothing
// is promised, also before the new process was asked for its metrics. Its events alone would not show that.
func TestRestartWithoutCaching(t *testing.T) {
	t.Parallel()
	l := startListed(t, true, "", "a")
	e := l.engines["a"]
	state := func() string {
		var page struct {
			Ranks []struct {
				Cache string `json:"cache_state"`
			}
		}
		l.page("/debug/fleet", &page)
		return page.Ranks[0].Cache
	}
	restart := func(args ...string) {
		t.Helper()
		e.stop()
		e.args = append(e.args[:len(e.args):len(e.args)], args...)
		e.start()
	}
	talk := strings.Repeat("a long question ", 100)
	ask := func() (promised, served int, err error) {
		r, err := l.tryChat(t.Context(), []message{{"user", talk}}, 1)
		if err != nil {
			return 0, 0, err
		}
		var d struct {
			Cached int `json:"cached_tokens"`
		}
		l.page("/debug/decisions/"+r.decision, &d)
		return d.Cached, r.usage.Details.CachedTokens, nil
	}
	awaitPromise := func(when string) {
		t.Helper()
		eventually(t, "a promise "+when, func() error {
			promised, served, err := ask()
			if err != nil || promised == 0 || promised != served {
				return fmt.Errorf("%d tokens promised, %d served: %w", promised, served, err)
			}
			return nil
		})
	}
	awaitPromise("at first")

	args := e.args
	restart("--no-prefix-caching")
	answered := 0
	eventually(t, "the cache is off", func() error {
		promised, served, err := ask()
		if err == nil {
			answered++
		}
		if promised > 0 || served > 0 {
			t.Errorf("%d tokens promised, %d served", promised, served)
		}
		if got := state(); got != "off" || answered < 10 {
			return fmt.Errorf("the cache is %s after %d answers: %w", got, answered, err)
		}
		return nil
	})
	l.awaitIdle()

	e.args = args
	restart()
	awaitPromise("with a prefix cache")
	eventually(t, "the cache is exact", func() error {
		if got := state(); got != "exact" {
			return fmt.Errorf("the cache is %s", got)
		}
		return nil
	})
}
