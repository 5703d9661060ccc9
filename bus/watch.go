package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/internal/backoff"
)

// watcher handles the entries that a watch of a bucket receives. Its methods are called one at a time.
type watcher interface {
	// started is called whenever the watch begins: at first, and after every reconnection.
	started()
	// entry is called for every entry that is there and for every change. A nil entry follows the
	// entries that were there when the watch began.
	entry(jetstream.KeyValueEntry)
	// check is called several times in the lifetime of entries, to find expired ones.
	check(context.Context, jetstream.KeyValue)
}

// lasting is a part of watchers whose entries stay in force until others replace them.
type lasting struct{}

func (lasting) started() {}

func (lasting) check(context.Context, jetstream.KeyValue) {}

// checks is the number of times that a watcher checks its entries in their lifetime.
const checks = 8

// retryWatch is the time until a failed watch is tried again.
const retryWatch = 250 * time.Millisecond

// allKeys stands for all keys of a bucket.
const allKeys = jetstream.AllKeys

// watch follows keys of a bucket, whose entries live for lifetime, until ctx ends. It starts again after every reconnection, because a
// server that restarted has lost the watch.
func (b *Bus) watch(ctx context.Context, bucket, keys string, lifetime time.Duration, to watcher) {
	for ctx.Err() == nil {
		err := b.watchOnce(ctx, bucket, keys, lifetime, to)
		if err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn("watch ended; trying again", "bucket", bucket, "err", err)
			_ = backoff.Sleep(ctx, retryWatch) // the loop sees that ctx has ended
		}
	}
}

// watchOnce follows a bucket until ctx ends, the server is back after a loss, or the watch breaks.
func (b *Bus) watchOnce(ctx context.Context, bucket, keys string, lifetime time.Duration, to watcher) error {
	reconnected := b.Back()
	kv, err := b.bucket(ctx, bucket, lifetime)
	if err != nil {
		return err
	}

	// The end of its context ends the watch's subscription, also while the server is away: messages that come for it later would be kept,
	// and nothing would read them. [jetstream.KeyWatcher.Stop] waits seconds for a server that is away.
	watching, end := context.WithCancel(ctx)
	defer end()
	w, err := kv.Watch(watching, keys)
	if err != nil {
		b.forgetBucket(bucket) // the server may have lost it
		return fmt.Errorf("watch %s: %w", bucket, err)
	}

	// Entries that are there come first, so that a watcher can find the entries that have gone meanwhile.
	to.started()
	tick := time.NewTicker(max(lifetime, time.Second) / checks)
	defer tick.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reconnected:
			return nil
		case <-tick.C:
			to.check(ctx, kv)
		case entry, open := <-w.Updates():
			if !open {
				return errors.New("the server ended the watch")
			}
			to.entry(entry)
		}
	}
}
