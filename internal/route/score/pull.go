package score

import (
	"net/netip"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/eligible"
)

// source is the rank that holds most of a prompt, among the ranks from which others can fetch.
type source struct {
	rank   *fleet.Rank // nil for none
	blocks int
}

// findSource returns the rank that holds most of the prompt, whether it is free or busy.
func findSource(f *eligible.Field, overlap *kvindex.Overlap) (most source) {
	for i := range f.Ranks {
		if !canPull(f.Ranks[i].Worker) {
			continue
		}
		if n := cost.HeldBlocks(overlap.Of(f.Ranks[i].ID)); n > most.blocks {
			most = source{&f.Ranks[i], n}
		}
	}
	return most
}

// canPull reports whether a worker can fetch blocks from others of its kind, and they from it.
func canPull(w *fleet.Worker) bool { return w.Transfer == fleet.TransferP2P && w.TransferAt != "" }

// canPullFrom reports whether a worker can fetch blocks of another one: blocks of its own size.
func canPullFrom(from, to *fleet.Worker) bool {
	return from != to && from.TokensPerBlock() == to.TokensPerBlock()
}

// TransferAddress returns the address at which others reach a rank of the worker for transfers; empty if they need no address. SGLang has
// one bootstrap server for all ranks of a worker, and vLLM one port for each rank.
func TransferAddress(w *fleet.Worker, rank int) string {
	if rank == 0 || w.Transfer != fleet.TransferP2P {
		return w.TransferAt
	}
	at, err := netip.ParseAddrPort(w.TransferAt)
	if err != nil {
		return w.TransferAt // by name, which has one rank
	}
	return netip.AddrPortFrom(at.Addr(), at.Port()+uint16(rank)).String()
}
