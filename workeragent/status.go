package workeragent

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/workeragent/engine"
)

// EngineStatus describes one engine of an agent at one moment.
type EngineStatus struct {
	Worker string
	Model  string
	Kind   string // of engine
	// PID is the process id; 0 while no process runs.
	PID int
	// Epoch and Address belong to the newest process; zero before the first.
	Epoch   uint64
	Address string
	State   fleet.State
	// Stopped means that no engine runs because the plan wants none.
	Stopped bool
	// InState is the time that the worker has been in its state. Unready is the time since it was ready last,
	// or since the agent first tried to start it; 0 while it is ready.
	InState, Unready time.Duration
	// Phase is the engine's progress in loading; empty if its output does not show it, and once the engine is ready.
	Phase string
	// Failures counts the starts that failed and the processes that ended by themselves. LastError is the reason of
	// the last one, SinceFailure how long ago it was, Remedy what to change if the output shows a common mistake, and
	// LastLines the end of the output.
	Failures          uint64
	LastError, Remedy string
	SinceFailure      time.Duration
	LastLines         []string
	// LastLine is the last line of the engine's output. It, the other lines and the phase are text from outside.
	LastLine string
	// Ranks are the ranks whose KV events the agent relays; none while no process runs.
	Ranks []RankStatus
}

// RankStatus is the state of one rank's KV events in an agent.
type RankStatus struct {
	Rank int
	// State is the exactness of the agent's mirror of the cache, and Reason why it is stale.
	State  feed.State
	Reason feed.Reason
	// Next is the number of the next batch.
	Next uint64
	// Blocks is the number of blocks in the mirror.
	Blocks int
	// PastBatches and PastBytes are the batches that can be replayed.
	PastBatches, PastBytes int
	// Source has the counts of the event socket's reader; nil before the engine is ready.
	Source *kvsource.Stats
}

// history is a supervisor's memory of its engine's failures.
type history struct {
	failures  uint64
	lastError string
	at        time.Time         // of the last failure
	output    engine.OutputTail // of the process that has failed
}

// failed records an engine that has ended, or that could not be started. It returns the end of its output.
func (s *supervisor) failed(err error) engine.OutputTail {
	s.setState(fleet.Down)
	tail := s.output.Tail()
	tail.Remedy = cmp.Or(tail.Remedy, engine.RemedyFor(err.Error()))

	s.mu.Lock()
	defer s.mu.Unlock()
	s.history.failures++
	s.history.lastError = err.Error()
	s.history.at = time.Now()
	s.history.output = tail
	return tail
}

// Status returns the engines in the order of Config.Launches. It is safe for concurrent use.
func (a *Agent) Status() []EngineStatus {
	type rankOf struct {
		worker string
		rank   int
	}
	read := map[rankOf]*kvsource.Stats{}
	for _, src := range a.metrics.sources.All() {
		read[rankOf{src.Worker, src.Rank}] = &src.Stats
	}

	list := []EngineStatus{}
	for _, s := range a.roster.all() {
		status, ranks := s.status(time.Now())
		for _, r := range ranks {
			rank := r.status()
			rank.Source = read[rankOf{status.Worker, rank.Rank}]
			status.Ranks = append(status.Ranks, rank)
		}
		list = append(list, status)
	}
	return list
}

// status returns the engine's status without its ranks, and the relays that have theirs.
func (s *supervisor) status(now time.Time) (EngineStatus, relays) {
	s.mu.Lock()
	defer s.mu.Unlock()

	status := EngineStatus{
		Worker: s.launch.Name, Model: s.launch.Model, Kind: s.launch.Kind, PID: s.pid, Epoch: s.worker.Epoch, Address: s.worker.Address,
		State: s.worker.State, InState: now.Sub(s.since), Stopped: !s.alive && !s.orders.wanted,
		Failures: s.history.failures, LastError: s.history.lastError,
		Remedy: s.history.output.Remedy, LastLines: s.history.output.Lines,
	}
	tail := s.output.Tail()
	status.LastLine = cmp.Or(tail.Last(), s.history.output.Last())
	if s.pid != 0 && s.worker.State != fleet.Ready {
		status.Phase = tail.Phase
	}
	if !s.unready.IsZero() {
		status.Unready = now.Sub(s.unready)
	}
	if !s.history.at.IsZero() {
		status.SinceFailure = now.Sub(s.history.at)
	}
	return status, s.relays
}

// status returns the rank's status without its source.
func (r *relay) status() RankStatus {
	r.mu.Lock()
	defer r.mu.Unlock()

	status := RankStatus{
		Rank: r.rank, State: r.stateLocked(), Next: r.next, PastBatches: len(r.past.batches), PastBytes: r.past.bytes,
	}
	m, ok := r.mirror.fleet.Snapshot().Rank(r.worker.Name, r.rank)
	if ok {
		status.Reason, status.Blocks = r.mirror.feed.Reason(m), r.mirror.feed.Blocks(m)
	}
	return status
}

var engineDown = metric.Desc("agent", "engine_down_seconds",
	"Time since the engine was ready, or since the agent began to start it; 0 while it is ready, drains, or is stopped by the plan.",
	"worker")

// collectEngines reads the status of the engines. The label is the name of a configured worker.
func (a *Agent) collectEngines(out metric.Scrape) {
	now := time.Now()
	for _, s := range a.roster.all() {
		status, _ := s.status(now)
		out.Gauge(engineDown, status.Unready.Seconds(), status.Worker)
	}
}
