package transfer

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stator-project/stator/nixl/wire"
)

// TestSlotTableAgainstModel plays random transfers and events, and compares the table with one that is made from the list of all transfers
// after each step: no two transfers may use a slot into which one of them reads, and quarantined slots are refused.
func TestSlotTableAgainstModel(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		table := newSlotTable(12)
		for id := range uint64(400) {
			x := Transfer{Peer: []string{"a", "b", "c"}[r.IntN(3)], Write: r.IntN(2) == 0}
			for _, slot := range r.Perm(10)[:1+r.IntN(3)] {
				x.Local = append(x.Local, int32(slot))
			}
			may := mayBegin(table, x)
			_, err := table.begin(id, x)
			if may != (err == nil) {
				t.Fatalf("seed %d, transfer %d %+v: %v, but the model has %v", seed, id, x, err, may)
			}

			change(r, table, uint64(r.IntN(int(id)+1)))
			compare(t, table)
		}
		table.freeAll()
		compare(t, table)
	}
}

// mayBegin is the rule in words: bounds, dead peers, and for each slot no reader and no quarantine, and for reads no writer either.
func mayBegin(table *slotTable, x Transfer) bool {
	if len(table.transfers) >= table.most || table.dead[x.Peer] {
		return false
	}
	for _, other := range table.transfers {
		for _, s := range x.Local {
			if slices.Contains(other.Local, s) && (other.state != waiting || !other.Write || !x.Write) {
				return false
			}
		}
	}
	return true
}

// change has something happen to a transfer, which may be gone.
func change(r *rand.Rand, table *slotTable, id uint64) {
	x := table.transfers[id]
	switch r.IntN(5) {
	case 0:
		table.abandon(id)
	case 1:
		if x != nil && x.state != failed {
			table.settle(id, wire.Reply{Started: true})
		}
	case 2:
		if x != nil && x.state != failed {
			table.settle(id, wire.Reply{Code: wire.CodeBackend, Started: true})
		}
	case 3:
		if x != nil && x.state != failed {
			table.settle(id, wire.Reply{Code: wire.CodeInvalid})
		}
	case 4:
		table.died([]string{"a", "b", "c"}[r.IntN(3)])
	}
}

// compare counts the uses of all slots again.
func compare(t *testing.T, table *slotTable) {
	t.Helper()

	fresh := newSlotTable(table.most)
	for _, x := range table.transfers {
		fresh.change(x, 1, false)
		if x.state != waiting {
			fresh.change(x, 1, true)
		}
	}
	if len(fresh.uses) != len(table.uses) {
		t.Fatalf("uses %v, want %v", table.uses, fresh.uses)
	}
	for slot, u := range fresh.uses {
		if table.uses[slot] != u {
			t.Fatalf("slot %d has %+v, want %+v", slot, table.uses[slot], u)
		}
	}
	for peer := range table.dead {
		if table.count(peer) == 0 {
			t.Fatalf("%s is dead and has no transfers, and is kept", peer)
		}
	}
}
