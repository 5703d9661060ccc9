package feed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// Config is read by New and not changed later.
type Config struct {
	// Patience is how long a gap may stay open before the rank's knowledge is dropped and
	// built up again from what comes; default 2 s. Raising it gives slow replays more time,
	// in which evicted blocks may still be believed.
	Patience time.Duration
	// Confirmed is the lifetime of a prediction where events come: default 5 s, longer than a
	// prompt takes from decision to its first event. Raising it believes longer in requests
	// that never arrived.
	Confirmed time.Duration
	// Unconfirmed is the lifetime where none come: default 120 s. Raising it believes longer
	// in blocks that the engine may have evicted.
	Unconfirmed time.Duration
	// BlockSize says by how many tokens the router cuts prompts for a worker. Blocks of another
	// size can never match: they are counted and skipped. Default: the worker's own.
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
		c.BlockSize = func(w *fleet.Worker) int { return w.BlockSize }
	}
	return c
}

// Feed keeps the order of events. Create it with [New].
type Feed struct {
	cfg   Config
	fleet *fleet.Fleet
	index *kvindex.Index

	unknownWorker, wrongEpoch atomic.Uint64

	mu    sync.RWMutex
	ranks map[fleet.RankID]*rank // guarded by mu
	past  Counts                 // guarded by mu; of ranks that are gone
}

// New returns a feed that knows nothing of any rank.
func New(cfg Config, f *fleet.Fleet, x *kvindex.Index) *Feed {
	return &Feed{cfg: cfg.withDefaults(), fleet: f, index: x, ranks: map[fleet.RankID]*rank{}}
}

// rank is the order of one rank's events.
type rank struct {
	id   fleet.RankID
	load *fleet.Load // of its owner

	state atomic.Uint32 // a State; written under mu

	mu       sync.Mutex // guards all below
	gone     bool
	next     uint64    // the sequence number expected; 0 before the first
	seconds  float64   // the engine's clock in the last batch applied
	last     time.Time // ours, then
	gapSince time.Time // zero where there is no gap
	partial  bool      // a gap was given up, and the cache has not been empty since
	resumed  State     // what the state was before Lost
	counts   Counts
	hashes   []uint64 // scratch
}

func (r *rank) set(s State) { r.state.Store(uint32(s)) }
func (r *rank) now() State  { return State(r.state.Load()) }

// Apply is Offer for those who need to know only of gaps: it returns gap true where batches
// before this one are missing, and the caller then replays from resume, this batch included.
func (f *Feed) Apply(worker string, epoch uint64, number int, seq uint64, b *kvevent.Batch, now time.Time) (resume uint64, gap bool) {
	result := f.Offer(worker, epoch, number, seq, b, now)
	return result.Resume, result.Verdict == Missing
}

// Offer applies one batch of a rank's events, unless it is a duplicate, of another epoch, or
// of a worker the fleet does not have, and says what became of it. When batches before it are
// missing it applies nothing. b is only read during the call. Epoch 0, said or listed, matches
// any.
func (f *Feed) Offer(worker string, epoch uint64, number int, seq uint64, b *kvevent.Batch, now time.Time) Result {
	member, r, ok := f.lock(worker, epoch, number)
	if !ok {
		return Result{Verdict: Ignored}
	}
	defer r.mu.Unlock()
	restarts := r.counts.Restarts
	result := Result{Verdict: f.order(r, seq, b, now)}
	switch result.Verdict {
	case Ignored:
		r.counts.Duplicates++
	case Missing:
		r.counts.Gaps++
		result.Resume = r.resume()
	case Applied:
		f.apply(r, member.Worker, seq, b, now)
	}
	result.Restarted = r.counts.Restarts > restarts
	return result
}

// lock returns the record of a rank, made where there was none, with its lock held; false means
// that the fleet does not have that rank in that epoch, and that nothing is locked.
func (f *Feed) lock(worker string, epoch uint64, number int) (fleet.Rank, *rank, bool) {
	member, ok := f.find(worker, epoch, number)
	if !ok {
		return member, nil, false
	}
	r := f.rank(member)
	r.mu.Lock()
	// Looked up again under the lock: if the rank is gone the new snapshot says so already,
	// and if it is not, RankGone waits for us.
	if again, ok := f.find(worker, epoch, number); !ok || again.Load != r.load || r.gone {
		r.mu.Unlock()
		return member, nil, false
	}
	return member, r, true
}

// find returns the rank that events of a worker's epoch speak of.
func (f *Feed) find(worker string, epoch uint64, number int) (fleet.Rank, bool) {
	m, ok := f.fleet.Snapshot().Rank(worker, number)
	if !ok {
		f.unknownWorker.Add(1)
		return m, false
	}
	if epoch != m.Worker.Epoch && epoch != 0 && m.Worker.Epoch != 0 {
		f.wrongEpoch.Add(1)
		return m, false
	}
	return m, true
}

// rank returns the order of m's events. A record of an ID's former owner is not m's: every
// owner has a Load of its own.
func (f *Feed) rank(m fleet.Rank) *rank {
	if r := f.known(m); r != nil {
		return r
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.ranks[m.ID]; r == nil || r.load != m.Load {
		f.ranks[m.ID] = &rank{id: m.ID, load: m.Load}
	}
	return f.ranks[m.ID]
}

// known returns the record of m, or nil where nothing has been said of it.
func (f *Feed) known(m fleet.Rank) *rank {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if r := f.ranks[m.ID]; r != nil && r.load == m.Load {
		return r
	}
	return nil
}

// RankGone forgets a rank whose epoch is over, in the index too. It is made for the fleet's
// hook of that name.
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

// apply hands the events to the index, in order. A cleared event is a barrier: what came
// before it is forgotten on all tiers, and what comes after it is complete.
func (f *Feed) apply(r *rank, w *fleet.Worker, seq uint64, b *kvevent.Batch, now time.Time) {
	r.next, r.seconds, r.last, r.gapSince = seq+1, b.Seconds, now, time.Time{}
	r.counts.Batches++
	if b.Seconds > 0 && r.now() == Exact { // what is replayed is old for other reasons
		r.load.ObserveLag(now.Sub(time.Unix(0, int64(b.Seconds*1e9))))
	}
	r.counts.Unknown += uint64(b.Unknown)
	for i := range b.Events {
		e := &b.Events[i]
		r.counts.Events++
		r.hashes = plain(r.hashes[:0], e.Hashes)
		switch e.Kind {
		case kvevent.Stored:
			f.store(r, w, e)
		case kvevent.Removed:
			f.remove(r, e)
		case kvevent.Cleared:
			r.counts.Cleared++
			r.partial = false
			f.index.Clear(r.id)
			r.set(Exact)
		}
	}
}

func (f *Feed) store(r *rank, w *fleet.Worker, e *kvevent.Event) {
	if want := f.cfg.BlockSize(w); e.BlockSize != 0 && want != 0 && e.BlockSize != want {
		r.counts.WrongBlockSize++
		return
	}
	blocks := e.Blocks
	if len(blocks) != len(e.Hashes) {
		blocks = nil
		r.counts.NoTokens += uint64(len(e.Hashes))
	}
	r.counts.Stored += uint64(len(e.Hashes))
	if e.Window != 0 {
		f.storeWindow(r, w, e, blocks)
		return
	}
	f.index.Store(r.id, e.Tier, uint64(e.Parent), e.HasParent, r.hashes, blocks)
}

// storeWindow stores blocks of a sliding-window attention group.
func (f *Feed) storeWindow(r *rank, w *fleet.Worker, e *kvevent.Event, blocks []blockhash.Block) {
	if e.Tier != fleet.Device {
		return // the index keeps windows of the device only
	}
	size := e.BlockSize
	if size == 0 {
		size = f.cfg.BlockSize(w)
	}
	f.index.StoreWindow(r.id, e.Group, kvindex.WindowBlocks(e.Window, size), uint64(e.Parent), e.HasParent, r.hashes, blocks)
}

func (f *Feed) remove(r *rank, e *kvevent.Event) {
	r.counts.Removed += uint64(len(e.Hashes))
	switch {
	case e.Window == 0:
		f.index.Remove(r.id, e.Tier, r.hashes)
	case e.Tier == fleet.Device:
		f.index.RemoveWindow(r.id, e.Group, r.hashes)
	}
}

func plain(dst []uint64, hashes []kvevent.Engine) []uint64 {
	for _, h := range hashes {
		dst = append(dst, uint64(h))
	}
	return dst
}
