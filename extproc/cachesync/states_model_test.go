package cachesync

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// The model of TestExactMeansEqual: an engine that knows its own cache, a source that reads its socket as
// kvsource does, and an agent that relays as workeragent does.

// A block of the model is a node of a tree of three levels, in which each node has three children.
const (
	modelNodes = 3 + 9 + 27
	modelSize  = 16 // tokens in a block
)

// cacheSet is a set of nodes, one bit each.
type cacheSet uint64

// path returns the nodes from a root to a leaf: those of the chain that the leaf ends.
func path(leaf int) [3]int { return [3]int{leaf / 9, 3 + leaf/3, 12 + leaf} }

// content is the content hash of a node. Siblings differ, and so do the children of different parents.
func content(node int) blockhash.Block { return blockhash.Block(node + 1) }

// sequences are the sequence hashes of all nodes.
var sequences = func() (all [modelNodes]blockhash.Sequence) {
	for leaf := range 27 {
		nodes := path(leaf)
		chain := blockhash.Chain(nil, []blockhash.Block{content(nodes[0]), content(nodes[1]), content(nodes[2])})
		for i, node := range nodes {
			all[node] = chain[i]
		}
	}
	return all
}()

// engineModel is one engine process after another.
type engineModel struct {
	rng     *rand.Rand
	process int // its number
	clock   time.Duration
	cache   cacheSet
	// sent are the batches of the process, and after[n] its cache after n of them.
	sent  []*kvevent.Batch
	after []cacheSet
	// replay is false for an engine without a replay socket, which otherwise has the newest remember batches.
	replay   bool
	remember int
	size     int  // of the blocks in events
	garbles  bool // events are not readable at times
	chunks   bool // it is an emitter, with LMCache's messages
	// wire are the batches that the source has not read yet, over the connection with the number connection.
	wire       []wireBatch
	connection int // 0 without one
	connected  int // how many there have been
}

type wireBatch struct {
	connection int // of a batch, or a new one if batch is nil
	process    int
	seq        int
	batch      *kvevent.Batch
}

// restart replaces the process by one with an empty cache. Its connection breaks.
func (e *engineModel) restart() {
	e.process++
	e.cache = 0
	e.sent = nil
	e.after = []cacheSet{0}
	e.connection = 0
}

// publish changes the cache at random, or first empties it, and publishes that. A garbled batch lacks its events.
func (e *engineModel) publish(empty bool) {
	b := &kvevent.Batch{Seconds: float64((time.Duration(time.Now().UnixNano()) + e.clock).Microseconds()) / 1e6}
	if empty {
		e.cache = 0
		b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Cleared})
	}
	for range e.rng.IntN(4) {
		nodes := path(e.rng.IntN(27))
		if e.rng.IntN(2) == 0 {
			event := kvevent.Event{Kind: kvevent.Stored, BlockSize: e.size}
			for _, n := range nodes {
				e.cache |= 1 << n
				event.Hashes = append(event.Hashes, kvevent.EngineHash(n+1))
				event.Blocks = append(event.Blocks, content(n))
			}
			b.Events = append(b.Events, event)
			continue
		}

		n := nodes[e.rng.IntN(3)]
		e.cache &^= 1 << n
		b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{kvevent.EngineHash(n + 1)}})
	}
	if e.garbles && !empty && e.rng.IntN(12) == 0 {
		b.Events = nil
		b.Unknown = 1
	}

	if e.connection != 0 {
		e.wire = append(e.wire, wireBatch{connection: e.connection, process: e.process, seq: len(e.sent), batch: b})
	}
	e.sent = append(e.sent, b)
	e.after = append(e.after, e.cache)
}

// consumer is kvsource.Consumer, which this package does not import.
type consumer interface {
	Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool)
	Restarted()
	CaughtUp(next uint64) (resume uint64, gap bool)
	Connected(up bool)
}

// sourceModel calls a consumer as the table of package kvsource describes.
type sourceModel struct {
	engine   *engineModel
	consumer consumer
	// last is the message accepted last: its process and its number; -1 without one.
	process    int
	last       int
	identified bool
	keepLast   bool          // last is of an earlier connection, and the process of this one is not known
	first      bool          // no live message of the connection was read yet
	replayed   int           // messages below it came by a replay on this connection
	decoder    kvevent.Batch // of an emitter's messages
}

// connect breaks the connection if there is one, and else makes one.
func (s *sourceModel) connect(up bool) {
	e := s.engine
	if !up {
		e.connection = 0
		s.consumer.Connected(false)
		return
	}
	e.connected++
	e.connection = e.connected
	e.wire = append(e.wire, wireBatch{connection: e.connection})
}

// step reads one thing from the wire. Replays fail if answers is false.
func (s *sourceModel) step(answers bool) {
	e := s.engine
	if len(e.wire) == 0 {
		return
	}
	m := e.wire[0]
	e.wire = e.wire[1:]
	if m.batch == nil {
		s.identified = false
		s.keepLast = s.last >= 0 && e.replay
		s.first = true
		s.replayed = 0
		if e.connection == m.connection {
			s.consumer.Connected(true)
			s.catchUp(answers)
		}
		return
	}

	if !s.identified && e.connection == m.connection {
		s.catchUp(answers)
	}
	switch {
	case !s.identified && s.first && s.last >= 0 && m.seq <= s.last:
		s.changed()
	case m.seq < s.replayed:
		return
	}
	s.first = false
	resume, gap := s.deliver(m.process, m.seq, m.batch)
	if gap && e.connection == m.connection && e.replay && answers {
		if !s.identified {
			s.catchUp(true)
		} else {
			s.fetch(resume)
		}
	}
}

func (s *sourceModel) changed() {
	s.last = -1
	s.keepLast = false
	s.replayed = 0
	s.consumer.Restarted()
}

// catchUp asks the replay socket for everything after the last message accepted, or for everything if the
// process is another one or no longer has that message.
func (s *sourceModel) catchUp(answers bool) {
	e := s.engine
	if !e.replay || !answers || e.connection == 0 {
		return
	}

	from := s.last + 1
	if s.last >= 0 && (s.process != e.process || s.last < len(e.sent)-e.remember) {
		s.changed()
		from = 0
	}
	s.keepLast = false
	if !s.fetch(uint64(from)) {
		return
	}
	s.identified = true
	if resume, gap := s.consumer.CaughtUp(uint64(s.last + 1)); gap && s.fetch(resume) {
		s.consumer.CaughtUp(uint64(s.last + 1))
	}
}

// fetch delivers the batches from a number on that the engine remembers. It returns false after a gap.
func (s *sourceModel) fetch(from uint64) bool {
	e := s.engine
	for seq := max(int(from), len(e.sent)-e.remember, 0); seq < len(e.sent); seq++ {
		if _, gap := s.deliver(e.process, seq, e.sent[seq]); gap {
			return false
		}
		s.replayed = seq + 1
	}
	return true
}

func (s *sourceModel) deliver(process, seq int, b *kvevent.Batch) (resume uint64, gap bool) {
	resume, gap = s.consumer.Batch(uint64(seq), s.decoded(b))
	if !gap && !s.keepLast {
		s.last = seq
		s.process = process
	}
	return resume, gap
}

// agentModel relays the events of an engine, and is the transport of a syncer. It mirrors the cache in a real
// feed and index.
type agentModel struct {
	worker fleet.Worker
	fleet  *fleet.Fleet
	index  *kvindex.Index
	feed   *feed.Feed

	mu       sync.Mutex
	rng      *rand.Rand      // guarded by mu
	next     uint64          // guarded by mu
	past     []*feed.Message // guarded by mu
	remember int
	used     uint64          // guarded by mu; see package workeragent
	reused   bool            // guarded by mu
	faults   bool            // guarded by mu; answers fail at random
	flight   []*feed.Message // guarded by mu; published and not received
	shared   *feed.Snapshot  // guarded by mu; the last snapshot made
	saved    *feed.Snapshot  // guarded by mu; for the next agent
}

// save keeps the cache for the next agent if it is exact, as package workeragent does.
func (a *agentModel) save() {
	a.mu.Lock()
	defer a.mu.Unlock()

	if s, ok := a.feed.Snapshot(a.worker.Name, a.worker.Epoch, 0); ok && s.Complete && s.Next > 0 && a.state() == feed.Exact {
		a.saved = &s
	}
}

// begin fills the mirror with the cache that the agent before it has saved.
func (a *agentModel) begin(s *feed.Snapshot) {
	if err := a.feed.Restore(s, time.Now()); err != nil {
		panic(err)
	}
	a.next, a.saved = s.Next, s
}

func newAgentModel(w fleet.Worker, rng *rand.Rand, remember int, indexBytes int64) *agentModel {
	a := &agentModel{worker: w, rng: rng, remember: remember, faults: true}
	a.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { a.feed.RankGone(id) }})
	a.index = kvindex.New(kvindex.Config{MaxBytes: indexBytes})
	a.feed = feed.New(feed.Config{}, a.fleet, a.index)
	if _, err := a.fleet.Put(w); err != nil {
		panic(err)
	}
	return a
}

func (a *agentModel) stream() *feed.Stream {
	return &feed.Stream{Feed: a.feed, Worker: a.worker.Name, Epoch: a.worker.Epoch, Now: time.Now}
}

func (a *agentModel) state() feed.State {
	m, _ := a.fleet.Snapshot().Rank(a.worker.Name, 0)
	state := a.feed.State(m)
	if state == feed.Exact && (a.reused || a.next < a.used) {
		return feed.Stale
	}
	return state
}

func (a *agentModel) caughtUp() bool {
	m, _ := a.fleet.Snapshot().Rank(a.worker.Name, 0)
	return a.feed.State(m) == feed.Stale && a.feed.CaughtUp(m) && !a.reused && a.next >= a.used
}

func (a *agentModel) Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	result := a.stream().Apply(seq, b)
	if result.Restarted {
		a.startAgain()
	}
	if result.Verdict != feed.Applied {
		return result.Resume, result.Verdict == feed.Missing
	}
	a.next = seq + 1
	a.reused = a.reused || seq < a.used
	m := &feed.Message{Worker: a.worker.Name, Epoch: a.worker.Epoch, Seq: seq, State: a.state(), CaughtUp: a.caughtUp(), Batch: b}
	a.past = append(a.past, m)
	a.past = a.past[max(0, len(a.past)-a.remember):]
	a.flight = append(a.flight, m)
	return 0, false
}

func (a *agentModel) startAgain() {
	a.used = max(a.used, a.next)
	a.next = 0
	a.past = nil
}

func (a *agentModel) Restarted() {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.stream().Restarted()
	a.startAgain()
}

func (a *agentModel) CaughtUp(next uint64) (resume uint64, gap bool) {
	resume, gap = a.stream().CaughtUp(next)
	a.mark()
	return resume, gap
}

func (a *agentModel) Connected(up bool) {
	a.stream().Connected(up)
	a.mark()
}

// mark publishes the agent's position.
func (a *agentModel) mark() {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.flight = append(a.flight, &feed.Message{
		Worker: a.worker.Name, Epoch: a.worker.Epoch, Seq: a.next, Mark: true, State: a.state(), CaughtUp: a.caughtUp(),
	})
}

var errModel = errors.New("the agent does not answer")

// delay waits as long as an answer takes. It returns false if the answer is lost.
func (a *agentModel) delay(ctx context.Context) bool {
	a.mu.Lock()
	lost := a.faults && a.rng.IntN(6) == 0
	wait := time.Duration(a.rng.IntN(300)) * time.Millisecond
	a.mu.Unlock()

	if lost {
		wait = 2 * time.Second
	}
	select {
	case <-time.After(wait):
		return !lost
	case <-ctx.Done():
		return false
	}
}

// answerReplay is Transport.Replay. The answer may break off.
func (a *agentModel) answerReplay(ctx context.Context, from uint64, apply func(*feed.Message)) (feed.Position, error) {
	if !a.delay(ctx) {
		return feed.Position{}, errModel
	}

	a.mu.Lock()
	past := append([]*feed.Message(nil), a.past...)
	position := feed.Position{Epoch: a.worker.Epoch, Next: a.next, State: a.state(), CaughtUp: a.caughtUp()}
	breaks := len(past)
	if a.faults && a.rng.IntN(6) == 0 {
		breaks = a.rng.IntN(len(past) + 1)
	}
	a.mu.Unlock()

	for i, m := range past {
		if i == breaks {
			return feed.Position{}, errModel
		}
		if m.Seq >= from {
			copied := *m
			apply(&copied)
		}
	}
	a.delay(ctx) // the position may be old when it arrives
	return position, nil
}

// answerSnapshot is Transport.Snapshot. The snapshot may be an old one, or garbled.
func (a *agentModel) answerSnapshot(ctx context.Context) (*feed.Snapshot, error) {
	if !a.delay(ctx) {
		return nil, errModel
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shared != nil && a.rng.IntN(3) == 0 {
		return a.shared, nil
	}
	s, ok := a.feed.Snapshot(a.worker.Name, a.worker.Epoch, 0)
	if !ok {
		return nil, feed.ErrNoSnapshot
	}
	if a.faults && a.rng.IntN(8) == 0 {
		s.Dump = []byte("garbled")
		return &s, nil
	}
	a.shared = &s
	return &s, nil
}
