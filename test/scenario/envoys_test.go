package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/test/process"
)

// envoyKills is the number of times that TestSecondEnvoyServes kills an Envoy; `make test-envoys` wants 20.
var envoyKills = flag.Int("envoys.kills", 2, "how often an Envoy of two is killed")

// TestSecondEnvoyServes: of two Envoys on one port, one is killed under streams. The requests that begin when it has ended are served by
// the other one, and later by both. Then both are replaced, and clients are served meanwhile.
func TestSecondEnvoyServes(t *testing.T) {
	t.Parallel()
	g := up(t, "--workers", "2", "--envoys", "2", "--drain-time", "20s")
	g.http = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	envoyAt := func(i int) int { return childWith(t, g.up.cmd.Process.Pid, fmt.Sprintf("/gateway-%d/envoy.yaml", i)) }
	bothServe := func() error {
		if text, err := get("http://" + g.admin + "/readyz"); err != nil || strings.Contains(text, "envoy") {
			return fmt.Errorf("%s, %w", text, err)
		}
		for i := range 2 {
			if _, err := get(fmt.Sprintf("http://%s/metrics/envoy?envoy=%d", g.admin, i)); err != nil {
				return err
			}
		}
		return nil
	}

	var refused []time.Duration
	for k := range *envoyKills {
		eventually(t, "both Envoys serve", bothServe)
		var cut atomic.Int64
		streams := g.loadOf(40, func(client, _ int) error {
			if err := g.completeAnswer("sim", true, client, 30); err != nil {
				cut.Add(1)
			}
			return nil
		})
		streams.more(t, 80)
		victim := envoyAt(k % 2)
		probes := g.probe(t)
		killed := time.Now()
		if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the Envoy has ended", func() error {
			if err := syscall.Kill(victim, 0); err == nil {
				return errors.New("it is there")
			}
			return nil
		})
		for range 20 {
			if _, err := g.tryChat(t.Context(), []message{{"user", "Who serves?"}}, 1); err != nil {
				t.Errorf("a request that began after the end of one Envoy failed: %v", err)
			}
		}
		refused = append(refused, probes().Sub(killed))
		streams.stop()
		// The streams of the dead Envoy break: some 20 of 40.
		if n := cut.Load(); n > 40 {
			t.Errorf("%d streams were cut by the end of one Envoy", n)
		}
	}
	slices.Sort(refused)
	t.Logf("%d kills under 40 streams: the last refused request ended so long after the kill: median %v, longest %v; load average %s",
		len(refused), refused[len(refused)/2], refused[len(refused)-1], process.LoadAverage())

	eventually(t, "both Envoys serve", bothServe)
	before := [2]int{envoyAt(0), envoyAt(1)}
	load := g.load(4)
	load.more(t, 20)
	if err := g.up.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both Envoys are replaced", func() error {
		for i := range 2 {
			for id := range children(t, g.up.cmd.Process.Pid) {
				if id == before[i] {
					return fmt.Errorf("Envoy %d is the old one", i)
				}
			}
		}
		return bothServe()
	})
	load.more(t, 20)
	load.stop()
	// A connection that the kernel has given to an Envoy which just closes its port is reset before it has a request: one of each client at
	// most, for each Envoy.
	if n := load.failed.Load(); n > 8 {
		t.Errorf("%d of %d requests failed while Envoys were replaced, the last with %v", n, n+load.ok.Load(), load.lastError.Load())
	}
}

// probe connects again and again until the returned function is called, which returns when the last probe failed; the zero of its time
// is the begin of the probes.
func (g *gateway) probe(t *testing.T) (lastFailure func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	last := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if r, err := g.send(context.WithoutCancel(ctx), http.MethodGet, "/v1/models", nil); err != nil || r.status != http.StatusOK {
				last = time.Now()
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return func() time.Time {
		cancel()
		<-done
		return last
	}
}
