package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/workeragent/engine/enginesim"
)

// wire passes bytes on to an address until it is cut; then it takes new connections.
type wire struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
	all   sync.WaitGroup
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln}
	w.all.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, in, out)
			w.mu.Unlock()
			w.all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			w.all.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); w.cut(); w.all.Wait() })
	return w
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// simulate runs an engine at these ports until stop.
func (c *clinic) simulate(http, events, replay int) (stop func()) {
	c.t.Helper()
	m := c.prepared["builtin:sim"]
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	s, err := enginesim.New(enginesim.Config{
		Listen: at(http), Events: "tcp://" + at(events), Replay: "tcp://" + at(replay), ModelName: "sim", Model: m, Vocabulary: m.Tokenizer(),
		Engine: engine.Config{Timing: perfmodel.Polynomial{Speedup: 100}, HashSeed: uint64(time.Now().UnixNano())},
	})
	if err == nil {
		err = s.Listen()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = s.Run(ctx) })
	stop = sync.OnceFunc(func() { client.CloseIdleConnections(); cancel(); all.Wait() })
	c.t.Cleanup(stop)
	return stop
}

// Without an agent the router reads an engine's sockets itself. Its connection breaks while
// nothing happens, and the engine restarts in silence: neither leaves the router with knowledge
// that is stale, or of the dead, until the next event comes.
func TestSocketsHeal(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { client.CloseIdleConnections(); goleak.VerifyNone(t, ignore) })
	c := &clinic{t: t, log: &logBuffer{}}
	cfg, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: sim, path: "builtin:sim"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDecider(cfg, c.logger(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	c.router.decider = d
	http, events, replay := freePort(t), freePort(t), freePort(t)
	stop := c.simulate(http, events, replay)
	line := newWire(t, fmt.Sprintf("127.0.0.1:%d", events))
	ctx, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		_ = d.followFile(ctx, []fleet.Worker{{
			Name: "w0", Model: "sim", Address: fmt.Sprintf("127.0.0.1:%d", http), Ranks: 1, BlockSize: 16, State: fleet.Ready,
			KVEvents: "tcp://" + line.ln.Addr().String(), KVReplay: fmt.Sprintf("tcp://127.0.0.1:%d", replay),
		}})
	})
	t.Cleanup(func() { end(); all.Wait() })

	c.ready("w0")
	c.healthy("w0", "an engine that has said nothing is known exactly")
	known := c.ask("w0", "")
	c.healthy("w0", "its prompt is known", known)

	line.cut()
	c.within(heals, "the cut is noticed", func() error {
		if c.feed.Stats().Ranks[feed.Stale] == 0 && d.feed.Stats().Ranks[feed.Exact] == 1 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	c.healthy("w0", "the line was cut while nothing happened", known)
	line.cut()
	more := c.ask("w0", "")
	c.healthy("w0", "the line was cut while something happened", known, more)

	stop()
	line.cut()
	c.simulate(http, events, replay)
	c.within(heals, "nothing is believed of the new engine", func() error {
		if held, _ := c.overlap("w0", known); held > 0 {
			return fmt.Errorf("%d blocks", held)
		}
		return nil
	})
	c.healthy("w0", "the new engine, which has said nothing, is known exactly")
	c.ask("w0", known)
	c.healthy("w0", "its prompt is known", known)
	if held, _ := c.overlap("w0", more); held > 1 {
		t.Errorf("%d blocks of a prompt that only the old one held", held)
	}
}
