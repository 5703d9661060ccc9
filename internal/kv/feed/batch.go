package feed

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// applyBatch hands a batch's events to the index, in order. r.mu is held.
func (f *Feed) applyBatch(r *rank, w *fleet.Worker, m *Message, now time.Time) {
	b := m.Batch

	// Replayed batches are old because they were replayed: only an exact rank's age is its lag.
	if b.Seconds > 0 && r.currentState() == Exact {
		r.load.ObserveLag(now.Sub(time.Unix(0, int64(b.Seconds*1e9))), now)
	}

	if m.Seq == 0 { // nothing can be missing before the first batch
		r.doubt = Sound
		r.tail = tailProved
		r.first = b.Seconds
	}
	r.next = m.Seq + 1
	r.seconds = b.Seconds
	r.lastApplied = now
	r.closeGap()
	r.counts.Batches++
	r.counts.Unknown += uint64(b.Unknown)

	for rest := b.Events; len(rest) > 0; {
		e := &rest[0]
		n := sameRemovals(rest)
		r.counts.Events += uint64(n)
		r.hashes = r.hashes[:0]
		for i := range rest[:n] {
			r.hashes = appendHashes(r.hashes, rest[i].Hashes)
		}
		rest = rest[n:]

		if e.Kind != kvevent.Stored {
			r.lastLoss = now
		}
		switch e.Kind {
		case kvevent.Stored:
			f.store(r, w, e)
		case kvevent.Removed:
			f.remove(r, e)
		case kvevent.Cleared:
			f.clear(r)
		}
	}

	// An event that could not be read may have been an eviction.
	if b.Unknown > 0 {
		r.doubt = Unreadable
	}
	switch m.State {
	case Exact:
		r.tail = tailProved
	case Syncing, Stale:
		if !m.CaughtUp {
			r.interrupt(AgentNotExact)
		}
	}
}

// sameRemovals returns how many events at the beginning of the list, at least 1, the index can apply as one: an
// engine that evicts ten blocks reports ten removals, and the index overlaps the memory accesses of one call.
func sameRemovals(events []kvevent.Event) int {
	first := &events[0]
	if first.Kind != kvevent.Removed {
		return 1
	}
	n := 1
	for n < len(events) && events[n].Kind == kvevent.Removed && events[n].Tier == first.Tier &&
		events[n].Window == first.Window && events[n].Group == first.Group {
		n++
	}
	return n
}

// clear empties a rank whose engine dropped its whole cache, on all tiers. An empty cache is
// complete, so earlier losses no longer matter.
func (f *Feed) clear(r *rank) {
	r.counts.Cleared++
	r.doubt = Sound
	r.tail = tailProved
	f.index.Clear(r.id)
}

// store stores the blocks of an event. Without token ids the index only finds blocks that the engine has stored
// with token ids before: for example when it copies them to another tier.
func (f *Feed) store(r *rank, w *fleet.Worker, e *kvevent.Event) {
	if want := f.cfg.BlockSize(w); e.BlockSize != 0 && want != 0 && e.BlockSize != want {
		r.counts.WrongBlockSize++
		r.doubt, r.skipped = OtherBlockSize, e.BlockSize
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
	f.index.Store(r.id, e.Tier, r.chain(e, blocks))
}

// chain returns the blocks of a stored event. Its hashes are the rank's scratch space.
func (r *rank) chain(e *kvevent.Event, blocks []blockhash.Block) kvindex.Chain {
	return kvindex.Chain{Parent: uint64(e.Parent), HasParent: e.HasParent, Hashes: r.hashes, Blocks: blocks}
}

// storeWindow stores blocks of a sliding-window attention group. The index has windows of the
// device tier only.
func (f *Feed) storeWindow(r *rank, w *fleet.Worker, e *kvevent.Event, blocks []blockhash.Block) {
	if e.Tier != fleet.Device {
		return
	}

	size := e.BlockSize
	if size == 0 {
		size = f.cfg.BlockSize(w)
	}
	window := kvindex.Window{Group: e.Group, Blocks: kvindex.WindowBlocks(e.Window, size)}
	f.index.StoreWindow(r.id, window, r.chain(e, blocks))
}

// remove removes the blocks of r.hashes, from the tier or from the window's group of an event.
func (f *Feed) remove(r *rank, e *kvevent.Event) {
	r.counts.Removed += uint64(len(r.hashes))

	switch {
	case e.Window == 0:
		f.index.Remove(r.id, e.Tier, r.hashes)
	case e.Tier == fleet.Device:
		f.index.RemoveWindow(r.id, e.Group, r.hashes)
	}
}

func appendHashes(dst []uint64, hashes []kvevent.EngineHash) []uint64 {
	for _, h := range hashes {
		dst = append(dst, uint64(h))
	}
	return dst
}
