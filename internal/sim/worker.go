package sim

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// worker is one engine and what runs on it.
type worker struct {
	number int
	role   fleet.Role
	cfg    engine.Config
	engine *engine.Engine
	epoch  uint64 // grows with every start
	seq    uint64 // of its messages of events
	inPass bool
	down   bool
	jobs   map[*job]struct{}
	// Between tokens, since the engine started.
	gaps    uint64
	gapTime time.Duration
}

// job is one request from its arrival to its end.
type job struct {
	prefill engine.Request // for a worker that only does that
	engine  engine.Request
	id      string // of the decision, of the last one
	session string
	role    fleet.Role      // of the worker that it is decided for
	request *engine.Request // that goes there
	replica *replica
	worker  *worker
	number  int
	seed    uint64
	at      time.Duration // of its arrival
	last    time.Duration // of its last token so far
	first   time.Duration // of its first
}

// answer gives the tokens of an answer, equal to no other's.
func (j *job) answer(i int) (uint32, bool) { return trace.Token(j.seed<<32|0xa5a5, i) | 1<<31, false }

// slow makes all passes longer.
type slow struct {
	perfmodel.Timing
	factor float64
}

func (s slow) Prefill(p perfmodel.Prefill) time.Duration {
	return time.Duration(float64(s.Timing.Prefill(p)) * s.factor)
}

func (s slow) Decode(d perfmodel.Decode) time.Duration {
	return time.Duration(float64(s.Timing.Decode(d)) * s.factor)
}

func newWorker(number int, cfg Config) (*worker, error) {
	w := &worker{number: number, role: cfg.role(number), cfg: cfg.Engine, jobs: map[*job]struct{}{}, epoch: 1}
	w.cfg.HashSeed = uint64(number)
	if factor, ok := cfg.Slow[number]; ok {
		w.cfg.Timing = slow{w.cfg.Timing, factor}
	}
	var err error
	w.engine, err = engine.New(w.cfg)
	return w, err
}

// member is the worker as the fleet lists it.
func (w *worker) member() fleet.Worker {
	m := fleet.Worker{
		Name: fmt.Sprintf("w%04d", w.number), Model: model, Address: fmt.Sprintf("10.0.%d.%d:8000", w.number>>8, w.number&255),
		Ranks: 1, Role: w.role, State: fleet.Ready, Epoch: w.epoch, KVEvents: "sim", Blocks: w.engine.Stats().Blocks, BlockSize: w.cfg.BlockSize,
	}
	if w.down {
		m.State = fleet.Down
	}
	return m
}

// message is what one pass of an engine says to one replica.
type message struct {
	worker  *worker
	epoch   uint64
	seq     uint64
	batch   kvevent.Batch
	readers int // replicas that have not had it yet
}

// publish sends the events of a pass to all replicas.
func (r *run) publish(w *worker, result *engine.Result) {
	var m *message
	if n := len(r.batches); n > 0 {
		m, r.batches = r.batches[n-1], r.batches[:n-1]
	} else {
		m = &message{}
	}
	m.worker, m.epoch, m.seq, m.readers = w, w.epoch, w.seq, 1
	w.seq++
	m.batch.Reset()
	m.batch.Seconds = float64(r.clock().UnixNano()) / 1e9
	for i := range result.Events {
		m.batch.Add(&result.Events[i])
	}
	if r.cfg.EventLag == 0 {
		r.deliver(m)
		return
	}
	r.agenda.add(event{at: r.now + r.cfg.EventLag, kind: eventsCome, message: m})
}

// deliver gives a message to every replica.
func (r *run) deliver(m *message) {
	for _, p := range r.replicas {
		p.feed.Apply(&feed.Message{Worker: m.worker.member().Name, Epoch: m.epoch, Seq: m.seq, Batch: &m.batch}, r.clock())
	}
	r.batches = append(r.batches, m)
	r.settleSoon()
}

// report tells all replicas what an engine itself says of its load.
func (r *run) report(w *worker) {
	if w.down {
		return
	}
	s := w.engine.Stats()
	for _, p := range r.replicas {
		rank, ok := p.fleet.Snapshot().Rank(p.names[w.number], 0)
		if !ok {
			continue
		}
		p.router.ObserveReport(rank, fleet.Report{
			At: r.clock(), Running: s.Running, Waiting: s.Waiting, KVUsage: float64(s.Active) / float64(max(1, s.Blocks)),
			Gaps: w.gaps, GapTime: w.gapTime,
		})
	}
}

// die ends an engine with all it was doing.
func (r *run) die(w *worker, span time.Duration) error {
	if w.down {
		return nil
	}
	w.down, w.inPass = true, false
	w.gaps, w.gapTime = 0, 0
	w.epoch++
	for j := range w.jobs {
		r.inFlight--
		r.tally.errors++
		r.ended(j, Outcome{End: r.now, Failed: true})
		j.replica.router.End(j.id, r.clock())
	}
	clear(w.jobs)
	r.agenda.add(event{at: r.now + span, kind: workerStarts, worker: w.number})
	for _, p := range r.replicas {
		p.fleet.SetState(p.names[w.number], fleet.Down)
	}
	if r.cfg.Concurrency > 0 {
		return r.admit()
	}
	return nil
}

// start starts an engine again, empty.
func (r *run) start(w *worker) (err error) {
	if w.engine, err = engine.New(w.cfg); err != nil {
		return err
	}
	w.down, w.seq = false, 0
	for _, p := range r.replicas {
		if _, err := p.fleet.Put(w.member()); err != nil {
			return err
		}
	}
	return nil
}
