package feed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// Config is read by New and not changed later.
type Config struct {
	// Patience is the longest time that a gap may stay open before the rank is emptied and rebuilt from
	// the batches that follow; default 2 s. Raising it gives slow replays more time, during which the
	// index may contain evicted blocks.
	Patience time.Duration
	// Confirmed is the lifetime of a prediction on a rank whose events arrive; default 5 s. It
	// must exceed the time from a decision to the prompt's first event. Raising it keeps
	// predictions of requests that never arrived for longer.
	Confirmed time.Duration
	// Unconfirmed is the lifetime of a prediction on a rank without events; default 120 s.
	// Raising it keeps predictions of blocks that the engine may have evicted for longer.
	Unconfirmed time.Duration
	// BlockSize returns how many tokens the router puts into a block of a worker's prompts. Blocks
	// of another size can never match a prompt: they are counted and skipped. Default: the
	// worker's own block size.
	BlockSize func(w *fleet.Worker) int
}

func (c Config) withDefaults() Config {
	if c.Patience <= 0 {
		c.Patience = 2 * time.Second
	}
	if c.Confirmed <= 0 {
		c.Confirmed = 5 * time.Second
	}
	if c.Unconfirmed <= 0 {
		c.Unconfirmed = 120 * time.Second
	}
	if c.BlockSize == nil {
		c.BlockSize = func(w *fleet.Worker) int { return w.TokensPerBlock() }
	}
	return c
}

// Feed applies events to an index. Create it with [New].
type Feed struct {
	cfg   Config
	fleet *fleet.Fleet
	index *kvindex.Index

	unknownWorker, wrongEpoch atomic.Uint64

	mu    sync.RWMutex
	ranks map[fleet.RankID]*rank // guarded by mu
	past  Counts                 // guarded by mu; of ranks whose epoch is over
}

// New returns a feed in which every rank of the fleet is in state None.
func New(cfg Config, f *fleet.Fleet, x *kvindex.Index) *Feed {
	return &Feed{cfg: cfg.withDefaults(), fleet: f, index: x, ranks: map[fleet.RankID]*rank{}}
}

// rank is the record of one rank in one epoch.
type rank struct {
	id fleet.RankID
	// load is the owner's. IDs are used again and loads are not, so it identifies the owner.
	load *fleet.Load

	state atomic.Uint32 // a State; written under mu, read without it

	mu   sync.Mutex // guards all fields below
	gone bool       // the epoch is over; no batch may be applied any more

	next        uint64    // the sequence number expected; 0 before the first batch
	seconds     float64   // the engine's clock in the last batch applied; 0 is unknown
	first       float64   // the engine's clock in batch 0, if that was applied; 0 is unknown
	lastApplied time.Time // the router's clock at that batch
	lastLoss    time.Time // the router's clock at the last batch that removed blocks, or cleared the cache
	gapSince    time.Time // when the open gap was noticed; zero without a gap
	gapEnd      uint64    // every batch below it has been published; it is above next only in a gap
	// doubt is why the index may differ from the engine's cache at next; Sound if it does not. It stays until
	// the engine's cache has been empty once, or until a complete snapshot.
	doubt Reason
	// skipped is the block size of the events that were skipped last for it.
	skipped int
	// tail is whether there may be batches from next on that are not on their way.
	tail tail
	// interruption is why tail is tailInterrupted.
	interruption Reason
	// resumed means that the agent has sent the last batch applied again since the tail was interrupted, with the same time: it counts the
	// numbers of the same process.
	resumed bool
	// away means that the source has no connection: no batch can prove anything.
	away   bool
	counts Counts
	hashes []uint64 // scratch space for the index's arguments
}

// tail is the knowledge about the batches that the engine has published after the last one applied.
type tail uint8

const (
	// tailUnknown means that no message has arrived.
	tailUnknown tail = iota
	// tailUnproved means that the cache was restored or is being rebuilt, and that its last batches may be missing.
	tailUnproved
	// tailInterrupted means that messages may have been missed since the rank was last exact.
	tailInterrupted
	// tailProved means that each batch is applied or on its way: a lost one will show as a gap.
	tailProved
)

func (r *rank) currentState() State { return State(r.state.Load()) }

// settle sets the rank's state from its gap, its doubt and its tail. r.mu is held.
func (r *rank) settle() {
	state := None
	switch {
	case !r.gapSince.IsZero():
		state = Syncing
	case r.doubt != Sound || r.tail == tailInterrupted || r.tail == tailProved && r.away:
		state = Stale
	case r.tail == tailUnproved:
		state = Syncing
	case r.tail == tailProved:
		state = Exact
	}
	r.state.Store(uint32(state))
}

// reason returns why the rank is Stale, and Sound if it is not. r.mu is held.
func (r *rank) reason() Reason {
	switch {
	case r.currentState() != Stale:
		return Sound
	case r.doubt != Sound:
		return r.doubt
	case r.tail == tailInterrupted:
		return r.interruption
	}
	return Interrupted
}

// interrupt records that batches may be missed from now on, without a gap that shows it. r.mu is held.
func (r *rank) interrupt(why Reason) {
	if r.tail == tailProved || r.tail == tailUnproved && why == AgentNotExact {
		r.tail = tailInterrupted
	}
	if r.tail == tailInterrupted {
		r.interruption = why
		r.resumed = false
	}
}

// anyEpoch is the epoch of callers that cannot distinguish engine processes. It matches every
// epoch, and a worker listed with it matches the messages of every epoch.
const anyEpoch = 0

// Apply applies a message of a rank: one batch, or a mark. It applies nothing if an earlier batch
// is missing. The caller then has to replay from Result.Resume, this message included. m is only
// read, and only during the call.
func (f *Feed) Apply(m *Message, now time.Time) Result {
	member, r, ok := f.lock(m.Worker, m.Epoch, m.Rank)
	if !ok {
		return Result{Verdict: Ignored}
	}
	defer r.mu.Unlock()

	defer r.settle()
	if m.Mark && m.End && m.State == Exact {
		f.bound(r, m.Seq)
	}
	if m.Mark {
		return r.applyMark(m, now)
	}

	restarts := r.counts.Restarts
	result := Result{Verdict: f.judge(r, m, now)}
	switch result.Verdict {
	case Ignored:
		r.counts.Duplicates++
	case Missing:
		r.counts.Gaps++
		result.Resume = r.resume()
	case Applied:
		f.applyBatch(r, member.Worker, m, now)
	}
	result.Restarted = r.counts.Restarts > restarts
	return result
}

// bound corrects numbers beyond the end of the rank's events, which its agent has stated. A gap ends there. A rank that has applied a
// batch beyond it has another one's blocks, and begins again. r.mu is held.
func (f *Feed) bound(r *rank, end uint64) {
	r.gapEnd = min(r.gapEnd, end)
	r.closeGap()
	if r.next <= end {
		return
	}
	f.empty(r)
	r.tail = tailUnproved
}

// applyMark compares the rank's next number with the one that its engine or agent counts. Without
// marks the loss of a rank's last batches would stay unnoticed until its next batch, and an idle
// rank could not become exact. r.mu is held.
func (r *rank) applyMark(m *Message, now time.Time) Result {
	switch {
	case m.Seq > r.next:
		r.openGap(m.Seq, now)
		r.counts.Gaps++
		return Result{Verdict: Missing, Resume: r.resume()}
	case m.State != Exact && !m.CaughtUp, r.next-m.Seq > farBack: // even below the next number: the agent may have started again
		r.interrupt(AgentNotExact)
		return Result{Verdict: Ignored}
	case m.Seq < r.next || !r.gapSince.IsZero():
		return Result{Verdict: Ignored}
	case m.State != Exact && !(m.End && r.resumed): // it has missed batches that this rank has, if they are of one process
		return Result{Verdict: Ignored}
	}

	r.tail = tailProved
	if r.doubt != Sound {
		return Result{Verdict: Ignored}
	}
	return Result{Verdict: Applied}
}

// lock returns the record of a rank with its lock held. It makes the record if there is none. It
// returns false, with no lock held, if the fleet does not have the rank in that epoch.
func (f *Feed) lock(worker string, epoch uint64, number int) (fleet.Rank, *rank, bool) {
	snap := f.fleet.Snapshot()
	member, ok := f.find(snap, worker, epoch, number)
	if !ok {
		return member, nil, false
	}

	r := f.record(member)
	if r == nil {
		return member, nil, false
	}
	r.mu.Lock()

	// The rank may have gone before the lock was held, so it is looked up again. If it goes after
	// this, RankGone waits for the lock and removes what the caller stores.
	isThere := true
	if now := f.fleet.Snapshot(); now != snap {
		again, ok := f.find(now, worker, epoch, number)
		isThere = ok && again.Load == r.load
	}
	if !isThere || r.gone {
		r.mu.Unlock()
		return member, nil, false
	}
	return member, r, true
}

// find returns the fleet's rank that a message of a worker's epoch belongs to.
func (f *Feed) find(snap *fleet.Snapshot, worker string, epoch uint64, number int) (fleet.Rank, bool) {
	m, ok := snap.Rank(worker, number)
	if !ok {
		f.unknownWorker.Add(1)
		return m, false
	}
	if epoch != m.Worker.Epoch && epoch != anyEpoch && m.Worker.Epoch != anyEpoch {
		f.wrongEpoch.Add(1)
		return m, false
	}
	return m, true
}

// record returns the record of m, and makes it if there is none; nil if m has left the fleet. Its ID may
// have another owner by then, whose record must stay.
func (f *Feed) record(m fleet.Rank) *rank {
	if r := f.existing(m); r != nil {
		return r
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if now, ok := f.fleet.Snapshot().Rank(m.Worker.Name, m.Number); !ok || now.Load != m.Load {
		return nil
	}
	if r := f.ranks[m.ID]; r == nil || r.load != m.Load {
		f.ranks[m.ID] = &rank{id: m.ID, load: m.Load}
	}
	return f.ranks[m.ID]
}

// existing returns the record of m, or nil if there is none.
func (f *Feed) existing(m fleet.Rank) *rank {
	f.mu.RLock()
	defer f.mu.RUnlock()

	if r := f.ranks[m.ID]; r != nil && r.load == m.Load {
		return r
	}
	return nil
}

// RankGone deletes the record and the blocks of a rank whose epoch is over. It is made for the
// fleet's hook of that name.
func (f *Feed) RankGone(id fleet.RankID) {
	f.mu.Lock()
	r := f.ranks[id]
	delete(f.ranks, id)
	f.mu.Unlock()

	if r != nil {
		r.mu.Lock()
		r.gone = true
		counts := r.counts
		r.mu.Unlock()

		f.mu.Lock()
		f.past.add(counts)
		f.mu.Unlock()
	}
	f.index.Drop(id)
}
