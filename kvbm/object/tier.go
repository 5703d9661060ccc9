package object

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/block"
)

// Config configures a tier. Only Bucket, Space, BlockBytes and Node have no default.
type Config struct {
	// Bucket is the store. Its owner closes it after Run has ended.
	Bucket Bucket
	// Prefix begins the names of all objects. It has at most 512 bytes.
	Prefix string
	// Space is the layout of the blocks, and BlockBytes the size of each.
	Space      block.Space
	BlockBytes int
	// Secret authenticates blocks, so that blocks that others wrote to the bucket are refused: nodes that share blocks have the same one.
	// Without it everyone who can write to the bucket can write false blocks.
	Secret string
	// Node is the name under which this node's packs are deleted: 1 to 63 letters, digits, dots and underscores.
	Node string

	// PackBytes is the size at which a pack is written (16 MiB). It is rounded down to whole blocks.
	PackBytes int
	// FlushAfter is the age at which a pack is written that is not full (2 s).
	FlushAfter time.Duration
	// Packs is the number of packs in memory, each of PackBytes: one is being filled, the others wait or are being written (6).
	Packs int
	// Writers is the number of packs that are written at once (2).
	Writers int
	// PackLifetime bounds the attempts to write a pack (1 min).
	PackLifetime time.Duration

	// Requests is the number of requests on the way at once (16).
	Requests int
	// Timeout is the longest that a request takes (15 s). Contexts of callers may end it sooner.
	Timeout time.Duration
	// SlowAfter is the time after which a request without an answer counts as a fault of the store (2 s). Probes must be faster.
	SlowAfter time.Duration

	// MaxBlocks bounds the blocks that are remembered, at about 120 bytes each (262,144).
	MaxBlocks int
	// LearnEvery is the time between lists of what others have published (5 s), and Overlap how far back each looks (5 min).
	LearnEvery, Overlap time.Duration
	// SweepEvery is the time between lists of everything (10 min), with deletion.
	SweepEvery time.Duration
	// MaxAge is the age at which a pack is deleted (7 days), and MaxBytes the size of the node's packs above which the oldest are
	// deleted (0: no bound).
	MaxAge   time.Duration
	MaxBytes int64
	// DeleteOthers applies MaxAge and MaxBytes to the packs of all nodes. At most one node may have it.
	DeleteOthers bool
}

func (c *Config) setDefaults() {
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	number(&c.PackBytes, 16<<20)
	number(&c.Packs, 6)
	number(&c.Writers, 2)
	number(&c.Requests, 16)
	number(&c.MaxBlocks, 1<<18)

	pause := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	pause(&c.FlushAfter, 2*time.Second)
	pause(&c.PackLifetime, time.Minute)
	pause(&c.Timeout, 15*time.Second)
	pause(&c.SlowAfter, 2*time.Second)
	pause(&c.LearnEvery, 5*time.Second)
	pause(&c.Overlap, 5*time.Minute)
	pause(&c.SweepEvery, 10*time.Minute)
	pause(&c.MaxAge, 7*24*time.Hour)
}

func (c *Config) validate() error {
	switch {
	case c.Bucket == nil:
		return errors.New("open object tier: it needs a bucket")
	case !nodePattern.MatchString(c.Node):
		return fmt.Errorf("open object tier: node %q must be 1 to 63 letters, digits, dots and underscores", c.Node)
	case len(c.Prefix) > 512:
		return fmt.Errorf("open object tier: the prefix has %d bytes, at most 512 are allowed", len(c.Prefix))
	case c.BlockBytes < 1 || c.BlockBytes > c.PackBytes || c.PackBytes > maxPackBytes:
		return fmt.Errorf("open object tier: a block of %d bytes does not fit into a pack of %d, or that is above %d: set packBytes",
			c.BlockBytes, c.PackBytes, maxPackBytes)
	case c.Packs < 2 || c.Packs > 1024:
		return fmt.Errorf("open object tier: packs is %d, and must be from 2 to 1024: one is filled while others are written", c.Packs)
	case c.Writers < 1 || c.Requests <= c.Writers || c.Requests > 1024:
		return fmt.Errorf("open object tier: %d writers of %d requests: readers need requests too, and at most 1024 are allowed",
			c.Writers, c.Requests)
	case c.MaxBlocks < maxEntries:
		return fmt.Errorf("open object tier: maxBlocks is %d, and must be at least %d, as many as a pack may have", c.MaxBlocks, maxEntries)
	}

	for _, d := range []time.Duration{c.FlushAfter, c.PackLifetime, c.Timeout, c.SlowAfter, c.LearnEvery, c.Overlap, c.SweepEvery,
		c.MaxAge} {
		if d < 0 {
			return errors.New("open object tier: a time is negative")
		}
	}
	return nil
}

// Tier is the blocks in an object store. See the package's description.
type Tier struct {
	cfg   Config
	base  string // begins the names of this space's objects
	macs  macs
	nonce [8]byte

	health   *health
	catalog  *catalog
	requests chan struct{} // one element for each request on the way
	writing  writing
	counters counters
}

// counters are the counts that Stats reports, apart from the counts of other parts.
type counters struct {
	stored, duplicates, busy  atomic.Int64
	packs, published, dropped atomic.Int64
	loaded, damaged           atomic.Int64
	indexes, badIndexes       atomic.Int64
	bytesRead, requestFails   atomic.Int64
}

// Open returns a tier that does nothing until Run is called.
func Open(cfg Config) (*Tier, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}

	t := &Tier{
		cfg:      cfg,
		base:     strings.TrimSuffix(cfg.Prefix, "/") + "/v2/" + hex.EncodeToString(cfg.Space[:]) + "/",
		health:   newHealth(cfg.SlowAfter),
		catalog:  newCatalog(cfg.MaxBlocks),
		requests: make(chan struct{}, cfg.Requests),
	}
	t.base = strings.TrimPrefix(t.base, "/")
	if _, err := rand.Read(t.nonce[:]); err != nil {
		return nil, err
	}
	derived, err := newMACs(cfg.Secret, cfg.Space)
	if err != nil {
		return nil, fmt.Errorf("open object tier: %w", err)
	}
	t.macs = derived
	t.writing.init(cfg)
	return t, nil
}

// Run probes, writes packs, learns of packs that others publish, and sweeps, until ctx ends. Then it writes the packs in memory for at
// most closing, after which the packs that are left are dropped and counted. Call it once. When it returns, its goroutines have ended.
func (t *Tier) Run(ctx context.Context, closing time.Duration) {
	drain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var writers, others sync.WaitGroup
	for range t.cfg.Writers {
		writers.Go(func() { t.write(drain) })
	}
	others.Go(func() { t.health.keepProbing(ctx, t.probe) })
	others.Go(func() {
		backoff.Every(ctx, max(t.cfg.FlushAfter/2, time.Millisecond), func(time.Time) { t.seal(t.cfg.FlushAfter) })
	})
	others.Go(func() { t.learnAlways(ctx) })
	others.Go(func() { backoff.Every(ctx, max(t.cfg.SweepEvery, time.Millisecond), func(time.Time) { t.sweep(ctx) }) })

	<-ctx.Done()
	timer := time.AfterFunc(closing, cancel)
	defer timer.Stop()
	t.closeQueue()
	writers.Wait()
	others.Wait()
}

// request does one request with its deadline, when fewer than Config.Requests are on the way, and records its result.
func (t *Tier) request(ctx context.Context, do func(context.Context) error) error {
	if err := t.health.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	select {
	case t.requests <- struct{}{}:
		defer func() { <-t.requests }()
	case <-ctx.Done():
		return fmt.Errorf("wait for one of %d requests: %w", t.cfg.Requests, ctx.Err())
	}

	// The store may have failed while this call waited.
	if err := t.health.check(); err != nil {
		return err
	}
	began := time.Now()
	err := do(ctx)
	t.health.record(began, err)
	if err != nil && !errors.Is(err, ErrMissing) {
		t.counters.requestFails.Add(1)
	}
	return err
}

// putObject writes an object. It does not matter whether it is there already: names are used once.
func (t *Tier) putObject(ctx context.Context, name string, data []byte) error {
	return t.request(ctx, func(ctx context.Context) error {
		_, err := t.cfg.Bucket.PutIfAbsent(ctx, name, data)
		return err
	})
}

// getRange reads a part of an object.
func (t *Tier) getRange(ctx context.Context, name string, offset int64, dst [][]byte, filled func(i int)) error {
	return t.request(ctx, func(ctx context.Context) error {
		err := t.cfg.Bucket.GetRange(ctx, name, offset, dst, filled)
		if err == nil {
			for _, d := range dst {
				t.counters.bytesRead.Add(int64(len(d)))
			}
		}
		return err
	})
}

// list reads a page of names.
func (t *Tier) list(ctx context.Context, prefix, after string) (page []Object, more bool, err error) {
	err = t.request(ctx, func(ctx context.Context) error {
		page, more, err = t.cfg.Bucket.List(ctx, prefix, after, pageNames)
		return err
	})
	return page, more, err
}

// probe uses each permission that the tier needs, apart from deletion. It takes no place among the requests, and is not recorded.
func (t *Tier) probe(ctx context.Context) error {
	name := t.base + "probe"
	if _, err := t.cfg.Bucket.PutIfAbsent(ctx, name, []byte{1}); err != nil {
		return fmt.Errorf("write probe: %w", err)
	}
	if err := t.cfg.Bucket.GetRange(ctx, name, 0, [][]byte{make([]byte, 1)}, nil); err != nil {
		return fmt.Errorf("read probe: %w", err)
	}
	if _, _, err := t.cfg.Bucket.List(ctx, name, "", 1); err != nil {
		return fmt.Errorf("list probe: %w", err)
	}
	return nil
}

// Has reports whether a block is published, as far as this node has learned.
func (t *Tier) Has(k block.Key) bool {
	_, ok := t.catalog.find(k)
	return ok
}

// Match returns how many of the keys, from the first on, are published, as far as this node has learned.
func (t *Tier) Match(keys []block.Key) int { return t.catalog.match(keys) }
