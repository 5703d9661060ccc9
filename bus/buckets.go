package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/internal/backoff"
)

const (
	// bucketTime is the longest time that opening a bucket may take.
	bucketTime = 5 * time.Second
	// bucketWait is the time for which a member with a login waits for another one to create a bucket.
	bucketWait = time.Second
	// maxValue bounds a value in bytes: a lease, or a plan, which has some 25 bytes for each worker.
	maxValue = 1 << 19
)

// bucket returns a bucket of key-value pairs, which live for ttl; 0 keeps them. It is opened once for each connection,
// and created when the server has none.
func (b *Bus) bucket(ctx context.Context, name string, ttl time.Duration) (jetstream.KeyValue, error) {
	b.mu.Lock()
	kv, isOpen := b.buckets[name]
	reconnection := b.back
	b.mu.Unlock()
	if isOpen {
		return kv, nil
	}

	ctx, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	kv, err := b.openBucket(ctx, bucketName(b.cfg.Cluster, name), streamConfig(b.cfg.Cluster, name, ttl))
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucketName(b.cfg.Cluster, name), err)
	}

	// A reconnection in between may be to a server that has lost the bucket.
	b.mu.Lock()
	defer b.mu.Unlock()
	if reconnection == b.back {
		b.buckets[name] = kv
	}
	return kv, nil
}

// CreateBuckets creates the cluster's buckets that the server does not have yet, for members whose role may not.
// It returns when they are there.
func (b *Bus) CreateBuckets(ctx context.Context) error {
	for _, name := range []string{workerBucket, leaderBucket, slotsBucket} {
		if _, err := b.bucket(ctx, name, b.cfg.LeaseTTL); err != nil {
			return err
		}
	}
	for _, name := range []string{scaleBucket, planBucket, assignBucket, spentBucket} {
		if _, err := b.bucket(ctx, name, 0); err != nil {
			return err
		}
	}
	return nil
}

// openBucket opens a bucket, whose stream should be as wanted. Members without the permission to create or change buckets
// can still use one that is there.
func (b *Bus) openBucket(ctx context.Context, bucket string, want jetstream.StreamConfig) (jetstream.KeyValue, error) {
	stream, err := b.js.Stream(ctx, want.Name)

	// A member with a login may come between the start of a locked server and the creation of its buckets.
	for deadline := time.Now().Add(bucketWait); errors.Is(err, jetstream.ErrStreamNotFound) && b.cfg.Login.isSet(); {
		if time.Now().After(deadline) || backoff.Sleep(ctx, bucketWait/20) != nil {
			break
		}
		stream, err = b.js.Stream(ctx, want.Name)
	}

	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		_, err = b.js.CreateOrUpdateStream(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("create it, which only the role admin may: %w", err)
		}
	case err != nil:
		return nil, err
	default:
		b.adjust(ctx, stream.CachedInfo().Config, want)
	}
	return b.js.KeyValue(ctx, bucket)
}

// adjust changes a bucket whose lifetime or rules differ from the ones that this process expects. A bucket outlives the
// processes that use it, so another configuration may have made it. A member without the permission logs the difference
// and uses the bucket as it is.
func (b *Bus) adjust(ctx context.Context, have, want jetstream.StreamConfig) {
	if have.MaxAge == want.MaxAge && have.AllowRollup == want.AllowRollup && have.AllowDirect == want.AllowDirect {
		return
	}
	_, err := b.js.UpdateStream(ctx, want)
	if err != nil && b.reader.warnings.due(logKey{kind: warnLifetime}) {
		b.cfg.Log.Warn("the bucket is not as this process expects it; set bus.leaseTTL alike everywhere",
			"bucket", want.Name, "lifetime", have.MaxAge, "expected", want.MaxAge, "err", err)
	}
}

// forgetBucket has the bucket opened again at its next use.
func (b *Bus) forgetBucket(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	delete(b.buckets, name)
}

// checkBucket returns the error of an operation on a bucket. If the server has lost the bucket, it is opened again at its next use.
func (b *Bus) checkBucket(name string, err error) error {
	if isBucketLost(err) {
		b.forgetBucket(name)
	}
	return err
}

// deleteKey deletes a key whose entry would expire by itself. It does not wait for a bus that is away. The log gets the name of the entry.
func (b *Bus) deleteKey(bucket, key, name string, opts ...jetstream.KVDeleteOpt) {
	if !b.control.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	kv, err := b.bucket(ctx, bucket, b.cfg.LeaseTTL)
	if err == nil {
		err = kv.Delete(ctx, key, opts...)
	}
	if err != nil {
		b.cfg.Log.Debug("entry left to expire", "entry", name, "err", err)
	}
}

// isBucketLost reports whether an error means that the server has no such bucket.
func isBucketLost(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound)
}

// bucketName returns the name of a bucket of a cluster.
func bucketName(cluster, name string) string { return "stator-" + cluster + "-" + name }

// streamName returns the name of the stream that stores a bucket.
func streamName(cluster, name string) string { return "KV_" + bucketName(cluster, name) }

// streamConfig returns the stream of a bucket. It differs from the stream that the client's library makes in two
// rules. Roll-ups are off, because with them a client that may write one key can delete all others. Direct reads are
// off, because their answer is the bare value, which a client could have sent to the key of another.
func streamConfig(cluster, name string, ttl time.Duration) jetstream.StreamConfig {
	window := 2 * time.Minute // NATS remembers ids of messages for as long at most
	if ttl > 0 {
		window = min(window, ttl)
	}
	return jetstream.StreamConfig{
		Name: streamName(cluster, name), Subjects: []string{"$KV." + bucketName(cluster, name) + ".>"},
		Storage: jetstream.MemoryStorage, Discard: jetstream.DiscardNew, DenyDelete: true,
		MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: maxValue, MaxConsumers: -1, Replicas: 1,
		MaxAge: ttl, Duplicates: window,
	}
}
