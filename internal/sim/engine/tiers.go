package engine

import (
	"container/list"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/onboard"
	"github.com/stator-project/stator/internal/perfmodel"
)

// Tier is a cache behind the engine's own: host memory, a disk, an object store. Computed blocks are copied to the first tier, and
// blocks that a tier evicts to the next one. A prompt's blocks are loaded where that is faster than to compute them, as package
// onboard decides. The request waits for them, and others run meanwhile, as with vLLM's OffloadingConnector.
type Tier struct {
	// Tier names it in events. Tiers of an engine differ, and are in order.
	Tier fleet.Tier
	// Blocks is its size.
	Blocks int
	// Read and Write are the times of a block, and Latency the time of a load without its blocks. Reads and writes do not
	// share bandwidth; reads of several requests do, one after the other.
	Read, Write, Latency time.Duration
}

// maxBehind bounds how far copies to a tier may be behind. Blocks beyond it are not copied.
const maxBehind = time.Second

func (t *Tier) validate() error {
	if t.Tier == fleet.Device || t.Tier >= fleet.Tiers || t.Blocks < 1 || t.Blocks > 1<<28 || t.Read <= 0 || t.Write <= 0 || t.Latency < 0 {
		return fmt.Errorf("tier %v of %d blocks, read in %v and written in %v each, latency %v: all must be positive", t.Tier, t.Blocks,
			t.Read, t.Write, t.Latency)
	}
	return nil
}

// tier is a tier with its content.
type tier struct {
	Tier
	byHash map[kvevent.EngineHash]*list.Element
	recent *list.List // of *stored, the latest first
	// readUntil and writtenUntil are when the present reads and copies end.
	readUntil, writtenUntil time.Time
}

// stored is a block of a tier.
type stored struct {
	hash kvevent.EngineHash
	from time.Time // when it is copied
}

func newTiers(configs []Tier) (all []*tier) {
	for _, c := range configs {
		all = append(all, &tier{Tier: c, byHash: map[kvevent.EngineHash]*list.Element{}, recent: list.New()})
	}
	return all
}

// copyDown copies blocks to the i-th tier, when the pass has ended, and what that evicts to the next one.
func (e *Engine) copyDown(i int, hashes []kvevent.EngineHash) {
	if i >= len(e.tiers) {
		return
	}
	t := e.tiers[i]
	for _, h := range hashes {
		if at, ok := t.byHash[h]; ok {
			t.recent.MoveToFront(at)
			continue
		}
		if t.writtenUntil.Before(e.ends) {
			t.writtenUntil = e.ends
		}
		if t.writtenUntil.Sub(e.ends) > maxBehind {
			continue
		}

		t.writtenUntil = t.writtenUntil.Add(t.Write)
		t.byHash[h] = t.recent.PushFront(&stored{h, t.writtenUntil})
		e.addEvent(kvevent.Raw{Kind: kvevent.Stored, Tier: t.Tier.Tier, Hashes: e.copyHashes(h), BlockSize: e.cfg.BlockSize})
		if len(t.byHash) > t.Blocks {
			oldest := t.recent.Remove(t.recent.Back()).(*stored).hash
			delete(t.byHash, oldest)
			e.copyDown(i+1, []kvevent.EngineHash{oldest})
			e.addEvent(kvevent.Raw{Kind: kvevent.Removed, Tier: t.Tier.Tier, Hashes: e.copyHashes(oldest)})
		}
	}
}

// beginLoad begins to load blocks of the request at the head of the queue that come after its first hits, and takes it out of the
// queue. It returns false where nothing is to be loaded. There is room for all of the request's blocks.
func (e *Engine) beginLoad(r *Request, hits int, now time.Time) bool {
	if len(e.tiers) == 0 || r.WholePrompt || r.Delivered > 0 {
		return false
	}
	size := e.cfg.BlockSize
	parts, tiers := e.parts(r.hashes[hits:min(len(r.hashes), (r.known()-1)/size)], now)
	all := e.prefill(r, hits)
	blocks, took := onboard.Cut(parts, func(n int) time.Duration {
		if e.cfg.LoadAll {
			return time.Duration(n) * time.Hour
		}
		return all - e.prefill(r, hits+n)
	})
	if blocks == 0 {
		return false
	}

	left := blocks
	for i := range parts {
		n := min(left, parts[i].Blocks)
		left -= n
		if n > 0 {
			tiers[i].readUntil = now.Add(parts[i].Time(n))
		}
	}
	e.take(r, hits, hits*size, (hits+blocks)*size)
	e.allocate(r, blocks)
	r.loaded = (hits + blocks) * size
	r.loadedAt = now.Add(took)
	r.state = loading
	e.loading = append(e.loading, r)
	return true
}

// parts returns which tiers have the first blocks of a chain, in runs of neighbours, each on the fastest tier that has it.
func (e *Engine) parts(hashes []kvevent.EngineHash, now time.Time) (parts []onboard.Part, tiers []*tier) {
	for _, h := range hashes {
		t := e.tierOf(h, now)
		if t == nil {
			break
		}
		if n := len(tiers); n == 0 || tiers[n-1] != t {
			p := onboard.Part{Wait: max(0, t.readUntil.Sub(now)), Latency: t.Latency, Block: t.Read}
			for i := range tiers {
				if tiers[i] == t {
					p.Wait = parts[i].Time(parts[i].Blocks) // behind its earlier run
				}
			}
			tiers = append(tiers, t)
			parts = append(parts, p)
		}
		parts[len(parts)-1].Blocks++
	}
	return parts, tiers
}

// tierOf returns the fastest tier that has a block; nil if there is none.
func (e *Engine) tierOf(h kvevent.EngineHash, now time.Time) *tier {
	for _, t := range e.tiers {
		if at, ok := t.byHash[h]; ok && !at.Value.(*stored).from.After(now) {
			t.recent.MoveToFront(at)
			return t
		}
	}
	return nil
}

// prefill returns how long the rest of a request's prompt takes to compute after its first blocks, if nothing else is computed.
func (e *Engine) prefill(r *Request, blocks int) time.Duration {
	return e.cfg.Timing.Prefill(perfmodel.Prefill{Requests: 1, Prefix: blocks * e.cfg.BlockSize, Input: r.known()})
}

// endLoads moves requests whose blocks have come to the running ones, in the order of their times.
func (e *Engine) endLoads(now time.Time) {
	for len(e.running) < e.cfg.MaxNumSeqs {
		var first *Request
		for _, r := range e.loading {
			if !r.loadedAt.After(now) && (first == nil || r.loadedAt.Before(first.loadedAt)) {
				first = r
			}
		}
		if first == nil {
			return
		}
		e.loading = without(e.loading, first)
		e.running = append(e.running, first)
		first.state = running
		first.computed = first.loaded
	}
}

// Loads returns how long blocks take from each tier now, as an agent measures it.
func (e *Engine) Loads(now time.Time) (out [fleet.Tiers]fleet.TierLoad) {
	for _, t := range e.tiers {
		out[t.Tier.Tier] = fleet.TierLoad{
			Wait: max(0, t.readUntil.Sub(now)) + t.Latency, Token: t.Read / time.Duration(e.cfg.BlockSize),
		}
	}
	return out
}

// Wake returns when the next request that loads can run; false if none loads. An engine that is idle until then has to plan again.
func (e *Engine) Wake() (at time.Time, ok bool) {
	for _, r := range e.loading {
		if !ok || r.loadedAt.Before(at) {
			at, ok = r.loadedAt, true
		}
	}
	return at, ok
}
