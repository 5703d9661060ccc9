package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// scaleBucket is the bucket by which a program that is not Stator's learns how many workers there should be, and reports the
// scale that it has carried out. Its values are JSON, because every client of NATS reads that.
const (
	scaleBucket = "scale"
	wantedKey   = "wanted"
	doneKey     = "done"
)

// Wanted is the published scale: the workers that there should be, for a program that starts and stops them.
type Wanted struct {
	// Decision grows with every change. The program writes it back when it has carried the change out.
	Decision uint64 `json:"decision"`
	// Term is the leading planner's term: a scale of an earlier term than the last has no effect.
	Term  uint64       `json:"term"`
	Pools []WantedPool `json:"pools"`
}

// WantedPool is the part of one pool.
type WantedPool struct {
	// Model and Role name the pool: aggregated, prefill or decode.
	Model string `json:"model"`
	Role  string `json:"role"`
	// Replicas is the number of workers that there should be. It includes workers that are starting, but not the drained ones.
	Replicas int `json:"replicas"`
	// Drained are the workers that get no requests any more: those to stop, each when it has ended its requests.
	Drained []string `json:"drained"`
	// Reason is the planner's sentence about the decision.
	Reason string `json:"reason"`
}

// Done is the answer that the program writes back under the key "done".
type Done struct {
	// Decision is the last one that was carried out. The planner does not wait for it: it counts workers.
	Decision uint64 `json:"decision"`
}

// maxDone bounds the value of the program in bytes. A longer one counts as none.
// A program needs the role scaler on a bus with users.
const maxDone = 4 << 10

// fencedWanted is the wanted scale as a fenced value.
var fencedWanted = fenced{scaleBucket, wantedKey, "wanted workers", func(value []byte) uint64 { return readWanted(value).Term }}

// PutWanted replaces the wanted scale. The error ErrEarlierTerm means that another planner has written since.
func (b *Bus) PutWanted(ctx context.Context, w Wanted) error {
	data, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("publish wanted workers: %w", err)
	}
	return b.putFenced(ctx, &fencedWanted, w.Term, data)
}

// Wanted returns the wanted scale and the program's last answer. Each is zero if it is absent or cannot be read.
func (b *Bus) Wanted(ctx context.Context) (w Wanted, d Done, err error) {
	kv, err := b.bucket(ctx, scaleBucket, 0)
	if err != nil {
		return w, d, err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	_, value, err := fencedWanted.readValue(ctx, kv)
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

// readWanted returns the wanted scale in a value. A value that cannot be read counts as none, and is replaced.
func readWanted(value []byte) (w Wanted) {
	if json.Unmarshal(value, &w) != nil {
		return Wanted{}
	}
	return w
}
