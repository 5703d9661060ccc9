package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// scaleBucket is the bucket by which a program that is not Stator's learns how many workers there should be, and reports what it has
// done. Its values are JSON, because every client of NATS reads that.
const (
	scaleBucket = "scale"
	wantedKey   = "wanted"
	doneKey     = "done"
)

// Wanted is how many workers there should be, for a program that starts and stops them.
type Wanted struct {
	// Decision grows with every change. The program writes it back when it has carried the change out.
	Decision uint64 `json:"decision"`
	// Term is that of the leading planner: one of an earlier term than the last has no effect.
	Term  uint64       `json:"term"`
	Pools []WantedPool `json:"pools"`
}

// WantedPool is the part of one pool.
type WantedPool struct {
	// Model and Role name the pool: aggregated, prefill or decode.
	Model string `json:"model"`
	Role  string `json:"role"`
	// Replicas is how many workers there should be, those included that are starting, without those that are drained.
	Replicas int `json:"replicas"`
	// Drained are the workers that get no requests any more: those to stop, each when it has ended its requests.
	Drained []string `json:"drained"`
	// Reason is the planner's sentence about the decision.
	Reason string `json:"reason"`
}

// Done is what the program writes back under the key "done".
type Done struct {
	// Decision is the last one that was carried out. The planner does not wait for it: it counts workers.
	Decision uint64 `json:"decision"`
}

// maxDone bounds the value of the program in bytes. A longer one counts as none.
// A program needs the role scaler on a bus with users.
const maxDone = 4 << 10

// fencedWanted is what is wanted.
var fencedWanted = fenced{scaleBucket, wantedKey, "wanted workers", func(value []byte) uint64 { return readWanted(value).Term }}

// PutWanted replaces what is wanted. The error ErrEarlierTerm means that another planner has written since.
func (b *Bus) PutWanted(ctx context.Context, w Wanted) error {
	data, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("publish wanted workers: %w", err)
	}
	return b.put(ctx, &fencedWanted, w.Term, data)
}

// Wanted returns what is wanted now, and what the program has carried out last; zero values where there is nothing, or nothing that can
// be read.
func (b *Bus) Wanted(ctx context.Context) (w Wanted, d Done, err error) {
	kv, err := b.bucket(ctx, scaleBucket, 0)
	if err != nil {
		return w, d, err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	_, value, err := fencedWanted.read(ctx, kv)
	if err != nil {
		b.forgetBucket(scaleBucket)
		return w, d, err
	}
	w = readWanted(value)

	entry, err := kv.Get(ctx, doneKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return w, d, nil
	}
	if err != nil {
		return w, d, fmt.Errorf("read what was carried out: %w", err)
	}
	if len(entry.Value()) > maxDone || json.Unmarshal(entry.Value(), &d) != nil {
		d = Done{} // the program is not Stator's
	}
	return w, d, nil
}

// readWanted returns what is wanted by a value. One that cannot be read counts as none, and is replaced.
func readWanted(value []byte) (w Wanted) {
	if json.Unmarshal(value, &w) != nil {
		return Wanted{}
	}
	return w
}
