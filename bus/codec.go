package bus

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
)

// version begins every message. A reader refuses versions that it does not know.
const version = 1

// ErrVersion is wrapped when a message is of a version that this program does not know.
var ErrVersion = errors.New("message of an unknown version; run the same release of Stator everywhere")

func body(msg []byte) ([]byte, error) {
	if len(msg) == 0 || msg[0] != version {
		return nil, ErrVersion
	}
	return msg[1:], nil
}

// appendWorker writes a worker as a map, so that a newer release may add keys.
func appendWorker(b []byte, w *fleet.Worker) []byte {
	b = append(b, version)
	b = msgp.AppendMapHeader(b, 14)
	text := func(key, v string) { b = msgp.AppendString(msgp.AppendString(b, key), v) }
	number := func(key string, v uint64) { b = msgp.AppendUint64(msgp.AppendString(b, key), v) }
	text("name", w.Name)
	text("model", w.Model)
	number("role", uint64(w.Role))
	text("address", w.Address)
	text("engine", w.Engine)
	number("epoch", w.Epoch)
	number("ranks", uint64(w.Ranks))
	number("weight", uint64(w.Weight))
	number("state", uint64(w.State))
	text("kvEvents", w.KVEvents)
	text("kvReplay", w.KVReplay)
	number("blocks", uint64(w.Blocks))
	number("blockSize", uint64(w.BlockSize))
	text("taints", string(w.Taints))
	return b
}

func readWorker(msg []byte) (w fleet.Worker, err error) {
	b, err := body(msg)
	if err != nil {
		return w, err
	}
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return w, fmt.Errorf("read worker: %w", err)
	}
	for range n {
		var key string
		if key, b, err = msgp.ReadStringBytes(b); err != nil {
			return w, fmt.Errorf("read worker: %w", err)
		}
		if b, err = readWorkerField(&w, key, b); err != nil {
			return w, fmt.Errorf("read worker: %s: %w", key, err)
		}
	}
	return w, w.Validate()
}

func readWorkerField(w *fleet.Worker, key string, b []byte) (rest []byte, err error) {
	var n uint64
	text := func(p *string) { *p, rest, err = msgp.ReadStringBytes(b) }
	number := func(most uint64) {
		if n, rest, err = msgp.ReadUint64Bytes(b); err == nil && n > most {
			err = fmt.Errorf("%d is out of range", n)
		}
	}
	switch key {
	case "name":
		text(&w.Name)
	case "model":
		text(&w.Model)
	case "address":
		text(&w.Address)
	case "engine":
		text(&w.Engine)
	case "kvEvents":
		text(&w.KVEvents)
	case "kvReplay":
		text(&w.KVReplay)
	case "taints":
		var taints string
		text(&taints)
		w.Taints = fleet.Taints(taints)
	case "role":
		number(uint64(fleet.Encode))
		w.Role = fleet.Role(n)
	case "state":
		number(uint64(fleet.Down))
		w.State = fleet.State(n)
	case "epoch":
		number(math.MaxUint64)
		w.Epoch = n
	case "ranks":
		number(fleet.MaxRanks)
		w.Ranks = int(n)
	case "weight":
		number(1000)
		w.Weight = uint32(n)
	case "blocks":
		number(math.MaxInt32)
		w.Blocks = int(n)
	case "blockSize":
		number(1 << 16)
		w.BlockSize = int(n)
	default:
		rest, err = msgp.Skip(b)
	}
	return rest, err
}
