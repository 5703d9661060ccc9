package cachesync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// network is a transport in memory between agents and one router.
type network struct {
	mu      sync.Mutex
	up      bool
	back    chan struct{} // closed and replaced by each reconnection
	agents  map[string]*agent
	receive func(*feed.Message) // of the router; nil before it subscribes
}

// agent is guarded by network.mu. It publishes the batches of one engine with one rank, and mirrors its cache.
type agent struct {
	name      string
	epoch     uint64
	batches   []feed.Message // since the epoch began
	remember  int            // how many of the newest batches a replay has; 0 is all
	silent    bool           // it neither publishes marks nor answers
	slow      bool           // it answers after a second
	detached  bool           // it has no connection to its engine
	replays   int            // answered
	snapshots int            // made; -1 for an agent that makes none

	fleet *fleet.Fleet
	feed  *feed.Feed
}

func newNetwork() *network {
	return &network{up: true, back: make(chan struct{}), agents: map[string]*agent{}}
}

// join starts an engine under the name of a worker.
func (n *network) join(w fleet.Worker, remember int) *agent {
	n.mu.Lock()
	defer n.mu.Unlock()

	a := &agent{name: w.Name, epoch: w.Epoch, remember: remember, fleet: fleet.New(fleet.Hooks{})}
	a.feed = feed.New(feed.Config{}, a.fleet, kvindex.New(kvindex.Config{}))
	if _, err := a.fleet.Put(w); err != nil {
		panic(err)
	}
	a.connect(true)
	n.agents[w.Name] = a
	return a
}

// connect makes or breaks the agent's connection to its engine, which has a replay socket.
func (a *agent) connect(up bool) {
	a.detached = !up
	stream := feed.Stream{Feed: a.feed, Worker: a.name, Epoch: a.epoch, Now: time.Now}
	stream.Connected(up)
	if up {
		stream.CaughtUp(uint64(len(a.batches)))
	}
}

// publish numbers a batch of an agent's engine. It is not sent yet.
func (n *network) publish(worker string, b *kvevent.Batch) *feed.Message {
	n.mu.Lock()
	defer n.mu.Unlock()

	a := n.agents[worker]
	m := feed.Message{Worker: a.name, Epoch: a.epoch, Seq: uint64(len(a.batches)), Batch: b}
	a.batches = append(a.batches, m)
	a.feed.Apply(&m, time.Now())
	m.State = a.state()
	a.batches[len(a.batches)-1] = m
	return &m
}

// position is the agent's, for marks and replays.
func (a *agent) position() feed.Position {
	return feed.Position{Epoch: a.epoch, Next: uint64(len(a.batches)), State: a.state()}
}

// state is the rank's state at the agent.
func (a *agent) state() feed.State {
	m, _ := a.fleet.Snapshot().Rank(a.name, 0)
	return a.feed.State(m)
}

// send delivers a message to the router, unless the network is down.
func (n *network) send(m *feed.Message) {
	n.mu.Lock()
	up, receive := n.up, n.receive
	n.mu.Unlock()
	if up && receive != nil {
		receive(m)
	}
}

// sendMarks publishes the marks of all agents, once.
func (n *network) sendMarks() {
	n.mu.Lock()
	var marks []feed.Message
	for _, a := range n.agents {
		if !a.silent {
			marks = append(marks, feed.Message{Worker: a.name, Epoch: a.epoch, Seq: uint64(len(a.batches)), Mark: true, State: a.state()})
		}
	}
	n.mu.Unlock()
	for i := range marks {
		n.send(&marks[i])
	}
}

func (n *network) SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error {
	n.mu.Lock()
	n.receive = apply
	n.mu.Unlock()
	<-ctx.Done()
	return nil
}

// answering returns the agent of a worker. The error is that of a request without an answer, which
// takes as long as on the bus.
func (n *network) answering(ctx context.Context, worker string) (*agent, error) {
	n.mu.Lock()
	a := n.agents[worker]
	answers := n.up && !a.silent
	pause := 2 * time.Second
	if answers && a.slow {
		pause = time.Second
	}
	n.mu.Unlock()
	if answers && pause != time.Second {
		return a, nil
	}

	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !answers {
		return nil, errors.New("its agent does not answer")
	}
	return a, nil
}

func (n *network) Replay(
	ctx context.Context, worker string, _ uint64, _ int, from uint64, apply func(*feed.Message),
) (feed.Position, error) {
	a, err := n.answering(ctx, worker)
	if err != nil {
		return feed.Position{}, fmt.Errorf("request a replay from %s: %w", worker, err)
	}

	n.mu.Lock()
	batches := slices.Clone(a.batches)
	position := a.position()
	a.replays++
	n.mu.Unlock()
	oldest := 0
	if a.remember > 0 {
		oldest = max(0, len(batches)-a.remember)
	}
	for i := max(oldest, int(from)); i < len(batches); i++ {
		apply(&batches[i])
	}
	return position, nil
}

func (n *network) Snapshot(
	ctx context.Context, worker string, _ uint64, rank int, admit func(context.Context, int) error,
) (*feed.Snapshot, error) {
	a, err := n.answering(ctx, worker)
	if err != nil {
		return nil, fmt.Errorf("request a snapshot from %s: %w", worker, err)
	}

	s, ok := n.makeSnapshot(a, rank)
	if !ok {
		return nil, fmt.Errorf("request a snapshot from %s: %w", worker, feed.ErrNoSnapshot)
	}
	if err := admit(ctx, len(s.Dump)); err != nil {
		return nil, err
	}
	return &s, nil
}

func (n *network) makeSnapshot(a *agent, rank int) (feed.Snapshot, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if a.snapshots < 0 {
		return feed.Snapshot{}, false
	}
	a.snapshots++
	return a.feed.Snapshot(a.name, a.epoch, rank)
}

func (n *network) Connected() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up
}

func (n *network) Back() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.back
}

// set takes the network down, or up again.
func (n *network) set(up bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if up && !n.up {
		close(n.back)
		n.back = make(chan struct{})
	}
	n.up = up
}
