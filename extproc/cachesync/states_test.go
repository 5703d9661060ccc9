package cachesync

import (
	"context"
	"flag"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/race"
)

var (
	histories   = flag.Int("states.histories", 0, "histories that TestExactMeansEqual plays; 0 is 400, or 100 with -short or the race detector")
	historySeed = flag.Uint64("states.seed", 0, "seed of its first history; 0 is random")
)

// TestExactMeansEqual plays random histories of two engines, one with an agent and one that the router reads
// itself, and of a cache outside engines, whose chunks are blocks of several sizes, against a model that knows the caches. Events are lost, doubled, swapped and garbled; engines,
// agents and routers restart; connections, answers and snapshots break; clocks and block sizes change. Whenever
// a rank is exact its index equals the engine's cache at the rank's position. After each history the faults
// end: then an exact rank is at the engine's position, and after its cache was cleared every rank is exact.
func TestExactMeansEqual(t *testing.T) {
	n := *histories
	if n == 0 {
		n = race.Fewer(100, 400)
		if testing.Short() {
			n = 100
		}
	}
	first := *historySeed
	if first == 0 {
		first = rand.Uint64() >> 1
	}

	// Some cases come up in few histories. If none has shown one of them, more are played, so that chance alone fails no run.
	var all tally
	played := 0
	for ; played < n || n >= 400 && played < 4*n && (all.Partial == 0 || all.Begun == 0 || all.Ahead == 0); played++ {
		seed := first + uint64(played)
		synctest.Test(t, func(t *testing.T) {
			h := newHistory(t, seed)
			defer h.stop()
			defer func() {
				if t.Failed() {
					t.Logf("history %d of %d: repeat it with -states.seed=%d -states.histories=1", played+1, n, seed)
				}
			}()
			h.play()
			all.add(&h.tally)
		})
		if t.Failed() {
			return
		}
	}

	t.Logf("%d histories from seed %d: %+v", played, first, all)
	if n >= 400 && (all.ExactChecks < 100*n || all.Settled < n/4 || all.Cleared < n || all.Partial == 0 || all.Begun == 0 || all.Ahead == 0) {
		t.Errorf("the histories show too little: %+v", all)
	}
}

// tally counts what histories have shown.
type tally struct {
	// ExactChecks compared an exact rank with its engine. Settled ranks were exact after the faults had ended,
	// and Cleared ones after their cache was cleared.
	ExactChecks, Settled, Cleared int
	// Partial counts snapshots of agents that had evicted blocks.
	Partial int
	// Ahead counts checks of an exact rank whose agent had missed batches itself.
	Ahead int
	// Begun counts agents that began with the cache that the agent before had saved.
	Begun int
}

func (a *tally) add(b *tally) {
	a.ExactChecks += b.ExactChecks
	a.Settled += b.Settled
	a.Cleared += b.Cleared
	a.Partial += b.Partial
	a.Begun += b.Begun
	a.Ahead += b.Ahead
}

// history is one router, an engine with an agent ("a"), one without ("d"), and an emitter ("e"). It is the syncer's transport.
type history struct {
	t   *testing.T
	rng *rand.Rand
	tally

	size   int // the router's block size
	fleet  *fleet.Fleet
	index  *kvindex.Index
	feed   *feed.Feed
	cancel context.CancelFunc
	done   sync.WaitGroup // the syncer

	mu      sync.Mutex
	receive func(*feed.Message) // guarded by mu; of the router
	agent   *agentModel         // guarded by mu
	up      bool                // guarded by mu; the bus
	back    chan struct{}       // guarded by mu

	syncer   *Syncer
	epoch    uint64
	engines  [3]*engineModel // with the agent, without, and the emitter
	sources  [3]*sourceModel
	answers  bool // replay sockets answer
	lastMark time.Time
	full     bool // the agent's index is too small for the cache
	remember int
	quiet    bool // the faults have ended
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, rng: rand.New(rand.NewPCG(seed, 0)), size: modelSize, up: true, back: make(chan struct{}), answers: true}
	h.full = h.rng.IntN(6) == 0
	h.remember = 1 + h.rng.IntN(30)

	for i := range h.engines {
		e := &engineModel{rng: h.rng, replay: h.rng.IntN(3) > 0, remember: 1 + h.rng.IntN(60), size: modelSize}
		e.garbles = h.rng.IntN(4) == 0
		if i == 2 {
			e.chunks = true
		} else if h.rng.IntN(8) == 0 {
			e.size = 2 * modelSize
		}
		e.restart()
		h.engines[i] = e
		h.sources[i] = &sourceModel{engine: e, last: -1}
	}

	h.startAgent()
	h.startRouter()
	return h
}

// workers are the workers of the fleet now.
func (h *history) workers() [3]fleet.Worker {
	w := fleet.Worker{Model: "m", Address: "10.0.0.1:8000", Ranks: 1, State: fleet.Ready, KVEvents: "tcp://10.0.0.1:5557"}
	a, d, e := w, w, w
	a.Name, a.Epoch, a.BlockSize = "a", h.epoch, h.engines[0].size
	d.Name, e.Name = "d", "e"
	return [3]fleet.Worker{a, d, e}
}

// startAgent starts an agent without knowledge, for the present process of its engine.
func (h *history) startAgent() {
	h.epoch = uint64(h.engines[0].process)
	bytes := int64(1 << 20)
	if h.full {
		bytes = 1 << 12
	}
	agent := newAgentModel(h.workers()[0], rand.New(rand.NewPCG(h.rng.Uint64(), 0)), h.remember, bytes)

	h.mu.Lock()
	agent.faults = !h.quiet
	h.agent = agent
	h.mu.Unlock()
	h.sources[0] = &sourceModel{engine: h.engines[0], consumer: agent, last: -1}
}

// startRouter starts a router without knowledge. Its own source of the second engine starts again too.
func (h *history) startRouter() {
	h.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { h.feed.RankGone(id) }})
	h.index = kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	h.feed = feed.New(feed.Config{BlockSize: func(*fleet.Worker) int { return h.size }}, h.fleet, h.index)
	h.join()
	for i := 1; i < len(h.engines); i++ {
		h.readDirectly(i)
	}

	syncer := New(Config{
		Fleet: h.fleet, Feed: h.feed, Excluded: func(w string) bool { return w != "a" }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	h.syncer = syncer
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	h.done.Go(func() { _ = syncer.Run(ctx, h) })
	synctest.Wait()
}

// readDirectly starts the router's own source of an engine or the emitter.
func (h *history) readDirectly(i int) {
	stream := &feed.Stream{Feed: h.feed, Worker: h.workers()[i].Name, Now: time.Now}
	h.sources[i] = &sourceModel{engine: h.engines[i], consumer: stream, last: -1, decoder: kvevent.Batch{Split: h.size}}
	h.engines[i].wire = nil
	h.engines[i].connection = 0
}

// join puts the workers into the router's fleet.
func (h *history) join() {
	for _, w := range h.workers() {
		if _, err := h.fleet.Put(w); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *history) stop() {
	h.cancel()
	h.done.Wait()
}

// play plays the history: its faults, the end of them, and the end of all doubts.
func (h *history) play() {
	for range 40 + h.rng.IntN(40) {
		h.act()
		h.pass(time.Duration(h.rng.IntN(700)) * time.Millisecond)
		if h.t.Failed() {
			return
		}
	}

	h.calm()
	h.pass(time.Minute)
	h.settled(func(rank int, exact bool) {
		if exact {
			h.tally.Settled++
		}
	})
	for range 4 {
		for _, e := range h.engines {
			e.publish(true)
		}
		h.pass(10 * time.Second)
	}
	h.settled(func(rank int, exact bool) {
		if h.engines[rank].size != h.size {
			return // what was stored after the cleared event is of another size
		}
		if rank == 0 && h.agent.reused {
			return // the agent took its engine for another process, and is not exact until the epoch ends
		}
		if !exact {
			h.t.Errorf("rank %d is not exact after its cache was cleared:\n%s", rank, h.feed)
		}
		h.tally.Cleared++
	})
}

// act makes one event or fault.
func (h *history) act() {
	i := h.rng.IntN(3)
	e, s := h.engines[i], h.sources[i]
	switch n := h.rng.IntN(100); {
	case n < 45:
		e.publish(n < 2)
	case n < 50 && len(e.wire) > 0: // the engine's queue is full
		if e.replay && e.wire[len(e.wire)-1].batch != nil {
			e.wire = e.wire[:len(e.wire)-1]
		}
	case n < 62:
		s.connect(e.connection == 0)
	case n < 65:
		h.restartEngine(i)
	case n < 67:
		h.stop()
		h.startRouter()
	case n < 68:
		h.restartAgent()
	case n < 71:
		e.clock = time.Duration(h.rng.IntN(200_000)-100_000) * time.Millisecond
	case n < 73:
		h.reload()
	case n < 76:
		h.setBus(!h.up)
	case n < 77:
		h.agent.save()
	case n < 79:
		h.answers = !h.answers
	case n < 90:
		h.garbleFlight(n)
	}
}

// restartEngine replaces an engine's process. An agent gives it another epoch.
func (h *history) restartEngine(i int) {
	up := h.engines[i].connection != 0
	h.engines[i].restart()
	if i > 0 {
		if up {
			h.sources[i].consumer.Connected(false)
		}
		return
	}

	h.engines[0].wire = nil
	h.startAgent()
	h.join()
}

// restartAgent replaces the agent, and leaves its engine running.
func (h *history) restartAgent() {
	h.engines[0].wire = nil
	h.engines[0].connection = 0
	saved := h.agent.saved
	h.startAgent()
	if saved == nil || !h.engines[0].replay || h.rng.IntN(4) == 0 {
		return
	}
	h.agent.begin(saved)
	h.sources[0].process, h.sources[0].last = h.engines[0].process, int(saved.Next)-1
	h.tally.Begun++
}

// reload changes the router's block size, as extproc does.
func (h *history) reload() {
	h.size = 3*modelSize - h.size
	h.feed.Forget("a", 0)
	h.feed.Forget("d", 0)

	// An emitter is read from the start, with blocks of the new size.
	if h.engines[2].connection != 0 {
		h.sources[2].connect(false)
	}
	h.feed.Forget("e", 0)
	h.readDirectly(2)
}

// setBus makes the bus come or go.
func (h *history) setBus(up bool) {
	h.mu.Lock()
	if up && !h.up {
		close(h.back)
		h.back = make(chan struct{})
	}
	h.up = up
	h.mu.Unlock()
	if !up {
		h.syncer.Disconnected()
	}
}

// garbleFlight loses, doubles or swaps a message between the agent and the router.
func (h *history) garbleFlight(n int) {
	a := h.agent
	a.mu.Lock()
	defer a.mu.Unlock()

	last := len(a.flight) - 1
	switch {
	case last < 0:
	case n < 84:
		a.flight = a.flight[:last]
	case n < 87:
		a.flight = append(a.flight, a.flight[last])
	case last > 0:
		a.flight[last], a.flight[last-1] = a.flight[last-1], a.flight[last]
	}
}

// calm ends the faults. Every connection is up from then on.
func (h *history) calm() {
	h.quiet = true
	h.answers = true
	if h.size != modelSize {
		h.reload()
	}
	h.setBus(true)
	h.agent.mu.Lock()
	h.agent.faults = false
	h.agent.mu.Unlock()
	for i, s := range h.sources {
		if h.engines[i].connection == 0 {
			s.connect(true)
		}
	}
}

// pass lets time pass, in steps after which some of what is on its way arrives.
func (h *history) pass(d time.Duration) {
	for end := time.Now().Add(d); ; {
		h.deliver()
		synctest.Wait()
		h.check()
		if h.t.Failed() || !time.Now().Before(end) {
			return
		}
		time.Sleep(min(time.Until(end), 200*time.Millisecond))
	}
}

// deliver lets some messages arrive, and marks and probes happen.
func (h *history) deliver() {
	h.lastMark = later(h.lastMark, time.Now(), func() {
		h.agent.mark()
		for i, s := range h.sources {
			if len(h.engines[i].wire) == 0 {
				s.catchUp(h.answers)
			}
		}
	})
	for _, s := range h.sources {
		for range len(s.engine.wire) {
			if !h.quiet && h.rng.IntN(5) == 0 {
				break
			}
			s.step(h.answers)
		}
	}

	for h.quiet || h.rng.IntN(5) > 0 {
		m := h.arriving()
		if m == nil {
			return
		}
		h.mu.Lock()
		receive, up := h.receive, h.up
		h.mu.Unlock()
		if receive != nil && up {
			receive(m)
		}
	}
}

// later calls do if a second has passed since last, and returns when it was called last.
func later(last, now time.Time, do func()) time.Time {
	if now.Sub(last) < time.Second {
		return last
	}
	do()
	return now
}

// arriving takes the message that arrives next at the router; nil if none is on its way.
func (h *history) arriving() *feed.Message {
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()

	if len(h.agent.flight) == 0 {
		return nil
	}
	m := *h.agent.flight[0]
	h.agent.flight = h.agent.flight[1:]
	return &m
}

// check compares every exact rank with its engine's cache at the rank's position.
func (h *history) check() {
	for i, m := range h.fleet.Snapshot().Ranks {
		if h.feed.State(m) != feed.Exact {
			continue
		}
		h.tally.ExactChecks++
		if i == 0 && h.agent.caughtUp() {
			h.tally.Ahead++
		}
		e := h.engines[i]
		s, _ := h.feed.Snapshot(m.Worker.Name, m.Worker.Epoch, 0)
		if int(s.Next) >= len(e.after) {
			h.t.Errorf("rank %s is exact at %d, and its engine has published %d batches", m.Worker.Name, s.Next, len(e.sent))
			continue
		}

		want := e.after[s.Next]
		if got := h.indexed(m.ID, e); got != want {
			h.t.Errorf("rank %s is exact at %d of %d with the blocks %b, and the engine had %b:\n%s",
				m.Worker.Name, s.Next, len(e.sent), got, want, h.feed)
		}
	}
}

// indexed returns the blocks of a rank in the router's index.
func (h *history) indexed(id fleet.RankID, e *engineModel) cacheSet {
	if e.chunks {
		return h.indexedChunks(id)
	}
	var set cacheSet
	for node, seq := range sequences {
		if h.index.IsReported(id, seq) {
			set |= 1 << node
		}
	}
	return set
}

// settled calls each for every rank, and checks that an exact one is at its engine's position.
func (h *history) settled(each func(rank int, exact bool)) {
	if m, ok := h.agent.fleet.Snapshot().Rank("a", 0); ok && h.agent.index.Evicted(m.ID) {
		h.tally.Partial++
	}
	for i, m := range h.fleet.Snapshot().Ranks {
		exact := h.feed.State(m) == feed.Exact
		s, _ := h.feed.Snapshot(m.Worker.Name, m.Worker.Epoch, 0)
		if sent := len(h.engines[i].sent); exact && int(s.Next) != sent {
			h.t.Errorf("rank %s is exact at %d, and its engine has published %d batches", m.Worker.Name, s.Next, sent)
		}
		each(i, exact)
	}
}

// SubscribeEvents is that of Transport, as all methods below.
func (h *history) SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error {
	h.mu.Lock()
	h.receive = apply
	h.mu.Unlock()
	<-ctx.Done()
	return nil
}

// answering returns the agent of an epoch; nil if it does not answer.
func (h *history) answering(epoch uint64) *agentModel {
	h.mu.Lock()
	defer h.mu.Unlock()

	if !h.up || h.agent.worker.Epoch != epoch {
		return nil
	}
	return h.agent
}

func (h *history) Replay(ctx context.Context, _ string, epoch uint64, _ int, from uint64, apply func(*feed.Message)) (feed.Position, error) {
	if a := h.answering(epoch); a != nil {
		return a.answerReplay(ctx, from, apply)
	}
	return feed.Position{}, errModel
}

func (h *history) Snapshot(
	ctx context.Context, _ string, epoch uint64, _ int, admit func(ctx context.Context, size int) error,
) (*feed.Snapshot, error) {
	a := h.answering(epoch)
	if a == nil {
		return nil, errModel
	}
	s, err := a.answerSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s, admit(ctx, len(s.Dump))
}

func (h *history) Connected() bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.up
}

func (h *history) Back() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.back
}
