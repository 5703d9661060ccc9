package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// worker is one engine with the requests that run on it.
//
// Invariants: while down, inPass is false and jobs is empty, and pass is 0, so that the end of the pass that the engine was in when
// it died has no effect. epoch grows when it dies. A worker that has left the fleet is down, and its engine is nil.
type worker struct {
	number int
	name   string // in the fleets of routers
	role   fleet.Role
	node   int
	taints fleet.Taints // the node, if routers know it
	gpus   int
	cfg    engine.Config
	engine *engine.Engine
	epoch  uint64 // of the engine process
	seq    uint64 // of the next message of events; 0 after a start
	inPass bool
	pass   uint64 // of its event passEnds, while inPass
	down   bool
	jobs   map[*job]struct{}
	life   life
	// Gaps between tokens since the engine started, as vLLM's metrics count them.
	gaps    uint64
	gapTime time.Duration
}

// job is one request from its arrival to its end. With separate roles, roles.go has its second worker.
type job struct {
	engine   engine.Request // for worker
	decision *decision.Decision
	session  string
	replica  *replica
	worker   *worker // that decodes; it computes the prompt too, unless source does
	handoff  handoff
	step     *step // of a program; nil for none
	number   int
	seed     uint64
	at       time.Duration // of the arrival
	left     time.Duration // when it left the router's queue
	last     time.Duration // of the newest token
	first    time.Duration // of the first token
}

// answerTag separates the tokens of answers from the tokens of prompts.
const answerTag = 0xa5a5

// answer returns the i-th token of the answer. Bit 31 is set in tokens of answers alone, so that an answer
// never has blocks in common with another request by chance.
func (j *job) answer(i int) (uint32, bool) {
	return trace.Token(j.seed<<32|answerTag, i) | 1<<31, false
}

// slow multiplies the duration of all passes.
type slow struct {
	perfmodel.Timing
	factor float64
}

// Prefill returns the duration of a prefill.
func (s slow) Prefill(p perfmodel.Prefill) time.Duration {
	return time.Duration(float64(s.Timing.Prefill(p)) * s.factor)
}

// Decode returns the duration of a decode step.
func (s slow) Decode(d perfmodel.Decode) time.Duration {
	return time.Duration(float64(s.Timing.Decode(d)) * s.factor)
}

// WorkerName returns the name by which routers, and policies of [Config].Chooser, know the engine of that number.
func WorkerName(number int) string { return fmt.Sprintf("w%04d", number) }

// newWorker returns a worker whose engine hashes blocks with its own seed. The router must find equal blocks
// on engines whose hashes differ.
func newWorker(number int, role fleet.Role, cfg *Config, beside func() bool) (*worker, error) {
	w := &worker{number: number, name: WorkerName(number), role: role, cfg: cfg.Engine, jobs: map[*job]struct{}{}, epoch: 1}
	w.life.state = fleet.Ready
	w.gpus = cfg.GPUs
	if w.role == fleet.Prefill {
		w.gpus = cfg.PrefillGPUs
		if cfg.PrefillEngine != nil {
			w.cfg = *cfg.PrefillEngine
		}
	}
	w.cfg.HashSeed = uint64(number)
	if cfg.SharedCache {
		w.cfg.HashSeed = 0
	}
	w.cfg.Noise = cfg.Noise.noiseOf(number, cfg.Seed, beside)
	if factor, ok := cfg.Slow[number]; ok {
		w.cfg.Timing = slow{w.cfg.Timing, factor}
	}
	var err error
	w.engine, err = engine.New(w.cfg)
	return w, err
}

// settle puts a new worker on a node.
func (w *worker) settle(node int, t *Transfer) {
	w.node = node
	if t.Zones {
		w.taints = fleet.Taints(fleet.InZone.Taint(strconv.Itoa(node)) + ",")
	}
}

// member returns the worker as it is listed in the fleets of routers.
func (w *worker) member() fleet.Worker {
	m := fleet.Worker{
		Name: w.name, Model: Model, Address: fmt.Sprintf("10.%d.%d.%d:8000", w.number>>16&255, w.number>>8&255, w.number&255),
		Ranks: 1, Role: w.role, Epoch: w.epoch, KVEvents: "sim", Blocks: w.engine.Stats().Blocks,
		BlockSize: w.cfg.BlockSize, Taints: w.taints,
	}
	m.State = w.state()
	return m
}

// message is the KV events of one pass, on its way to all replicas. Messages are reused after delivery.
type message struct {
	worker *worker
	epoch  uint64
	seq    uint64
	batch  kvevent.Batch
}

// publish sends the events of a pass to all replicas. With a shared cache every engine stores the blocks
// that one has computed, and removes the blocks that the shared cache has evicted.
func (r *run) publish(w *worker, result *engine.Result) {
	shared := w.cfg.Shared
	if shared == nil {
		r.send(w, func(b *kvevent.Batch) {
			for i := range result.Events {
				b.Add(&result.Events[i])
			}
		})
		return
	}

	evicted := kvevent.Raw{Kind: kvevent.Removed, Hashes: shared.Evicted()}
	for _, other := range r.live {
		if other.down {
			continue
		}
		r.send(other, func(b *kvevent.Batch) {
			for i := range result.Events {
				if result.Events[i].Kind == kvevent.Stored {
					b.Add(&result.Events[i])
				}
			}
			if len(evicted.Hashes) > 0 {
				b.Add(&evicted)
			}
		})
	}
}

// send sends a worker's message, which fill completes.
func (r *run) send(w *worker, fill func(*kvevent.Batch)) {
	m := r.newMessage()
	m.worker = w
	m.epoch = w.epoch
	m.seq = w.seq
	w.seq++
	m.batch.Reset()
	m.batch.Seconds = float64(r.clock().UnixNano()) / 1e9
	fill(&m.batch)

	if r.cfg.EventLag == 0 {
		r.deliver(m)
		return
	}
	r.agenda.add(event{at: r.now + r.cfg.EventLag, kind: eventsCome, message: m})
}

// newMessage returns a message that was delivered, or a new one.
func (r *run) newMessage() *message {
	n := len(r.delivered)
	if n == 0 {
		return &message{}
	}
	m := r.delivered[n-1]
	r.delivered = r.delivered[:n-1]
	return m
}

// deliver applies the events of a message in every replica.
func (r *run) deliver(m *message) {
	for _, p := range r.replicas {
		p.feed.Apply(&feed.Message{Worker: m.worker.name, Epoch: m.epoch, Seq: m.seq, Batch: &m.batch}, r.clock())
	}
	r.delivered = append(r.delivered, m)
	r.settleSoon()
}

// report sends an engine's own load to all replicas, as a scrape of its metrics does.
func (r *run) report(w *worker) {
	if w.down {
		return
	}
	s := w.engine.Stats()
	for _, p := range r.replicas {
		rank, ok := p.fleet.Snapshot().Rank(w.name, 0)
		if !ok {
			continue
		}
		p.router.ObserveReport(rank, fleet.Report{
			At: r.clock(), Running: s.Running, Waiting: s.Waiting, KVUsage: float64(s.Active) / float64(max(1, s.Blocks)),
			Gaps: w.gaps, GapTime: w.gapTime, Store: fleet.Store{Used: true, Tiers: w.engine.Loads(r.clock())},
		})
	}
}

// die stops an engine and fails all its requests. It starts again after span, unless it leaves the fleet before.
func (r *run) die(w *worker, span time.Duration) error {
	if w.down || w.life.state == fleet.Starting {
		return nil
	}
	w.down = true
	w.inPass = false
	w.pass = 0
	w.gaps = 0
	w.gapTime = 0
	w.epoch++
	for _, j := range w.inOrder() {
		r.lose(j, w)
	}

	// Routers see the failed engine at once, as they do when its lease ends or Envoy reports failures.
	r.agenda.add(event{at: r.now + span, kind: workerStarts, worker: w.number})
	for _, p := range r.replicas {
		p.fleet.SetState(w.name, fleet.Down)
	}
	if r.cfg.Concurrency > 0 {
		return r.admit()
	}
	return nil
}

// inOrder returns the jobs of a worker in order of arrival, because the order of a map is random.
func (w *worker) inOrder() []*job {
	return slices.SortedFunc(maps.Keys(w.jobs), func(a, b *job) int { return a.number - b.number })
}

// lose handles the death of a worker for one of its jobs. A job fails with the worker that decodes it.
func (r *run) lose(j *job, w *worker) {
	if w != j.worker {
		r.loseSource(j)
		return
	}
	r.cancelHandoff(j)
	r.drop(j)
}

// start starts an engine again, with an empty cache.
func (r *run) start(w *worker) (err error) {
	if w.life.gone {
		return nil
	}
	w.engine, err = engine.New(w.cfg)
	if err != nil {
		return err
	}
	w.down = false
	w.life.hits = 0
	w.life.gaps = 0
	w.life.gapTime = 0
	w.seq = 0 // with the new epoch, replicas discard the old cache state
	for _, p := range r.replicas {
		if _, err := p.fleet.Put(w.member()); err != nil {
			return err
		}
	}
	return nil
}
