package kvindex

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// progress is how far one holder has followed the prompt.
type progress struct {
	held   Held
	holder uint32
	tier   uint8 // the tier it is on now: it never goes back to a faster one
}

// Lookup finds how much of the prompt every rank holds, contiguous from the root: on the
// device first, then how far each slower tier goes on from there. It stops where nobody
// continues. out is overwritten. In steady state nothing is allocated.
func (x *Index) Lookup(blocks []blockhash.Block, out *Overlap) {
	out.reset()
	now := x.clock.now()
	var seq blockhash.Sequence
	var holders *set
	run := 0 // blocks since the holders last changed
	for i, b := range blocks {
		if i == 0 {
			seq = blockhash.Sequence(b)
		} else {
			seq = blockhash.Next(seq, b)
		}
		s := x.nodes.lookup(seq, now)
		if s == nil {
			break
		}
		if s == holders {
			run++
			continue
		}
		out.extend(run)
		if i == 0 {
			x.begin(s, out)
		} else {
			out.follow(s)
		}
		if holders, run = s, 1; len(out.active) == 0 {
			break
		}
	}
	out.extend(run)
	for i := range out.active {
		out.add(out.active[i].held)
	}
}

// begin starts with the holders of the first block, in the set's order.
func (x *Index) begin(s *set, out *Overlap) {
	ranks := *x.holders.Load()
	for _, m := range s.members {
		if h := int(m.holder()); h < len(ranks) && ranks[h] != nil {
			p := progress{holder: m.holder(), held: Held{Rank: ranks[h].id}}
			p.step(m.tiers())
			out.active = append(out.active, p)
		}
	}
}

// step moves to the tier on which the next block continues; false where none does.
func (p *progress) step(tiers uint8) bool {
	if tiers&predicted != 0 {
		tiers |= 1 << fleet.Device
	}
	for ; p.tier < fleet.Tiers; p.tier++ {
		if tiers>>p.tier&1 != 0 {
			return true
		}
	}
	return false
}

// follow keeps the active holders that continue in s, and retires the others. Both lists are
// sorted by holder.
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
		if p.step(tiers) {
			kept = append(kept, p)
		} else {
			o.add(p.held)
		}
	}
	o.active = kept
}

// extend gives every active holder n more blocks on its tier.
func (o *Overlap) extend(n int) {
	for i := range o.active {
		p := &o.active[i]
		p.held.Blocks[p.tier] += n
	}
}
