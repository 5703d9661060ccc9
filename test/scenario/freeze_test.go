package scenario

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/test/process"
)

// freezes is the number of times that TestFrozenEngines stops an engine; `make test-freezes` wants 20.
var freezes = flag.Int("freezes", 1, "how often an engine is frozen")

// TestFrozenEngines: an engine is stopped in mid-answer (SIGSTOP), and keeps its connections. It gets no new requests once it is down, and
// its streams go on at the other engines: each has the token ids and the usage of an unbroken run. When it goes on, it is ready again.
func TestFrozenEngines(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  migration: {limit: 3}
  launch: [{engine: sim, count: 3, args: {engineSpeedup: 0.5}}]
`))
	const path = "/v1/chat/completions"
	body := func(n int) string {
		return fmt.Sprintf(`{"model":"sim","stream":true,"temperature":0,"return_token_ids":true,"max_tokens":120,`+
			`"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"question %d"}]`, n)
	}
	const questions = 6
	var want [questions]streamed
	for n := range want {
		want[n] = g.readStream(t.Context(), path, body(n)+"}", nil)
		if want[n].err != nil || !want[n].done {
			t.Fatalf("%+v", want[n])
		}
	}

	var down []time.Duration
	for k := range *freezes {
		name := fmt.Sprintf("sim-%d", k%3)
		pid := childWith(t, g.up.cmd.Process.Pid, name)
		var all, begun sync.WaitGroup
		var got [questions]streamed
		for n := range got {
			begun.Add(1)
			pinned := fmt.Sprintf(`%s,"nvext":{"router":{"worker":%q}}}`, body(n), name)
			all.Go(func() { got[n] = g.readStream(t.Context(), path, pinned, begun.Done) })
		}
		begun.Wait()
		stopped := time.Now()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the frozen engine gets no requests", func() error {
			for _, r := range g.fleet() {
				if r.Worker == name && r.State == "ready" {
					return errNotYet
				}
			}
			return nil
		})
		down = append(down, time.Since(stopped))
		all.Wait()
		for n := range got {
			if !got[n].same(&want[n]) {
				t.Errorf("question %d:\n%+v\nwant\n%+v", n, got[n], want[n])
			}
		}

		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		g.await()
	}
	slices.Sort(down)
	t.Logf("%d engines were frozen under %d streams: each was down after p50 %v, p95 %v, at most %v; load average %s", len(down), questions,
		percentile(down, 50), percentile(down, 95), percentile(down, 100), process.LoadAverage())
	eventually(t, "nothing is booked", func() error {
		if n := g.metric("stator_route_bookings"); n != 0 {
			return fmt.Errorf("%g bookings", n)
		}
		return nil
	})
}

// TestFrozenWithoutMigration: without a relay, Envoy alone can end an attempt at a frozen engine, and knows nothing of its health. After
// attemptIdleTimeout it sends the requests whose answers have not begun to another engine, and breaks off the answers that have.
func TestFrozenWithoutMigration(t *testing.T) {
	t.Parallel()
	g := up(t, "--config", configFile(t, `
gateway: {hintsFrom: everyone, idleTimeout: 60s, attemptIdleTimeout: 10s}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 2, args: {engineSpeedup: 0.5}}]
`))
	const path = "/v1/chat/completions"
	body := func(n int, members string) string {
		return fmt.Sprintf(`{"model":"sim","max_tokens":200,"messages":[{"role":"user","content":"question %d"}],`+
			`"nvext":{"router":{"worker":"sim-0"}}%s}`, n, members)
	}
	var all, begun sync.WaitGroup
	var cut streamed
	begun.Add(1)
	all.Go(func() { cut = g.readStream(t.Context(), path, body(0, `,"stream":true`), begun.Done) })
	begun.Wait()
	pid := childWith(t, g.up.cmd.Process.Pid, "sim-0")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		all.Go(func() {
			r, err := g.send(t.Context(), http.MethodPost, path, []byte(body(n+1, "")))
			if err != nil || r.status != http.StatusOK {
				t.Errorf("question %d: %v, status %d: %s", n+1, err, r.status, r.body)
			}
		})
	}
	all.Wait()
	if cut.err == nil || cut.done {
		t.Errorf("the stream of the frozen engine has not broken off: %+v", cut)
	}

	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.await()
	g.assertNothingBooked()
	if g.served("retried") == 0 {
		t.Error("no request was retried")
	}
}
