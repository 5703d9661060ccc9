package transfer

import (
	"fmt"
	"slices"

	"github.com/stator-project/stator/nixl/wire"
)

// state is the state of a transfer.
//
//	state        event                        next
//	waiting      success                      gone
//	waiting      error                        failed
//	waiting      its time is over             abandoned
//	abandoned    success                      gone
//	abandoned    error                        failed, or gone if the peer is dead
//	failed       the peer is dead             gone
//	any          the child has ended          gone
type state int

const (
	waiting state = iota
	abandoned
	failed
)

// tracked is a transfer whose slots are not free.
type tracked struct {
	Transfer
	state state
	ended chan wire.Reply // gets the reply if the transfer is waiting; buffered
	safe  chan struct{}   // closed when the slots are free
}

// use counts the transfers of a slot, once for each time that the slot is in their lists.
type use struct {
	sources     int // writes to peers, which may share a slot
	targets     int // reads from peers
	quarantined int // the transfers of both kinds that are not waiting
}

// slotTable has the slots that transfers use. The session's mutex guards it.
type slotTable struct {
	most      int
	transfers map[uint64]*tracked
	uses      map[int32]use
	dead      map[string]bool // peers that are dead and have transfers left
}

func newSlotTable(most int) *slotTable {
	return &slotTable{most: most, transfers: map[uint64]*tracked{}, uses: map[int32]use{}, dead: map[string]bool{}}
}

// change adds n transfers to the counters of a transfer's slots.
func (t *slotTable) change(x *tracked, n int, quarantined bool) {
	for _, s := range x.Local {
		u := t.uses[s]
		switch {
		case quarantined:
			u.quarantined += n
		case x.Write:
			u.sources += n
		default:
			u.targets += n
		}
		if u == (use{}) {
			delete(t.uses, s)
		} else {
			t.uses[s] = u
		}
	}
}

// begin reserves the slots of a transfer. Writes to peers may share slots, because they only read them. A slot into which blocks are read
// belongs to one transfer, and a quarantined slot to none: what its owner left there may change at any time.
func (t *slotTable) begin(id uint64, what Transfer) (*tracked, error) {
	if len(t.transfers) >= t.most {
		return nil, fmt.Errorf("%w: %d run or are quarantined, which is the bound", ErrTooMany, len(t.transfers))
	}
	if t.dead[what.Peer] {
		return nil, fmt.Errorf("%w: %s is dead", ErrNoPeer, what.Peer)
	}
	for _, s := range what.Local {
		if u := t.uses[s]; u.quarantined > 0 || u.targets > 0 || u.sources > 0 && !what.Write {
			return nil, fmt.Errorf("%w: slot %d is quarantined or part of another transfer", ErrSlots, s)
		}
	}

	// A slot may be written to a peer twice, but not be read into twice.
	if !what.Write {
		sorted := slices.Sorted(slices.Values(what.Local))
		if len(slices.Compact(sorted)) != len(what.Local) {
			return nil, fmt.Errorf("%w: a local slot is in the list twice", ErrInvalid)
		}
	}
	x := &tracked{Transfer: what, ended: make(chan wire.Reply, 1), safe: make(chan struct{})}
	t.change(x, 1, false)
	t.transfers[id] = x
	return x, nil
}

// free ends a transfer. Slots of other transfers stay reserved.
func (t *slotTable) free(id uint64) {
	x := t.transfers[id]
	if x == nil {
		return
	}
	delete(t.transfers, id)
	t.change(x, -1, false)
	if x.state != waiting {
		t.change(x, -1, true)
	}
	close(x.safe)
	if t.dead[x.Peer] && t.count(x.Peer) == 0 {
		delete(t.dead, x.Peer)
	}
}

// quarantine closes the slots of a transfer for all others.
func (t *slotTable) quarantine(x *tracked, because state) {
	if x.state == waiting {
		t.change(x, 1, true)
	}
	x.state = because
}

// settle enters the reply to a transfer. A transfer that failed before it began has touched nothing. One that failed later may have
// bytes under way in buffers of the kernel or of UCX, unless its peer is dead.
func (t *slotTable) settle(id uint64, r wire.Reply) {
	x := t.transfers[id]
	if x == nil {
		return
	}
	x.ended <- r // never blocks: the channel has room for the one reply
	switch {
	case r.Code == "" || !r.Started:
		t.free(id)
	case t.dead[x.Peer]:
		t.free(id)
	default:
		t.quarantine(x, failed)
	}
}

// abandon enters that the time of a transfer is over, and reports whether it had not ended before. Its slots stay reserved, because NIXL
// goes on with it.
func (t *slotTable) abandon(id uint64) bool {
	x := t.transfers[id]
	if x == nil || x.state != waiting {
		return false
	}
	t.quarantine(x, abandoned)
	return true
}

// died frees the failed transfers of a peer, and returns how many run on. These are freed when NIXL has reported their end: until then
// bytes that the peer sent before its death may arrive.
func (t *slotTable) died(peer string) (left int) {
	for id, x := range t.transfers {
		if x.Peer == peer && x.state == failed {
			t.free(id)
		}
	}
	left = t.count(peer)
	if left > 0 {
		t.dead[peer] = true
	}
	return left
}

// count returns the number of transfers of a peer whose slots are not free.
func (t *slotTable) count(peer string) (n int) {
	for _, x := range t.transfers {
		if x.Peer == peer {
			n++
		}
	}
	return n
}

// freeAll frees everything, because the child is gone: with its mappings, its sockets and its registrations at network adapters.
func (t *slotTable) freeAll() {
	for _, x := range t.transfers {
		close(x.safe)
	}
	*t = *newSlotTable(t.most)
}

// waiting returns the number of transfers for which callers wait.
func (t *slotTable) waiting() (n int) {
	for _, x := range t.transfers {
		if x.state == waiting {
			n++
		}
	}
	return n
}
