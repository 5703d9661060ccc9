package kvindex

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// progress counts the blocks of the prompt that one holder holds so far.
type progress struct {
	held   Held
	holder uint32
	tier   uint8  // of the last block; it never goes back to a faster one
	inHost bool   // all blocks so far are in host memory
	window uint16 // one more than its index in Overlap.windows; 0 for a rank without windows
}

// Lookup finds how much of the prompt every rank holds, contiguous from the root: first on the device, then on
// each slower tier from the end of the faster ones. It stops when no rank continues. It overwrites out, and in
// steady state allocates nothing.
func (x *Index) Lookup(blocks []blockhash.Block, out *Overlap) {
	out.reset()
	w := walk{nodes: &x.nodes, blocks: blocks, now: x.clock.now()}

	// The active holders change only with the set of holders, so blocks are added to them in rows.
	var holders *set
	run := 0 // blocks since the set last changed
walk:
	for i, n := 0, 0; i < len(blocks); i += n {
		var s *set
		s, n = w.next(i)
		if s == holders && s != nil {
			run += n
			continue
		}
		out.extend(run)
		run = 0
		switch {
		case s == nil:
			break walk
		case i == 0:
			x.begin(s, out)
		default:
			out.follow(s)
		}
		if len(out.active) == 0 {
			break
		}
		holders, run = s, n
	}

	out.extend(run)
	for i := range out.active {
		out.retire(&out.active[i])
	}
}

// begin makes the holders of the first block active, in the set's order.
func (x *Index) begin(s *set, out *Overlap) {
	ranks := *x.holders.Load()
	for _, m := range s.members {
		if h := int(m.holder()); h < len(ranks) && ranks[h] != nil {
			p := progress{holder: m.holder(), held: Held{Rank: ranks[h].id}, inHost: true}
			if !p.step(m.tiers()) {
				continue // only a sliding-window group holds it
			}
			if needs := ranks[h].needs.Load(); needs != nil && len(out.windows) < 1<<16-1 {
				out.windows = append(out.windows, windowWalk{needs: needs, bits: m.tiers()})
				p.window = uint16(len(out.windows))
			}
			out.active = append(out.active, p)
		}
	}
}

// step moves to the tier on which the holder has the next block; false if there is none. A predicted block
// counts as one on the device.
func (p *progress) step(tiers uint8) bool {
	p.inHost = p.inHost && tiers>>fleet.Host&1 != 0
	if tiers&predicted != 0 {
		tiers |= 1 << fleet.Device
	}
	tiers &= 1<<fleet.Tiers - 1
	for ; p.tier < fleet.Tiers; p.tier++ {
		if tiers>>p.tier&1 != 0 {
			return true
		}
	}
	return false
}

// follow keeps the active holders that are in s too, and retires the others. Both lists are sorted by
// holder, so one pass over each suffices.
func (o *Overlap) follow(s *set) {
	kept, at := o.active[:0], 0
	for i := range o.active {
		p := o.active[i]
		for at < len(s.members) && s.members[at].holder() < p.holder {
			at++
		}
		var tiers uint8
		if at < len(s.members) && s.members[at].holder() == p.holder {
			tiers = s.members[at].tiers()
		}
		if !p.step(tiers) {
			o.retire(&p)
			continue
		}
		if p.window != 0 {
			o.windows[p.window-1].bits = tiers
		}
		kept = append(kept, p)
	}
	o.active = kept
}

// extend adds n blocks to every active holder, on its tier and in host memory.
func (o *Overlap) extend(n int) {
	for i := range o.active {
		p := &o.active[i]
		p.held.Blocks[p.tier] += n
		if p.inHost {
			p.held.InHost += n
		}
		if p.window != 0 {
			o.windows[p.window-1].pass(n)
		}
	}
}

// retire adds a holder that does not continue to the result. One whose windows allow no prefix is left out.
func (o *Overlap) retire(p *progress) {
	if p.window != 0 {
		w := &o.windows[p.window-1]
		if w.best == 0 {
			return
		}
		w.cut(&p.held.Blocks)
		p.held.InHost = min(p.held.InHost, w.best)
	}
	o.addRank(p.held)
}
