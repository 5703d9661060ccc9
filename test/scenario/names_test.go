package scenario

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// startListedParts runs extproc, xds and an Envoy over the workers of the file, which no bus or agent knows. Each line of
// the list describes one worker.
func startListedParts(t *testing.T, workers ...string) *parts {
	t.Helper()
	return startListedPartsWith(t, "", workers...)
}

// startListedPartsWith is startListedParts with further keys of the gateway, each after a comma.
func startListedPartsWith(t *testing.T, keys string, workers ...string) *parts {
	t.Helper()
	listen := freeAddress(t)
	p := &parts{
		gateway:   &gateway{t: t, url: "http://" + listen},
		extprocAt: freeAddress(t), xdsAt: freeAddress(t), extprocAdmin: freeAddress(t),
	}
	p.gateway.admin = p.extprocAdmin
	text := fmt.Sprintf("gateway: {listen: %q, decisionTimeout: 2s%s}\nmodels:\n- name: sim\n  path: \"builtin:sim\"\n  workers:\n", listen, keys)
	for _, w := range workers {
		text += "  - {engine: sim, " + w + "}\n"
	}
	p.file = configFile(t, text)

	p.startEnvoy()
	p.startExtProc()
	p.startXDS()
	p.await()
	return p
}

// atLocalhost returns an address with the name of the host instead of its IP.
func atLocalhost(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return "localhost:" + port
}

// TestWorkersWithNames: a worker that is listed by a name is picked and served at its IP, and its KV events are read there. One
// whose name does not resolve is not ready, with the reason, until the file has another name.
func TestWorkersWithNames(t *testing.T) {
	t.Parallel()
	a, b := freeAddress(t), freeAddress(t)
	events, replay := freeAddress(t), freeAddress(t)
	start(t, "sim", "--name", "a", "--listen-address", a, "--log-level", "warn", "--kv-events", "tcp://"+events, "--kv-replay", "tcp://"+replay)
	start(t, "sim", "--name", "b", "--listen-address", b, "--log-level", "warn")
	const missing = "no-such-engine.invalid:8000"
	p := startListedParts(t,
		fmt.Sprintf("name: a, address: %q, kvEvents: %q, kvReplay: %q", atLocalhost(t, a), "tcp://"+atLocalhost(t, events), "tcp://"+atLocalhost(t, replay)),
		fmt.Sprintf("name: b, address: %q", missing))
	if out, err := exec.Command(binary, "validate", "--config", p.file).CombinedOutput(); err != nil || strings.Contains(string(out), "resolve") {
		t.Errorf("validate: %v\n%s", err, out)
	}

	type row struct {
		Worker, State, Address, Why string
		CacheState                  string `json:"cache_state"`
	}
	await := func(want ...row) {
		t.Helper()
		eventually(t, "the fleet is as wanted", func() error {
			var page struct{ Ranks []row }
			p.page("/debug/fleet", &page)
			for i, got := range page.Ranks {
				w := want[i]
				same := got.Worker == w.Worker && got.State == w.State && got.Address == w.Address && got.CacheState == w.CacheState
				if !same || !strings.Contains(got.Why, w.Why) {
					return fmt.Errorf("it has %+v", got)
				}
			}
			return nil
		})
	}
	first := row{Worker: "a", State: "ready", Address: a, CacheState: "exact"}
	await(first, row{Worker: "b", State: "starting", Address: missing, Why: "its name no-such-engine.invalid does not resolve: ", CacheState: "none"})

	for i := range 10 {
		r := p.chat([]message{{"user", fmt.Sprintf("question %d", i)}}, 1)
		if r.decision == "" {
			continue // before Envoy has found the router healthy
		}
		if d := p.decision(r.decision); d.Worker != "a" || d.Address != a {
			t.Errorf("request %d was picked for %s at %s", i, d.Worker, d.Address)
		}
	}

	text, err := os.ReadFile(p.file)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), missing, atLocalhost(t, b), 1))
	if err := os.WriteFile(p.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	await(first, row{Worker: "b", State: "ready", Address: b, CacheState: "none"})
	eventually(t, "Envoy has both workers", func() error {
		if n := p.poolStat("membership_healthy"); n != 2 {
			return fmt.Errorf("it has %d", n)
		}
		return nil
	})

	l := p.load(8)
	picked := map[string]int{}
	eventually(t, "both are picked", func() error {
		r, err := p.tryChat(t.Context(), []message{{"user", fmt.Sprint("one more question ", picked)}}, 1)
		if err != nil || r.decision == "" {
			return orNotYet(err)
		}
		picked[p.decision(r.decision).Worker]++
		if picked["a"] == 0 || picked["b"] == 0 {
			return fmt.Errorf("picked: %v", picked)
		}
		return nil
	})
	l.more(t, 100)
	l.stop()
	if n := l.failed.Load(); n > 0 {
		t.Errorf("%d requests failed: %v", n, l.lastError.Load())
	}
	if n := p.served("misdirected"); n > 0 {
		t.Errorf("%d requests were served at another address than picked", n)
	}
	p.assertNothingBooked()
}
