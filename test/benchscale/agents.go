package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
)

// serve runs the server of the bus, and prints its URL.
func serve(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "benchscale-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: -1, Dir: dir})
	if err != nil {
		return err
	}
	defer server.Close()

	if _, err := fmt.Fprintln(out, server.URL()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// join connects a role to the bus.
func join(ctx context.Context, o *options) (*bus.Bus, error) {
	return bus.Connect(ctx, bus.Config{
		URL: o.url, Cluster: "scale", LeaseTTL: 30 * time.Second, Name: o.role, Intakes: o.intakes,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}

// agents are the agents of all nodes. They know the caches of their engines, as real ones do.
type agents struct {
	*knowledge
	rate int
}

// node is one agent.
type node struct {
	agents  *agents
	engines []*remembering
	events  *bus.EventWriter
}

// remembering is an engine whose newest batches its agent remembers.
type remembering struct {
	*engine

	mu    sync.Mutex
	first uint64   // guarded by mu; the number of the oldest remembered batch
	past  [][]byte // guarded by mu
	id    uint64   // guarded by mu; of the last snapshot
	last  *feed.Snapshot
}

// maxPast is the number of batches that an agent remembers.
const maxPast = 10_000

// runAgents fills the caches, prints "ready", and publishes until the first line of in, or its end.
func runAgents(ctx context.Context, o *options, in io.Reader, out io.Writer) error {
	b, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer b.Close()

	a := &agents{knowledge: newKnowledge(), rate: o.rate}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	var nodes []*node
	for i := range o.live {
		if i%workersPerNode == 0 {
			n := &node{agents: a, events: b.EventWriter(fmt.Sprintf("node-%d", i/workersPerNode))}
			nodes = append(nodes, n)
			all.Go(func() { n.events.Run(ctx) })
		}
		n := nodes[len(nodes)-1]
		e := &remembering{engine: newEngine(i, o.blocks)}
		n.engines = append(n.engines, e)
		if err := a.serve(ctx, b, e, o.blocks, &all); err != nil {
			return err
		}
	}

	lines := bufio.NewScanner(in)
	fmt.Fprintln(out, "ready")
	running, pause := context.WithCancel(ctx)
	var publishing sync.WaitGroup
	for _, n := range nodes {
		publishing.Go(func() { n.publishBatches(running) })
	}
	lines.Scan()
	pause()
	publishing.Wait()
	return nil
}

// serve fills an engine's cache, and serves its lease, its replays and its snapshots until ctx ends.
func (a *agents) serve(ctx context.Context, b *bus.Bus, e *remembering, blocks int, all *sync.WaitGroup) error {
	if _, err := a.fleet.Put(e.worker); err != nil {
		return err
	}
	e.fill(blocks, func(m *feed.Message) { a.feed.Apply(m, time.Now()) })
	e.first = e.seq

	w := e.worker
	all.Go(func() { _ = b.HoldWorker(ctx, bus.Claim{Name: w.Name, Current: func() fleet.Worker { return w }}) })
	all.Go(func() { _ = b.ServeReplay(ctx, w.Name, w.Epoch, e.replay) })
	all.Go(func() {
		_ = b.ServeSnapshots(ctx, w.Name, w.Epoch, func(_ int, id uint64) *feed.Snapshot { return a.snapshot(e, id) })
	})
	return nil
}

// markEvery is the interval at which an agent publishes a mark of each rank.
const markEvery = time.Second

// tick is the interval at which an agent's engines publish.
const tick = 5 * time.Millisecond

// publishBatches publishes the batches of a node's engines, at their rate, until ctx ends.
func (n *node) publishBatches(ctx context.Context) {
	began := time.Now()
	marked := began
	ticker := time.NewTicker(tick)
	defer ticker.Stop()

	for done := 0; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for due := int(now.Sub(began).Seconds() * float64(n.agents.rate)); done < due; done++ {
				for _, e := range n.engines {
					n.publish(e)
				}
			}
			if now.Sub(marked) >= markEvery {
				marked = now
				for _, e := range n.engines {
					e.mark(n.events)
				}
			}
		}
	}
}

// publish publishes one batch of an engine.
func (n *node) publish(e *remembering) {
	e.mu.Lock()
	defer e.mu.Unlock()

	m := e.next(float64(time.Now().UnixNano()) / 1e9)
	n.agents.feed.Apply(m, time.Now())
	data := bus.EncodeBatch(m)
	e.past = append(e.past, data)
	if len(e.past) > maxPast {
		e.past = e.past[1:]
		e.first++
	}
	_ = n.events.Add(data) // a batch that the bus does not take is a gap, which routers count
}

// mark publishes the number of the next batch.
func (e *remembering) mark(events *bus.EventWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()

	_ = events.Add(bus.EncodeBatch(&feed.Message{Worker: e.worker.Name, Epoch: e.worker.Epoch, Seq: e.seq, Mark: true, State: feed.Exact}))
}

// replay returns a page of the remembered batches.
func (e *remembering) replay(_ int, from uint64, room int) (page [][]byte, end feed.Position) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for i := max(from, e.first); i < e.seq && room > 0; i++ {
		data := e.past[i-e.first]
		page = append(page, data)
		room -= len(data)
	}
	return page, feed.Position{Epoch: e.worker.Epoch, Next: e.seq, State: feed.Exact}
}

// snapshot returns a snapshot of an engine's cache.
func (a *agents) snapshot(e *remembering, id uint64) *feed.Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()

	if id != 0 {
		if e.last == nil || e.last.ID != id {
			return nil
		}
		return e.last
	}
	s, ok := a.feed.Snapshot(e.worker.Name, e.worker.Epoch, 0)
	if !ok {
		return nil
	}
	e.id++
	s.ID = e.id
	e.last = &s
	return e.last
}
