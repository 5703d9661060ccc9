package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stator-project/stator/internal/kv/block"
)

// wanted is a block that a call of Load asks for.
type wanted struct {
	place place
	at    int // its index in the call
}

// Load reads blocks: dst[i] becomes the block keys[i], and must have the size of a block. The result has an error or nil for each block.
// It wraps ErrMissing, ErrDamaged, ErrUnavailable, a [Fault] or the error of ctx. After an error dst[i] may have been changed.
//
// Blocks that are neighbours in a pack are read by one request.
func (t *Tier) Load(ctx context.Context, keys []block.Key, dst [][]byte) []error {
	errs := make([]error, len(keys))
	var list []wanted
	for i, k := range keys {
		p, ok := t.catalog.find(k)
		switch {
		case len(dst) != len(keys) || len(dst[i]) != t.cfg.BlockBytes:
			errs[i] = fmt.Errorf("load block %v: it needs a slice of %d bytes", k, t.cfg.BlockBytes)
		case !ok:
			errs[i] = fmt.Errorf("load block %v: %w", k, ErrMissing)
		default:
			list = append(list, wanted{place: p, at: i})
		}
	}

	t.loadRuns(ctx, runsOf(list, t.cfg.BlockBytes), dst, errs)
	return errs
}

// runsOf sorts blocks by their places, and cuts them into runs of neighbours.
func runsOf(list []wanted, blockBytes int) (runs [][]wanted) {
	slices.SortFunc(list, func(a, b wanted) int {
		return cmp.Or(strings.Compare(a.place.pack.name, b.place.pack.name), cmp.Compare(a.place.at, b.place.at))
	})

	for len(list) > 0 {
		n := 1
		for n < len(list) && follows(list[n-1].place, list[n].place, blockBytes) {
			n++
		}
		runs = append(runs, list[:n])
		list = list[n:]
	}
	return runs
}

func follows(a, b place, blockBytes int) bool {
	return a.pack == b.pack && int64(a.entry().offset)+int64(blockBytes) == int64(b.entry().offset)
}

// loadRuns reads runs side by side, as many as requests may be on the way.
func (t *Tier) loadRuns(ctx context.Context, runs [][]wanted, dst [][]byte, errs []error) {
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < len(runs); i = int(next.Add(1)) - 1 {
			t.loadRun(ctx, runs[i], dst, errs)
		}
	}

	var workers sync.WaitGroup
	for range min(len(runs), t.cfg.Requests) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
}

// loadRun reads a run of neighbours by one request, and verifies each block.
func (t *Tier) loadRun(ctx context.Context, run []wanted, dst [][]byte, errs []error) {
	parts := make([][]byte, len(run))
	for i, w := range run {
		parts[i] = dst[w.at]
	}
	source := run[0].place.pack
	// Each block is verified as soon as it is there, because its bytes are in the CPU's cache.
	mac := t.macs.pack(source.name)
	tags := make([]block.Tag, len(run))
	tag := func(i int) { tags[i] = mac.Tag(uint32(run[i].place.at), parts[i]) }

	err := t.getRange(ctx, t.base+"p/"+source.name, int64(run[0].place.entry().offset), parts, tag)
	if errors.Is(err, ErrMissing) {
		t.catalog.remove(source.name)
	}
	for i, w := range run {
		e := w.place.entry()
		switch {
		case err != nil:
			errs[w.at] = fmt.Errorf("load block %v: %w", e.key, err)
		case tags[i] != e.tag:
			t.counters.damaged.Add(1)
			t.catalog.drop(w.place)
			errs[w.at] = fmt.Errorf("load block %v of pack %s: %w", e.key, source.name, ErrDamaged)
		default:
			t.counters.loaded.Add(1)
		}
	}
}
