package bus

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/process"
)

// The fleets of BenchmarkIntake. The largest has 4 million pairs of block and rank.
const (
	intakeEach   = 8    // workers of a node
	intakeBlocks = 4096 // blocks of a worker
)

// churn is an engine whose cache is full: each batch stores four blocks that continue a prompt and removes the four
// oldest, one event each, as vLLM reports them.
type churn struct {
	message feed.Message
	last    uint64
	held    []uint64 // engine hashes, oldest first
}

// fill returns the batches that fill the cache.
func (c *churn) fill(rng *rand.Rand, blocks int, apply func(*feed.Message)) {
	for range blocks / 64 {
		c.message.Batch = &kvevent.Batch{Seconds: 1, Events: []kvevent.Event{c.stored(rng, 64, false)}}
		apply(&c.message)
		c.message.Seq++
	}
}

// next is the next batch. It is valid until the next call.
func (c *churn) next(rng *rand.Rand) *feed.Message {
	b := &kvevent.Batch{Seconds: 1, Events: []kvevent.Event{c.stored(rng, 4, true)}}
	for _, h := range c.held[:4] {
		b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{kvevent.EngineHash(h)}})
	}
	c.held = c.held[4:]
	if cap(c.held) < len(c.held)+4 {
		c.held = append(make([]uint64, 0, 2*len(c.held)), c.held...)
	}
	c.message.Batch = b
	return &c.message
}

func (c *churn) stored(rng *rand.Rand, n int, continues bool) kvevent.Event {
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, HasParent: continues, Parent: kvevent.EngineHash(c.last)}
	for range n {
		c.last = rng.Uint64()
		c.held = append(c.held, c.last)
		e.Hashes = append(e.Hashes, kvevent.EngineHash(c.last))
		e.Blocks = append(e.Blocks, blockhash.Block(rng.Uint64()))
	}
	return e
}

// intakeFleet is a router's knowledge of the fleet, and the engines.
type intakeFleet struct {
	feed    *feed.Feed
	engines []*churn
	rng     *rand.Rand
}

func newIntakeFleet(b testing.TB, nodes, blocks int) *intakeFleet {
	members := fleet.New(fleet.Hooks{})
	f := &intakeFleet{
		feed: feed.New(feed.Config{}, members, kvindex.New(kvindex.Config{MaxBytes: 1 << 30})), rng: rand.New(rand.NewPCG(1, 2)),
	}
	for i := range nodes * intakeEach {
		c := &churn{message: feed.Message{Worker: fmt.Sprintf("node-%d.sim-%d", i/intakeEach, i%intakeEach), Epoch: 1 << 60}}
		_, err := members.Put(fleet.Worker{
			Name: c.message.Worker, Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: 1 << 60, BlockSize: 16, State: fleet.Ready,
		})
		if err != nil {
			b.Fatal(err)
		}
		f.engines = append(f.engines, c)
	}
	for _, c := range f.engines {
		c.fill(f.rng, blocks, func(m *feed.Message) { f.feed.Apply(m, time.Unix(1, 0)) })
	}
	return f
}

// messages returns n batches in messages as agents publish them: one of each of a node's workers.
func (f *intakeFleet) messages(n int) []*nats.Msg {
	var all []*nats.Msg
	for node := 0; n > 0; node = (node + 1) % (len(f.engines) / intakeEach) {
		m := &nats.Msg{Subject: fmt.Sprintf("stator.v1.test.kv.node-%d", node)}
		for i := range min(n, intakeEach) {
			c := f.engines[node*intakeEach+i]
			m.Data = appendBatch(m.Data, EncodeBatch(c.next(f.rng)))
			c.message.Seq++
			n--
		}
		all = append(all, m)
	}
	return all
}

// BenchmarkIntake: what does a router spend on a batch of four stored and four removed blocks, from the bytes of the bus
// to the index? With 1,000 workers on 125 nodes 4 million pairs are in the index. The 8 workers of one node have 1.5 MiB
// of tables, which stay in the processor's caches: the difference is the time of waiting for memory. cpu-ns/op is the CPU
// time of a batch without the time of making it; ns/op is the elapsed time, which two goroutines share. It leaves out the
// client of the bus, and the state that extproc/cachesync keeps of each rank.
//
//	go test -run - -bench Intake -benchtime 200000x ./bus
func BenchmarkIntake(b *testing.B) {
	for _, nodes := range []int{1, 12, 125} {
		f := newIntakeFleet(b, nodes, intakeBlocks)
		for _, intakes := range []int{1, 2} {
			name := fmt.Sprintf("workers=%d/goroutines=%d", nodes*intakeEach, intakes)
			b.Run(name, func(b *testing.B) { f.bench(b, intakes) })
		}
	}
}

func (f *intakeFleet) bench(b *testing.B, intakes int) {
	var applied, missing atomic.Int64
	in := newIntake(b, intakes, func(m *feed.Message) {
		if f.feed.Apply(m, time.Unix(2, 0)).Verdict != feed.Applied {
			missing.Add(1)
		}
		applied.Add(1)
	})
	ctx, stop := context.WithCancel(b.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for _, queue := range in.queues {
		readers.Go(func() { in.applyQueue(ctx, queue) })
	}

	const round = 50_000
	var spent time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += round {
		b.StopTimer()
		n := min(round, b.N-done)
		messages := f.messages(n)
		target := applied.Load() + int64(n)
		runtime.GC()
		before := process.OwnCPU()
		b.StartTimer()

		for _, m := range messages {
			in.enqueue(m)
		}
		for applied.Load() < target {
			time.Sleep(100 * time.Microsecond)
		}
		spent += process.OwnCPU() - before
	}
	b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/op")
	if n := missing.Load(); n != 0 {
		b.Errorf("%d batches were not applied", n)
	}
}

// newIntake returns an intake without a connection. Nothing reads its queues yet.
func newIntake(t testing.TB, goroutines int, apply func(*feed.Message)) *intake {
	t.Helper()
	in := &intake{bus: &Bus{reader: newReader(&Config{Log: slog.New(slog.DiscardHandler)})}, apply: apply}
	for range goroutines {
		in.queues = append(in.queues, make(chan *nats.Msg, 1<<16))
	}
	return in
}
