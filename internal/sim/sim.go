package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/sim/engine"
	"github.com/stator-project/stator/internal/trace"
)

// epoch is the moment 0 of every run.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// Run plays arrivals, which must be in order of time, and returns the result. Errors of next are returned as
// they are; other errors describe a configuration or an arrival that is not valid.
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

// run is a simulation that is being played.
//
// Invariants: agenda has an arrival event exactly when pending is set and the loop is open. inFlight counts
// the requests between their first decision and their end, also while they wait in a router's queue or are
// transferred between workers.
type run struct {
	cfg      Config
	next     trace.Source
	now      time.Duration
	agenda   agenda
	workers  []*worker // all so far, by number
	live     []*worker // the workers that have not left the fleet, by number
	replicas []*replica
	turn     int // replica that decides the next request
	rng      *rand.Rand

	first    time.Duration  // time of the first arrival in the trace
	began    bool           // first is set
	pending  *trace.Arrival // read from the trace, and not yet arrived
	ended    bool           // the trace has no more arrivals
	inFlight int

	// Buffers that are used again: the tokens of requests that ended, and messages that were delivered.
	prompts   [][]uint32
	delivered []*message

	links         links
	settling      bool                 // the agenda has a settles event
	settlesAlways bool                 // see settle
	runsAhead     bool                 // see ahead.go
	ticks         [kinds]time.Duration // the next events of kinds reports and plans
	dequeued      []dequeuedJob        // see resume
	tally         tally
	demand        demand
	pools         []*pool   // with Planning; nil without
	programs      *programs // with ProgramRate; nil without
	draining      int       // workers that may leave after an event
}

// newRun creates the engines first, because every replica lists them all.
func newRun(cfg Config, next trace.Source) (*run, error) {
	r := &run{cfg: cfg, next: next, rng: rand.New(rand.NewPCG(cfg.Seed, 0))}
	if cfg.SharedCache {
		cfg.Engine.Shared = engine.NewSharedCache(cfg.engines() * cmp.Or(cfg.Engine.Blocks, engine.DefaultBlocks))
	}
	for i := range cfg.engines() {
		w, err := newWorker(i, cfg.role(i), &cfg, r.neighbourComputes(i))
		if err != nil {
			return nil, err
		}
		w.settle(cfg.node(i), &cfg.Transfer)
		r.workers = append(r.workers, w)
	}
	r.live = slices.Clone(r.workers)
	for i := range cfg.Replicas {
		p, err := newReplica(i, cfg, r.workers)
		if err != nil {
			return nil, err
		}
		r.replicas = append(r.replicas, p)
	}

	r.runsAhead = cfg.runsAhead()
	r.settlesAlways = cfg.Queue != nil || cfg.Prefill > 0 || cfg.Pull || cfg.EventLag > 0 || cfg.NoEvents || cfg.SharedCache
	r.tally.init(&cfg)
	r.initPools()
	return r, nil
}

// stopCheck is the number of events between two calls of Config.Stopped.
const stopCheck = 1024

// play handles events until no request is left.
func (r *run) play() error {
	read := r.readArrival
	if r.cfg.ProgramRate > 0 {
		read = r.hold
	}
	if err := read(); err != nil {
		return err
	}

	for _, x := range r.cfg.Restarts {
		r.agenda.add(event{at: x.At, kind: workerDies, worker: x.Worker, span: x.After})
	}
	if r.cfg.ReportEvery > 0 {
		r.addTick(reports, r.cfg.ReportEvery)
	}
	if r.cfg.Planning != nil {
		r.addTick(plans, r.cfg.Planning.Every)
	}
	if err := r.admit(); err != nil {
		return err
	}

	for steps := 0; !r.done(); steps++ {
		if steps%stopCheck == 0 && r.cfg.Stopped != nil && r.cfg.Stopped() {
			r.tally.interrupted = true
			return nil
		}
		e := r.agenda.next()
		if e == nil {
			return errors.New("simulate: requests are left, and no event will end them")
		}
		r.now = e.at
		if err := r.handle(e); err != nil {
			return err
		}
		// The event may have freed an engine for which requests wait in a router's queue.
		if err := r.resume(); err != nil {
			return err
		}
		r.endDrains()
	}
	return nil
}

// dequeuedJob is a job whose wait in a router's queue is over, with its decision.
type dequeuedJob struct {
	job *job
	d   *decision.Decision
}

// done reports whether all requests have ended.
func (r *run) done() bool {
	return r.ended && r.pending == nil && r.inFlight == 0 && (r.programs == nil || r.programs.unfinished == 0)
}

// readArrival reads the next arrival of the trace into pending. Times count from the first arrival.
func (r *run) readArrival() error {
	if r.ended {
		return nil
	}
	a, ok, err := r.next()
	if err != nil || !ok {
		r.ended = true
		return err
	}
	if !r.began {
		r.first, r.began = a.At, true
	}
	a.At = time.Duration(float64(a.At-r.first) / r.cfg.ArrivalSpeedup)
	r.pending = &a
	return nil
}

// admit lets pending arrive. In an open loop it adds an arrival event at its time. In a closed loop requests
// arrive at once, while fewer than Concurrency are running.
func (r *run) admit() error {
	if r.cfg.Concurrency == 0 {
		if r.pending != nil {
			r.agenda.add(event{at: max(r.now, r.pending.At), kind: arrival})
		}
		return nil
	}
	for r.pending != nil && r.inFlight < r.cfg.Concurrency {
		if err := r.arrive(); err != nil {
			return err
		}
	}
	return nil
}

// handle handles one event.
func (r *run) handle(e *event) error {
	switch e.kind {
	case arrival:
		if err := r.arrive(); err != nil {
			return err
		}
		return r.admit()
	case stepArrives:
		return r.beginStep(e.step)
	case passBegins:
		r.begin(r.workers[e.worker])
	case passEnds:
		return r.endPass(r.workers[e.worker], e.life)
	case eventsCome:
		r.deliver(e.message)
	case firstToken:
		e.job.replica.router.PrefillDone(e.id, r.clock())
		r.publishBookings(e.job.replica)
	case lastToken:
		e.job.replica.router.End(e.id, r.clock())
		r.publishBookings(e.job.replica)
	case transferBegins:
		r.flow(e.job)
	case transferEnds:
		return r.endTransfers(e.life)
	case bookingsCome:
		r.receiveBookings(e.booked)
	case wakes:
		e.job.replica.router.Wake(r.clock())
	case settles:
		r.settle()
	case reports:
		r.reportAll()
	case plans:
		return r.plan()
	case workerReady:
		r.endStartUp(r.workers[e.worker])
	case workerDies:
		return r.die(r.workers[e.worker], e.span)
	case workerStarts:
		return r.start(r.workers[e.worker])
	}
	return nil
}

// reportAll sends the loads of all engines, and the bookings that are due, to the replicas.
func (r *run) reportAll() {
	for _, p := range r.replicas {
		r.publishBookings(p)
		p.peers.Expire(r.clock())
	}
	for _, w := range r.live {
		r.report(w)
	}
	r.addTick(reports, r.cfg.ReportEvery)
}

// clock returns the present moment for the parts that use time.Time.
func (r *run) clock() time.Time { return epoch.Add(r.now) }

// arrive makes a job of the pending arrival and submits it. Then it reads the next arrival.
func (r *run) arrive() error {
	a := *r.pending
	r.pending = nil
	if err := r.submitArrival(a, nil); err != nil {
		return err
	}
	return r.readArrival()
}

// submitArrival makes a job of an arrival, which may be a step of a program, and has it decided.
func (r *run) submitArrival(a trace.Arrival, s *step) error {
	// Replicas decide in turn, as behind a load balancer that does not see their load.
	j := &job{at: r.now, number: r.tally.arrived, replica: r.replicas[r.turn], step: s}
	r.turn = (r.turn + 1) % len(r.replicas)
	j.engine.Prompt = a.Prompt.Append(r.buffer())
	if len(j.engine.Prompt) == 0 || a.Output < 1 {
		return fmt.Errorf("simulate: request %d has %d prompt tokens and %d of output: it needs one of each", r.tally.arrived,
			len(j.engine.Prompt), a.Output)
	}
	r.tally.arrived++
	r.demand.arrived(j)
	j.seed = uint64(r.tally.arrived)
	j.session = a.Session
	j.engine.MaxTokens = a.Output
	j.engine.Next = j.answer
	j.engine.Owner = j

	r.decide(j)
	return nil
}

// decide lets the job's replica choose an engine. The decision may be delayed by the replica's queue.
func (r *run) decide(j *job) {
	var ready func(*decision.Decision)
	if r.cfg.Queue != nil {
		ready = func(d *decision.Decision) { r.dequeued = append(r.dequeued, dequeuedJob{j, d}) }
	}
	d, ticket := j.replica.decide(j, ready, r.clock())
	if d.Outcome == decision.Queued {
		r.tally.queued++
		r.demand.waits(j, 1)
		r.inFlight++
		r.agenda.add(event{at: ticket.Until().Sub(epoch), kind: wakes, job: j})
		return
	}
	r.decided(j, d)
}

// resume submits the jobs that left a router's queue. A router decides about them while it handles the event
// that freed an engine, so they are collected and submitted after that event.
func (r *run) resume() error {
	for len(r.dequeued) > 0 {
		next := r.dequeued[0]
		r.dequeued = r.dequeued[1:]
		r.inFlight--
		r.demand.waits(next.job, -1)
		r.decided(next.job, next.d)
		if r.cfg.Concurrency > 0 {
			if err := r.admit(); err != nil { // a refused request makes room for another
				return err
			}
		}
	}
	return nil
}

// decided gives a request to the engine that was picked for it, or its prompt to a prefill worker first.
func (r *run) decided(j *job, d *decision.Decision) {
	// A decision books load, which the other replicas need, and may make a prompt ready to be settled.
	r.publishBookings(j.replica)
	r.settleSoon()
	if d.Outcome != decision.Picked {
		r.fail(j)
		return
	}

	r.settlesAlways = r.settlesAlways || d.Cached >= d.PromptTokens
	j.decision = d
	j.left = r.now
	j.worker = r.workers[j.replica.number(d.Worker)]
	j.worker.jobs[j] = struct{}{}
	r.inFlight++
	if d.Split && r.askPrefill(j) {
		r.tally.decided(j, nil)
		return
	}
	r.tally.decided(j, d)
	r.demand.promised(d.Cached)
	if d.Pull.Tokens > 0 && r.pull(j) {
		return
	}
	r.submit(j)
}

// submit adds a request to the queue of the engine that decodes it.
func (r *run) submit(j *job) {
	if err := j.worker.engine.Submit(&j.engine, r.clock()); err != nil {
		r.drop(j)
		return
	}
	r.beginSoon(j.worker)
}

// drop fails a request that was decided. Its tokens are not used again, because events about them may be on their way.
func (r *run) drop(j *job) {
	r.inFlight--
	delete(j.worker.jobs, j)
	r.tally.fail(j)
	r.endStep(j, 0, true)
	r.reportOutcome(j, Outcome{End: r.now, Failed: true})
	j.replica.router.End(j.decision.ID, r.clock())
}

// fail counts a request that no engine accepted.
func (r *run) fail(j *job) {
	r.tally.fail(j)
	r.endStep(j, 0, true)
	r.reportOutcome(j, Outcome{End: r.now, Failed: true})
	r.prompts = append(r.prompts, j.engine.Prompt)
}

// beginSoon lets an idle engine begin a pass after all other events of this time. So requests that arrive at the
// same time are admitted in the same pass, as they are by an engine whose loop is busy for a moment.
func (r *run) beginSoon(w *worker) {
	if !w.inPass && !w.down {
		r.agenda.begin(w.number, r.now)
	}
}

// begin begins a pass of an idle engine.
func (r *run) begin(w *worker) {
	if w.inPass || w.down {
		return
	}
	took, ok := w.engine.Plan(r.clock())
	if !ok {
		if at, waits := w.engine.Wake(); waits {
			r.agenda.add(event{at: r.now + at.Sub(r.clock()), kind: passBegins, worker: w.number})
		}
		return
	}
	end := r.now + took
	if r.runsAhead {
		end = r.runAhead(w, end)
	}
	w.inPass = true
	w.pass = r.agenda.endPass(w.number, end)
}

// endPass ends a pass: events of the cache are published, and tokens are emitted.
func (r *run) endPass(w *worker, life uint64) error {
	if life != w.pass {
		return nil // a pass of a process that has died
	}
	w.inPass = false
	result := w.engine.End()

	// Events leave before tokens, as in vLLM: a client that has an answer finds its blocks in the index.
	if len(result.Events) > 0 && !r.cfg.NoEvents {
		r.publish(w, result)
	}

	ended := false
	for i := range result.Outputs {
		out := &result.Outputs[i]
		j := out.Request.Owner.(*job)
		if out.Request == &j.handoff.request {
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

// emit counts a token. The router sees the first token and the last one.
func (r *run) emit(j *job, out *engine.Output) {
	if out.Index == 0 {
		r.demand.figures.Generated++
		r.tally.first(j, r.now)
		if j.handoff.source == nil {
			r.tally.found(j, j.worker, out.Cached)
		}
		if r.cfg.FirstTokens {
			r.signal(event{kind: firstToken, job: j, id: j.decision.ID})
		}
	} else {
		r.countGap(j, r.now)
	}
	j.last = r.now

	if out.Done == engine.NotDone {
		return
	}
	r.tally.countEnd(j, r.now, out.Index+1)
	r.demand.ended(out.Index+1, r.cfg.SLA.TTFT > 0 && j.first-j.at > r.cfg.SLA.TTFT)
	r.endStep(j, out.Index+1, false)
	r.reportOutcome(j, Outcome{First: j.first, End: r.now, Cached: out.Cached, Output: out.Index + 1})
	r.inFlight--
	delete(j.worker.jobs, j)
	r.prompts = append(r.prompts, j.engine.Prompt)
	r.signal(event{kind: lastToken, job: j, id: j.decision.ID})
}

// countGap counts the time until a further token of a job.
func (r *run) countGap(j *job, now time.Duration) {
	took := now - j.last
	r.tally.countGap(j, took)
	j.worker.gaps++
	j.worker.gapTime += took
	r.demand.figures.Generated++
	j.last = now
}

// settleEvery is the interval at which stator extproc checks which prompts are computed.
const settleEvery = 20 * time.Millisecond

// settleSoon lets the routers check at their next tick. Ticks without a change are left out, which makes runs
// faster and changes nothing.
func (r *run) settleSoon() {
	if r.settling || r.cfg.FirstTokens {
		return
	}
	r.settling = true
	r.agenda.add(event{at: r.now.Truncate(settleEvery) + settleEvery, kind: settles})
}

// settle lets every router check which prompts are computed. A check looks at all bookings, so it is left out if it would
// change nothing: while no prompt is booked whose end the router has not seen.
//
// settlesAlways is set if a check has more effects. It also ends waits in a router's queue, and learns from transfers. If
// events come late or never, or if a router took a whole prompt for cached, it learns from a prompt that no longer counts as
// booked.
func (r *run) settle() {
	r.settling = false
	for _, p := range r.replicas {
		if !r.settlesAlways && !p.hasPrefills() {
			continue
		}
		if p.router.SettlePrefills(r.clock()) > 0 {
			r.publishBookings(p)
		}
	}
	if r.cfg.NoEvents && r.inFlight > 0 { // without events nothing else starts the next check
		r.settleSoon()
	}
}

// signal delivers the event of a first or last token to its router, after SignalLag.
func (r *run) signal(e event) {
	e.at = r.now + r.cfg.SignalLag
	if r.cfg.SignalLag > 0 {
		r.agenda.add(e)
		return
	}
	_ = r.handle(&e) // events of tokens return no error
}

// buffer returns an empty buffer for the tokens of a prompt.
func (r *run) buffer() []uint32 {
	n := len(r.prompts)
	if n == 0 {
		return nil
	}
	b := r.prompts[n-1]
	r.prompts = r.prompts[:n-1]
	return b[:0]
}
