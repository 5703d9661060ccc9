package serving

import (
	"cmp"
	"errors"
	"fmt"
)

// Busy sets when a rank is busy and takes no more requests. The zero Busy sets no bound.
//
// Engines have queues themselves, so bounds are optional. But a request in an engine's queue can
// neither move to another rank nor be overtaken. Classes, deadlines and fairness therefore need bounds.
type Busy struct {
	// PrefillTokens bounds the booked prompt tokens of a rank that are not computed yet. A rank with more
	// is busy. 0 is no bound.
	PrefillTokens int64
	// PrefillShare sets the same bound as a share of MaxNumBatchedTokens, which is the engine's setting of
	// that name. 0 is no bound. It has no effect if MaxNumBatchedTokens is 0, unknown.
	PrefillShare        float64
	MaxNumBatchedTokens int64
	// KVUsage bounds the share of a rank's KV cache that is in use, 0 to 1. The larger of the engine's
	// report and the booked blocks counts. A rank above it is busy until it is below KVRelease of it. 0 is no
	// bound.
	KVUsage float64
	// Status is the HTTP status of a refusal for this reason: 429, 503 (default) or 529.
	Status int
}

// KVRelease is the share of Busy.KVUsage below which a busy rank is free again.
const KVRelease = 0.9

// DefaultBusyStatus is the status of a refusal because all ranks are busy.
const DefaultBusyStatus = 503

// Validate reports every field that is wrong, one to a line, each after its key in the configuration.
func (b *Busy) Validate() error {
	var errs []error
	if b.PrefillTokens < 0 {
		errs = append(errs, fmt.Errorf("prefillTokens: is %d, and must be at least 0", b.PrefillTokens))
	}
	if b.MaxNumBatchedTokens < 0 {
		errs = append(errs, fmt.Errorf("maxNumBatchedTokens: is %d, and must be at least 0", b.MaxNumBatchedTokens))
	}
	if !(b.PrefillShare >= 0) {
		errs = append(errs, fmt.Errorf("prefillShare: is %v, and must be at least 0", b.PrefillShare))
	}
	if b.PrefillShare > 0 && b.MaxNumBatchedTokens == 0 {
		errs = append(errs, errors.New("maxNumBatchedTokens: is required with prefillShare: the engines' max_num_batched_tokens"))
	}

	if !(b.KVUsage >= 0 && b.KVUsage <= 1) {
		errs = append(errs, fmt.Errorf("kvUsage: is %v, and must lie between 0 and 1", b.KVUsage))
	}

	switch b.Status {
	case 0, 429, DefaultBusyStatus, 529:
	default:
		errs = append(errs, fmt.Errorf("status: is %d: use 429, 503 or 529", b.Status))
	}
	return errors.Join(errs...)
}

// PrefillBound is the most booked prefill tokens of a rank that is not busy; 0 is no bound.
func (b *Busy) PrefillBound() int64 {
	bound := b.PrefillTokens
	if share := int64(b.PrefillShare * float64(b.MaxNumBatchedTokens)); share > 0 && (bound == 0 || share < bound) {
		bound = share
	}
	return bound
}

// IsSet reports whether any bound is set.
func (b *Busy) IsSet() bool { return b.PrefillBound() > 0 || b.KVUsage > 0 }

func (b *Busy) RefusalStatus() int { return cmp.Or(b.Status, DefaultBusyStatus) }
