package kvbm

import (
	"context"
	"sync"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/disk"
	"github.com/stator-project/stator/kvbm/object"
)

// Backend is a tier behind host memory.
type Backend interface {
	// Match returns how many of the keys the tier has, from the first on without a gap.
	Match(keys []block.Key) int
	// Has reports whether the tier has a block.
	Has(key block.Key) bool
	// Load reads blocks: dst[i] becomes the block keys[i]. The result has an error or nil for each. After it returns nothing writes to
	// dst.
	Load(ctx context.Context, keys []block.Key, dst [][]byte) []error
	// Store writes a block, or takes it over to write it later. data is not used after it returns.
	Store(ctx context.Context, key block.Key, data []byte, priority uint8) error
}

// Disk returns a disk as a backend.
func Disk(d *disk.Disk) Backend { return diskBackend{d} }

type diskBackend struct{ *disk.Disk }

// readsAtOnce bounds the blocks of one fetch that a disk reads at once. The disk has its own bound for all fetches.
const readsAtOnce = 32

func (d diskBackend) Load(ctx context.Context, keys []block.Key, dst [][]byte) []error {
	errs := make([]error, len(keys))
	atOnce(readsAtOnce, len(keys), func(i int) { errs[i] = d.Disk.Load(ctx, keys[i], dst[i]) })
	return errs
}

// atOnce calls do for 0 to n-1, at most so many at a time, and waits for all.
func atOnce(most, n int, do func(i int)) {
	next := make(chan int)
	var all sync.WaitGroup
	for range min(most, n) {
		all.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// Object returns an object store as a backend.
func Object(t *object.Tier) Backend { return objectBackend{t} }

type objectBackend struct{ *object.Tier }

func (o objectBackend) Store(_ context.Context, key block.Key, data []byte, _ uint8) error {
	return o.Tier.Store(key, data)
}
