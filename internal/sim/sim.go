package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// epoch is the moment 0 of every run.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// Run plays arrivals, which must be in order, and returns what came of them. An error says what
// is wrong with the configuration, or with an arrival; it is what next returned, where next
// failed.
func Run(cfg Config, next trace.Source) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure simulation: %w", err)
	}
	r, err := newRun(cfg.withDefaults(), next)
	if err != nil {
		return nil, fmt.Errorf("configure simulation: %w", err)
	}
	if err := r.play(); err != nil {
		return nil, err
	}
	return r.result(), nil
}

// run is one simulation at work.
type run struct {
	cfg      Config
	next     trace.Source
	now      time.Duration
	agenda   agenda
	workers  []*worker
	replicas []*replica
	turn     int // which replica takes the next request
	rng      *rand.Rand

	first    time.Duration // of the first arrival, as the trace counts
	began    bool
	waiting  *trace.Arrival // read, and not yet due
	dry      bool           // there are no more arrivals
	inFlight int
	prompts  [][]uint32 // of requests that are done
	batches  []*message
	settling bool // settles is on the agenda
	readied  []readied
	tally    tally
}

func newRun(cfg Config, next trace.Source) (*run, error) {
	r := &run{cfg: cfg, next: next, rng: rand.New(rand.NewPCG(cfg.Seed, 0))}
	for i := range cfg.engines() {
		w, err := newWorker(i, cfg)
		if err != nil {
			return nil, err
		}
		r.workers = append(r.workers, w)
	}
	for i := range cfg.Replicas {
		p, err := newReplica(i, cfg, r.workers)
		if err != nil {
			return nil, err
		}
		r.replicas = append(r.replicas, p)
	}
	r.tally.init(cfg.engines())
	return r, nil
}

// play works off the agenda until no request is left.
func (r *run) play() error {
	if err := r.read(); err != nil {
		return err
	}
	for _, x := range r.cfg.Restarts {
		r.agenda.add(event{at: x.At, kind: workerDies, worker: x.Worker, span: x.After})
	}
	if r.cfg.ReportEvery > 0 {
		r.agenda.add(event{at: r.cfg.ReportEvery, kind: reports})
	}
	if err := r.admit(); err != nil {
		return err
	}
	for steps := 0; !r.done(); steps++ {
		if steps%1024 == 0 && r.cfg.Stopped != nil && r.cfg.Stopped() {
			r.tally.interrupted = true
			return nil
		}
		e, ok := r.agenda.take()
		if !ok {
			return errors.New("simulate: requests are left and nothing will happen")
		}
		r.now = e.at
		if err := r.handle(&e); err != nil {
			return err
		}
		if err := r.resume(); err != nil {
			return err
		}
	}
	return nil
}

// readied is a request that has waited for its decision.
type readied struct {
	job *job
	d   *route.Decision
}

func (r *run) done() bool { return r.dry && r.waiting == nil && r.inFlight == 0 }

// read reads the next arrival, if there is one.
func (r *run) read() error {
	if r.dry {
		return nil
	}
	a, ok, err := r.next()
	if err != nil || !ok {
		r.dry = true
		return err
	}
	if !r.began {
		r.first, r.began = a.At, true
	}
	a.At = time.Duration(float64(a.At-r.first) / r.cfg.ArrivalSpeedup)
	r.waiting = &a
	return nil
}

// admit puts the next arrival on the agenda: when it is due, or, in a closed loop, as soon as
// there is room.
func (r *run) admit() error {
	if r.cfg.Concurrency == 0 {
		if r.waiting != nil {
			r.agenda.add(event{at: max(r.now, r.waiting.At), kind: arrival})
		}
		return nil
	}
	for r.waiting != nil && r.inFlight < r.cfg.Concurrency {
		if err := r.arrive(); err != nil {
			return err
		}
	}
	return nil
}

// handle lets one event happen.
func (r *run) handle(e *event) error {
	switch e.kind {
	case arrival:
		if err := r.arrive(); err != nil {
			return err
		}
		return r.admit()
	case passBegins:
		r.begin(r.workers[e.worker])
	case passEnds:
		return r.endPass(r.workers[e.worker], e.life)
	case eventsCome:
		r.deliver(e.message)
	case firstToken:
		e.job.replica.router.PrefillDone(e.id, r.clock())
		r.tell(e.job.replica)
	case lastToken:
		e.job.replica.router.End(e.id, r.clock())
		r.tell(e.job.replica)
	case transferred:
		r.inFlight--
		return r.decode(e.job)
	case bookingsCome:
		r.hear(e.booked)
	case wakes:
		e.job.replica.router.Wake(r.clock())
	case settles:
		r.settle()
	case reports:
		for _, p := range r.replicas {
			r.tell(p)
			p.peers.Expire(r.clock())
		}
		for _, w := range r.workers {
			r.report(w)
		}
		r.agenda.add(event{at: r.now + r.cfg.ReportEvery, kind: reports})
	case workerDies:
		return r.die(r.workers[e.worker], e.span)
	case workerStarts:
		return r.start(r.workers[e.worker])
	}
	return nil
}

func (r *run) clock() time.Time { return epoch.Add(r.now) }

// arrive takes the arrival that waits: one of the replicas decides, and the request joins its
// engine's queue.
func (r *run) arrive() error {
	a := *r.waiting
	r.waiting = nil
	j := &job{at: r.now, number: r.tally.arrived, replica: r.replicas[r.turn]}
	r.turn = (r.turn + 1) % len(r.replicas)
	j.engine.Prompt = a.Prompt.Append(r.buffer())
	if len(j.engine.Prompt) == 0 || a.Output < 1 {
		return fmt.Errorf("simulate: request %d has %d prompt tokens and %d of output: it needs one of each", r.tally.arrived, len(j.engine.Prompt), a.Output)
	}
	r.tally.arrived++
	j.seed, j.session = uint64(r.tally.arrived), a.Session
	j.engine.MaxTokens, j.engine.Next, j.engine.Owner = a.Output, j.answer, j
	if r.cfg.Prefill > 0 {
		j.prefill = engine.Request{Prompt: j.engine.Prompt, MaxTokens: 1, Next: j.answer, Owner: j}
		r.submit(j, fleet.Prefill, &j.prefill)
	} else {
		r.submit(j, fleet.Aggregated, &j.engine)
	}
	return r.read()
}

// submit has the job's replica choose an engine of a role for a request.
func (r *run) submit(j *job, role fleet.Role, request *engine.Request) {
	j.role, j.request = role, request
	var ready func(*route.Decision)
	if r.cfg.Queue != nil {
		ready = func(d *route.Decision) { r.readied = append(r.readied, readied{j, d}) }
	}
	d := j.replica.decide(j, ready, r.clock())
	if d.Outcome == route.Queued {
		r.tally.queued++
		r.inFlight++
		r.agenda.add(event{at: d.Ticket.Until().Sub(epoch), kind: wakes, job: j})
		return
	}
	r.decided(j, d)
}

// resume goes on with those who have waited. A decision is told in the middle of what freed its
// engine, and is carried out after it.
func (r *run) resume() error {
	for len(r.readied) > 0 {
		next := r.readied[0]
		r.readied = r.readied[1:]
		r.inFlight--
		r.decided(next.job, next.d)
		if r.cfg.Concurrency > 0 {
			if err := r.admit(); err != nil { // in case it was refused
				return err
			}
		}
	}
	return nil
}

// decided has a request join the queue of the engine that was chosen for it.
func (r *run) decided(j *job, d *route.Decision) {
	r.tell(j.replica)
	r.settleSoon()
	if d.Outcome != route.Picked {
		r.fail(j)
		return
	}
	j.id, j.worker = d.ID, r.workers[j.replica.number(d.Worker)]
	r.tally.decided(j.worker.number, j.role, d)
	if err := j.worker.engine.Submit(j.request, r.clock()); err != nil {
		j.replica.router.End(j.id, r.clock())
		r.fail(j)
		return
	}
	r.inFlight++
	j.worker.jobs[j] = struct{}{}
	r.beginSoon(j.worker)
}

// handOver sends a computed prompt on its way to the workers that decode.
func (r *run) handOver(j *job, cached int) {
	r.tally.found(j, cached)
	if r.cfg.FirstTokens {
		r.signal(event{kind: firstToken, job: j, id: j.id})
	}
	r.signal(event{kind: lastToken, job: j, id: j.id})
	delete(j.worker.jobs, j)
	took := r.cfg.TransferBase + time.Duration(len(j.engine.Prompt))*r.cfg.TransferToken
	r.agenda.add(event{at: r.now + took, kind: transferred, job: j}) // it stays in flight
}

// decode has a delivered prompt decoded.
func (r *run) decode(j *job) error {
	j.engine.Delivered = len(j.engine.Prompt)
	r.submit(j, fleet.Decode, &j.engine)
	if r.cfg.Concurrency > 0 {
		return r.admit() // in case it has failed
	}
	return nil
}

// fail counts a request that no engine took.
func (r *run) fail(j *job) {
	r.tally.errors++
	r.ended(j, Outcome{End: r.now, Failed: true})
	r.prompts = append(r.prompts, j.engine.Prompt)
}

// beginSoon lets an idle engine begin a pass once all else of this moment has happened: requests
// that come at one moment are admitted in one pass.
func (r *run) beginSoon(w *worker) {
	if !w.inPass && !w.down {
		r.agenda.add(event{at: r.now, kind: passBegins, worker: w.number})
	}
}

// begin lets an idle engine begin a pass.
func (r *run) begin(w *worker) {
	if w.inPass || w.down {
		return
	}
	end, ok := w.engine.Begin(r.clock())
	if !ok {
		return
	}
	w.inPass = true
	r.agenda.add(event{at: end.Sub(epoch), kind: passEnds, worker: w.number, life: w.epoch})
}

// endPass takes what a pass brought: tokens, and news of the cache.
func (r *run) endPass(w *worker, life uint64) error {
	if life != w.epoch {
		return nil // of a process that has died
	}
	w.inPass = false
	result := w.engine.End()
	if len(result.Events) > 0 && !r.cfg.NoEvents {
		r.publish(w, result)
	}
	ended := false
	for i := range result.Outputs {
		out := &result.Outputs[i]
		j := out.Request.Owner.(*job)
		if out.Request == &j.prefill {
			r.handOver(j, out.Cached)
			continue
		}
		r.emit(j, out)
		ended = ended || out.Done != engine.NotDone
	}
	r.beginSoon(w)
	if ended && r.cfg.Concurrency > 0 {
		return r.admit()
	}
	return nil
}

// emit counts a token, and tells the router of a first and a last one.
func (r *run) emit(j *job, out *engine.Output) {
	if out.Index == 0 {
		r.tally.first(j, r.now)
		if j.engine.Delivered == 0 {
			r.tally.found(j, out.Cached)
		}
		if r.cfg.FirstTokens {
			r.signal(event{kind: firstToken, job: j, id: j.id})
		}
	} else {
		r.tally.gap(r.now - j.last)
		j.worker.gaps++
		j.worker.gapTime += r.now - j.last
	}
	j.last = r.now
	if out.Done == engine.NotDone {
		return
	}
	r.tally.end(j, r.now, out.Index+1)
	r.ended(j, Outcome{First: j.first, End: r.now, Cached: out.Cached, Output: out.Index + 1})
	r.inFlight--
	delete(j.worker.jobs, j)
	r.prompts = append(r.prompts, j.engine.Prompt)
	r.signal(event{kind: lastToken, job: j, id: j.id})
	if r.cfg.Progress != nil && r.tally.completed%64 == 0 {
		r.cfg.Progress(r.tally.completed)
	}
}

// settleEvery is how often stator extproc looks which prompts are computed.
const settleEvery = 20 * time.Millisecond

// settleSoon lets the routers look at their next tick: there is news.
func (r *run) settleSoon() {
	if r.settling || r.cfg.FirstTokens {
		return
	}
	r.settling = true
	r.agenda.add(event{at: r.now.Truncate(settleEvery) + settleEvery, kind: settles})
}

func (r *run) settle() {
	r.settling = false
	for _, p := range r.replicas {
		if p.router.SettlePrefills(r.clock()) > 0 {
			r.tell(p)
		}
	}
	if r.cfg.NoEvents && r.inFlight > 0 { // nothing else will call
		r.settleSoon()
	}
}

// signal lets the router hear of a token, later where there is a lag.
func (r *run) signal(e event) {
	if e.at = r.now + r.cfg.SignalLag; r.cfg.SignalLag > 0 {
		r.agenda.add(e)
		return
	}
	_ = r.handle(&e) // cannot fail
}

// buffer is room for a prompt's tokens.
func (r *run) buffer() []uint32 {
	n := len(r.prompts)
	if n == 0 {
		return nil
	}
	b := r.prompts[n-1]
	r.prompts = r.prompts[:n-1]
	return b[:0]
}
