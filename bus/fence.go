package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrEarlierTerm is returned for a value of a planner that does not lead any more.
var ErrEarlierTerm = errors.New("another planner has published since, in a later term")

// maxTermAhead is the time by which the term of a value may be ahead of the clock of the process that reads it. A term is the
// time at which a planner began to lead, so one beyond is wrong, and would have all later plans refused.
const maxTermAhead = time.Hour

// checkTerm returns an error for a term that is too far ahead of now.
func checkTerm(term uint64, now time.Time) error {
	if last := uint64(now.Add(maxTermAhead).UnixMilli()); term > last {
		return fmt.Errorf("term %d is more than %s ahead of this machine's clock, which allows %d", term, maxTermAhead, last)
	}
	return nil
}

// fenced is a value that the leading planner replaces: the plan, the wanted scale, the assignment of a node. It carries the term
// of the leadership.
type fenced struct {
	bucket, key string
	name        string // for errors
	// readTerm returns the term in a value; 0 for one that cannot be read, which every leader may replace.
	readTerm func(value []byte) uint64
}

// term returns the term of a value; 0 for one that every leader may replace, because it cannot be read or is too far ahead.
func (f *fenced) term(value []byte) uint64 {
	term := f.readTerm(value)
	if checkTerm(term, time.Now()) != nil {
		return 0
	}
	return term
}

// putFenced replaces the value, and waits until the server has stored it. A value of an earlier term than the present one is refused
// with ErrEarlierTerm. It is written at the revision that was read, so if two planners have the same term, only one writes.
func (b *Bus) putFenced(ctx context.Context, f *fenced, term uint64, value []byte) error {
	kv, err := b.bucket(ctx, f.bucket, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()

	// The clocks of planners may differ, and a leader may notice its loss late. Only the stored value counts.
	revision, there, err := f.readValue(ctx, kv)
	if err == nil && there != nil && f.term(there) > term {
		return ErrEarlierTerm
	}
	if err == nil {
		_, err = kv.Update(ctx, f.key, value, revision)
	}
	if err != nil {
		b.forgetBucket(f.bucket) // the server may have lost it
		return fmt.Errorf("publish %s: %w", f.name, err)
	}
	return nil
}

// readValue returns the value and its revision; nil and 0 if there is none.
func (f *fenced) readValue(ctx context.Context, kv jetstream.KeyValue) (revision uint64, value []byte, err error) {
	entry, err := kv.Get(ctx, f.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", f.name, err)
	}
	return entry.Revision(), entry.Value(), nil
}
