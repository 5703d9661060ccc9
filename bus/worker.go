package bus

import (
	"fmt"
	"math"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// workerMessage returns the value of a worker's lease.
func workerMessage(w *fleet.Worker) *busv1.Worker {
	return &busv1.Worker{
		Name: w.Name, Model: w.Model, Role: uint32(w.Role), Address: w.Address, Engine: w.Engine,
		Epoch: w.Epoch, Ranks: uint32(w.Ranks), Weight: w.Weight, State: uint32(w.State),
		KvEvents: w.KVEvents, KvReplay: w.KVReplay,
		Transfer: uint32(w.Transfer), TransferAt: w.TransferAt,
		Blocks: uint32(w.Blocks), BlockSize: uint32(w.BlockSize), Taints: string(w.Taints),
		MaxModelLen: uint32(w.MaxModelLen), Adapters: string(w.Adapters), MaxRequests: uint32(w.MaxRequests),
	}
}

// decodeWorker returns the worker in data, by way of the empty message m. Numbers are checked before they are
// converted, because a conversion would cut them; fleet.Worker.Validate checks the rest.
func decodeWorker(m *busv1.Worker, data []byte) (fleet.Worker, error) {
	if err := decode(m, data); err != nil {
		return fleet.Worker{}, err
	}

	switch {
	case m.Role > uint32(fleet.Encode):
		return fleet.Worker{}, fmt.Errorf("role is %d: it must be at most %d", m.Role, fleet.Encode)
	case m.State > uint32(fleet.Down):
		return fleet.Worker{}, fmt.Errorf("state is %d: it must be at most %d", m.State, fleet.Down)
	case m.Transfer > math.MaxUint8:
		return fleet.Worker{}, fmt.Errorf("transfer is %d: it must be at most %d", m.Transfer, math.MaxUint8)
	case m.Blocks > math.MaxInt32:
		return fleet.Worker{}, fmt.Errorf("blocks is %d: it must be at most %d", m.Blocks, math.MaxInt32)
	case m.BlockSize > maxBlockSize:
		return fleet.Worker{}, fmt.Errorf("block size is %d: it must be at most %d", m.BlockSize, maxBlockSize)
	case m.MaxModelLen > fleet.MaxContext:
		return fleet.Worker{}, fmt.Errorf("max_model_len is %d: it must be at most %d", m.MaxModelLen, fleet.MaxContext)
	case m.MaxRequests > fleet.MaxSlots:
		return fleet.Worker{}, fmt.Errorf("max_requests is %d: it must be at most %d", m.MaxRequests, fleet.MaxSlots)
	}

	w := fleet.Worker{
		Name: m.Name, Model: m.Model, Role: fleet.Role(m.Role), Address: m.Address, Engine: m.Engine,
		Epoch: m.Epoch, Ranks: int(m.Ranks), Weight: m.Weight, State: fleet.State(m.State),
		KVEvents: m.KvEvents, KVReplay: m.KvReplay,
		Transfer: fleet.Transfer(m.Transfer), TransferAt: m.TransferAt,
		Blocks: int(m.Blocks), BlockSize: int(m.BlockSize), Taints: fleet.Taints(m.Taints),
		MaxModelLen: int(m.MaxModelLen), Adapters: fleet.Adapters(m.Adapters), MaxRequests: int(m.MaxRequests),
	}

	if err := w.Validate(); err != nil {
		return fleet.Worker{}, err
	}
	return w, nil
}
