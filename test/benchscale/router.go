package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/extproc/cachesync"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/test/process"
)

// figures are a router's measurements since the last figures, or since its start.
type figures struct {
	Elapsed time.Duration `json:"elapsed"`
	CPU     time.Duration `json:"cpu"`
	Batches int64         `json:"batches"`
	Exact   int           `json:"exact"` // ranks
	// Joined is the time from the connection to the bus until all ranks were exact; 0 if they are not yet.
	Joined time.Duration `json:"joined"`
	Gaps   uint64        `json:"gaps"`
	// Lags is the age of a sample of batches when they were applied, sorted.
	Lags       []time.Duration `json:"lags"`
	RSS        int64           `json:"rss"`
	IndexBytes int64           `json:"index_bytes"`
}

// router is the part of a router that knows caches.
type router struct {
	*knowledge
	*bus.Bus

	batches atomic.Int64
	gaps    uint64 // at the last figures

	mu   sync.Mutex
	lags []time.Duration // guarded by mu
}

// maxLags bounds the sample of lags, of which every lagEvery-th batch has one.
const (
	maxLags  = 1 << 18
	lagEvery = 8
)

// SubscribeEvents measures the messages that the bus delivers.
func (r *router) SubscribeEvents(ctx context.Context, apply func(*feed.Message)) error {
	return r.Bus.SubscribeEvents(ctx, func(m *feed.Message) {
		apply(m)
		if m.Mark {
			return
		}
		r.batches.Add(1)
		if rand.IntN(lagEvery) == 0 {
			r.addLag(time.Since(time.Unix(0, int64(m.Batch.Seconds*1e9))))
		}
	})
}

func (r *router) addLag(lag time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.lags) < maxLags {
		r.lags = append(r.lags, lag)
	}
}

// runRouter follows the bus, and prints figures for every line of in.
func runRouter(ctx context.Context, o *options, in io.Reader, out io.Writer) error {
	b, err := join(ctx, o)
	if err != nil {
		return err
	}
	defer b.Close()
	began := time.Now()
	r := &router{knowledge: newKnowledge(), Bus: b}

	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	caches := cachesync.New(cachesync.Config{Fleet: r.fleet, Feed: r.feed, Log: log, Metrics: prometheus.NewRegistry()})
	all.Go(func() { _ = discovery.Bus(ctx, discovery.Config{Bus: b, Fleet: r.fleet, Log: log}) })
	all.Go(func() { _ = caches.Run(ctx, r) })

	var joined atomic.Int64
	all.Go(func() {
		for ctx.Err() == nil && r.feed.Stats().Ranks[feed.Exact] < o.live {
			time.Sleep(5 * time.Millisecond)
		}
		joined.Store(int64(time.Since(began)))
	})

	last, cpu := began, time.Duration(0)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		now, spent := time.Now(), process.OwnCPU()
		f, err := r.take()
		if err != nil {
			return err
		}
		f.Elapsed, f.CPU = now.Sub(last), spent-cpu
		f.Joined = time.Duration(joined.Load())
		last, cpu = now, spent
		if err := json.NewEncoder(out).Encode(f); err != nil {
			return err
		}
	}
	return lines.Err()
}

// take returns the figures, and begins new ones.
func (r *router) take() (*figures, error) {
	r.mu.Lock()
	lags := r.lags
	r.lags = nil
	r.mu.Unlock()

	slices.Sort(lags)
	stats := r.feed.Stats()
	before := r.gaps
	r.gaps = stats.Gaps
	rss, err := process.Resident(os.Getpid())
	return &figures{
		Batches: r.batches.Swap(0), Exact: stats.Ranks[feed.Exact], Gaps: stats.Gaps - before, Lags: lags,
		RSS: rss, IndexBytes: r.index.Stats().Bytes,
	}, err
}
