package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

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
	now      time.Duration
	agenda   agenda
	replicas []*replica
	turn     int // replica that decides the next request

	engines
	arrivals
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
	programs      *programs // with ProgramRate; nil without
}

// engines are the workers of the fleet. Plans change them.
type engines struct {
	workers  []*worker // all so far, by number
	live     []*worker // the workers that have not left the fleet, by number
	pools    []*pool   // with Planning; nil without
	draining int       // workers that may leave after an event
}

// arrivals are read from the trace one after the other.
type arrivals struct {
	next    trace.Source
	first   time.Duration  // time of the first arrival in the trace
	began   bool           // first is set
	pending *trace.Arrival // read from the trace, and not yet arrived
	ended   bool           // the trace has no more arrivals
}

// newRun creates the engines first, because every replica lists them all.
func newRun(cfg Config, next trace.Source) (*run, error) {
	r := &run{cfg: cfg, arrivals: arrivals{next: next}}
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
