package workeragent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// published collects the messages that the agent publishes on the bus.
type published struct {
	mu     sync.Mutex
	events []string  // guarded by mu
	marks  []string  // guarded by mu
	load   *bus.Load // guarded by mu; the newest
	ready  bool      // guarded by mu; the subscription to events works
}

// probe is the worker of a message that shows whether the subscription works.
const probe = "probes.probe"

func (h *published) add(e *feed.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Worker == probe {
		h.ready = true
		return
	}
	if e.Mark {
		h.marks = append(h.marks, fmt.Sprintf("%s/%d epoch %d next %d %v", e.Worker, e.Rank, e.Epoch, e.Seq, e.State))
		return
	}
	h.events = append(h.events, describe(e))
}

func (h *published) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

func describe(e *feed.Message) string {
	text := fmt.Sprintf("%s/%d epoch %d seq %d:", e.Worker, e.Rank, e.Epoch, e.Seq)
	for i := range e.Batch.Events {
		text += fmt.Sprint(" ", e.Batch.Events[i].Kind, " ", e.Batch.Events[i].Hashes)
	}
	return text
}

// listen subscribes to everything until the test ends. It returns when the subscription works.
func listen(t *testing.T, b *bus.Bus) *published {
	h := &published{}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = b.SubscribeEvents(ctx, h.add) })
	all.Go(func() {
		_ = b.SubscribeLoad(ctx, func(l bus.Load) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.load = &l
		})
	})
	probes := b.EventWriter("probes")
	all.Go(func() { probes.Run(ctx) })
	t.Cleanup(func() { cancel(); all.Wait() })
	testkit.Eventually(t, "the subscription works", func() bool {
		if err := probes.Add(bus.EncodeBatch(&feed.Message{Worker: probe, Batch: stored(0)})); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.ready
	})
	return h
}

func testRelay(t *testing.T) *relay {
	cfg, k := Config{Bus: testkit.Bus(t), Log: slog.New(slog.DiscardHandler), PastBatches: pastBatches}, newCacheMirror(0)
	w := fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: 7, BlockSize: 16}
	if _, err := k.fleet.Put(w); err != nil {
		t.Fatal(err)
	}
	events := cfg.Bus.EventWriter("")
	ctx, cancel := context.WithCancel(context.Background())
	var writer sync.WaitGroup
	writer.Go(func() { events.Run(ctx) })
	t.Cleanup(func() { cancel(); writer.Wait() })
	r := newRelay(w, 0, cfg, newMetrics(prometheus.NewRegistry(), k), k, events)
	r.now = func() time.Time { return time.Unix(1000, 0) }
	return r
}

// stored is a batch that stores blocks with these hashes.
func stored(hashes ...uint64) *kvevent.Batch {
	e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
	for _, h := range hashes {
		e.Hashes, e.Blocks = append(e.Hashes, kvevent.EngineHash(h)), append(e.Blocks, blockhash.Block(h))
	}
	return &kvevent.Batch{Events: []kvevent.Event{e}}
}

// apply relays a batch and prints the relay's answer.
func apply(r *relay, seq uint64) string {
	resume, gap := r.Batch(seq, stored(seq))
	if gap {
		return fmt.Sprintf("gap, from %d", resume)
	}
	return "accepted"
}

// TestRelayKeepsOrder: batches are published in order and once. The source has to close a gap. A gap
// that stays open is given up, and routers find it by the missing number.
func TestRelayKeepsOrder(t *testing.T) {
	r := testRelay(t)
	h := listen(t, r.cfg.Bus)
	now := r.now()
	r.now = func() time.Time { return now }
	for _, step := range []struct {
		seq  uint64
		want string
	}{
		{0, "accepted"}, {1, "accepted"},
		{3, "gap, from 2"}, {2, "accepted"}, {3, "accepted"}, // a replay closes the gap
		{3, "accepted"}, {2, "accepted"}, // duplicates are not relayed
		{6, "gap, from 4"}, {6, "gap, from 4"}, {after, ""}, {6, "accepted"}, // no replay closes it
		{4, "accepted"},                                                                       // too late
		{9, "gap, from 7"}, {8, "gap, from 7"}, {after, ""}, {8, "accepted"}, {9, "accepted"}, // a replay that begins late
	} {
		if step.seq == after {
			now = now.Add(3 * time.Second)
			continue
		}
		if got := apply(r, step.seq); got != step.want {
			t.Errorf("%d: %s, want %s", step.seq, got, step.want)
		}
	}
	var want []string
	for _, seq := range []int{0, 1, 2, 3, 6, 8, 9} {
		want = append(want, fmt.Sprintf("a/0 epoch 7 seq %d: stored [%d]", seq, seq))
	}
	testkit.Eventually(t, "all batches arrive", func() bool { return len(h.all()) >= len(want) })
	if got := h.all(); !slices.Equal(got, want) {
		t.Errorf("published\n%s", strings.Join(got, "\n"))
	}
	if n := len(r.past.batches); n != len(want) || r.next != 10 {
		t.Errorf("%d batches remembered, next %d", n, r.next)
	}
}

// after is a step in which the gap has stayed open for too long.
const after = 1 << 60

// TestRelayUsesTheEnginesDialect: TensorRT-LLM is polled over HTTP.
func TestRelayUsesTheEnginesDialect(t *testing.T) {
	answers := make(chan string, 1)
	answers <- `[{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[8]}},
		{"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"block_hash":33,"tokens":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}]}}]`
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer := "[]"
		select {
		case answer = <-answers:
		default:
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer engine.Close()
	r := testRelay(t)
	r.worker.Engine, r.worker.KVEvents = "trtllm", engine.URL
	h := listen(t, r.cfg.Bus)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { r.relayEvents(ctx) })
	defer done.Wait()
	defer cancel()
	testkit.Eventually(t, "the block is published", func() bool { return strings.Contains(strings.Join(h.all(), " "), "stored [33]") })
}

// TestRelayOfRestartedEngine: an engine counts from 0 again inside its process, which its timestamps
// show or the source reports. Its earlier batches are neither replayed nor part of a snapshot.
func TestRelayOfRestartedEngine(t *testing.T) {
	r := testRelay(t)
	b := stored(1, 2, 3)
	b.Seconds = 100
	r.Batch(0, b)
	b = stored(7)
	b.Seconds = 200
	r.Batch(0, b)
	if n := len(r.past.batches); n != 1 || r.next != 1 {
		t.Errorf("remembers %d batches, next %d", n, r.next)
	}
	if s := r.snapshot(0); s == nil || s.Next != 1 || r.mirror.index.Stats().Pairs != 1 {
		t.Errorf("snapshot %+v, %d blocks", s, r.mirror.index.Stats().Pairs)
	}

	r.Restarted()
	if len(r.past.batches) != 0 || r.next != 0 || r.mirror.index.Stats().Pairs != 0 {
		t.Errorf("%d batches remembered, next %d, %d blocks", len(r.past.batches), r.next, r.mirror.index.Stats().Pairs)
	}
	r.CaughtUp(0)
	if n := r.mirror.feed.Stats().Ranks[feed.Exact]; n != 1 {
		t.Errorf("%d ranks are exact", n)
	}
	if s := r.stateLocked(); s != feed.Stale {
		t.Errorf("routers get the state %v, although they cannot distinguish the numbers of two processes", s)
	}
}

// TestMarksHaveTheAgentsState: a mark has the rank's state in the mirror. It is published when the connection
// changes and when the source has caught up, and never before the batches that it counts.
func TestMarksHaveTheAgentsState(t *testing.T) {
	r := testRelay(t)
	h := listen(t, r.cfg.Bus)
	r.Connected(true)
	r.CaughtUp(0)
	apply(r, 0)
	r.publishMark()
	r.Connected(false)
	r.Connected(true)
	r.CaughtUp(1)
	apply(r, 1)

	testkit.Eventually(t, "all batches arrive", func() bool { return len(h.all()) == 2 })
	h.mu.Lock()
	defer h.mu.Unlock()
	want := []string{
		"a/0 epoch 7 next 0 none", "a/0 epoch 7 next 0 exact", "a/0 epoch 7 next 1 exact",
		"a/0 epoch 7 next 1 stale", "a/0 epoch 7 next 1 stale", "a/0 epoch 7 next 1 exact",
	}
	if !slices.Equal(h.marks, want) {
		t.Errorf("marks %q", h.marks)
	}
}

// TestAgentInAGapProvesNothing: while the agent misses batches itself, its marks and replays do not make a router's
// rank exact.
func TestAgentInAGapProvesNothing(t *testing.T) {
	r := testRelay(t)
	h := listen(t, r.cfg.Bus)
	r.Connected(true)
	apply(r, 0)
	if got := apply(r, 5); got != "gap, from 1" {
		t.Fatalf("batch 5 after 0: %s", got)
	}

	r.publishMark()
	testkit.Eventually(t, "the mark arrives", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Contains(h.marks, "a/0 epoch 7 next 1 syncing")
	})
	if _, p := r.replay(0, 1<<20); p.State != feed.Syncing || p.Next != 1 {
		t.Errorf("the position is %+v", p)
	}
}

// TestSnapshotsAreShared: a snapshot also answers the requests of the next seconds. It is not shared
// when it is old, or when the batches after it are no longer remembered. It is dropped when no router
// pulls it. All snapshots together stay within the bound.
func TestSnapshotsAreShared(t *testing.T) {
	r := testRelay(t)
	now := r.now()
	r.now = func() time.Time { return now }
	apply(r, 0)
	first := r.snapshot(0)
	apply(r, 1)
	if first == nil || first.Next != 1 || !first.Complete || len(first.Dump) == 0 || r.snapshot(0) != first || r.snapshot(first.ID) != first {
		t.Fatalf("the first is %+v", first)
	}
	now = now.Add(feed.ShareFor + 1)
	second := r.snapshot(0)
	if second == first || second.Next != 2 || r.snapshot(first.ID) != first {
		t.Errorf("after a while it is %+v", second)
	}
	r.past.batches = r.past.batches[2:]
	apply(r, 2)
	r.past.clear()
	if third := r.snapshot(0); third == second || third.Next != 3 {
		t.Errorf("without a replay it is %+v", third)
	}
	for _, unknown := range []*feed.Snapshot{relays{r}.snapshot(1, 0), r.snapshot(12345)} {
		if unknown != nil {
			t.Errorf("an unknown rank or ID has %+v", unknown)
		}
	}
	if r.mirror.snapshots.Bytes() == 0 {
		t.Error("no snapshot is stored")
	}
	r.mirror.snapshots.Expire(now.Add(feed.StoreFor + 1))
	if n := r.mirror.snapshots.Bytes(); n != 0 || r.snapshot(second.ID) != nil {
		t.Errorf("%d bytes are stored although no router pulls", n)
	}
	most := int64(len(second.Dump)) * 2
	r.mirror.snapshots = feed.NewSnapshots(r.mirror.feed, most, now)
	for seq := range uint64(20) {
		apply(r, 3+seq)
		now = now.Add(feed.ShareFor + 1)
		r.snapshot(0)
		if n := r.mirror.snapshots.Bytes(); n > most {
			t.Fatalf("%d bytes are stored, of at most %d", n, most)
		}
	}
	r.mirror.forget("a")
	if n := r.mirror.snapshots.Bytes(); n != 0 || r.snapshot(0) != nil {
		t.Errorf("%d bytes are stored of a worker that is gone", n)
	}
}

// TestOversizedBatchLeavesGap: a batch too large for one message is counted and not published.
func TestOversizedBatchLeavesGap(t *testing.T) {
	r := testRelay(t)
	if _, gap := r.Batch(0, stored(make([]uint64, 100_000)...)); gap {
		t.Error("a gap is reported to the source, which has none")
	}
	if n := testutil.ToFloat64(r.metrics.unsent); n != 1 {
		t.Errorf("%g unsent", n)
	}
	if got := apply(r, 1); got != "accepted" {
		t.Errorf("the next is %s", got)
	}
}

// simulated is the launch of a simulated engine.
func simulated(name string) engine.Launch {
	return engine.Launch{
		Kind: "sim", Name: name, Model: "sim", ModelPath: "builtin:sim", BlockSize: 16, Self: os.Args[0], Args: map[string]string{"blocks": "256"},
	}
}

// TestEventsAndLoadOfSimulatedEngine: a simulated engine's events and load arrive on the bus under its
// name and epoch, and a replay repeats the events.
func TestEventsAndLoadOfSimulatedEngine(t *testing.T) {
	s := run(t, Config{}, simulated("a"))
	h := listen(t, s.bus)
	w := s.await("a", fleet.Ready, 0)
	if w.Blocks != 256 || w.KVEvents == "" || w.MaxModelLen != 131072 {
		t.Errorf("the worker is %+v", w)
	}
	testkit.Eventually(t, "its load is published", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.load != nil && h.load.Worker == "a" && h.load.Epoch == w.Epoch
	})
	prompt := strings.Repeat("one two three four five six seven eight ", 20)
	answer := post(w.Address, "/v1/completions", fmt.Sprintf(`{"model": "sim", "prompt": %q, "max_tokens": 1}`, prompt))
	if !strings.Contains(answer, `"choices"`) {
		t.Fatal(answer)
	}
	first := fmt.Sprintf("a/0 epoch %d seq 0: stored [", w.Epoch)
	testkit.Eventually(t, "its events are published", func() bool { return len(h.all()) > 0 })
	if got := h.all()[0]; !strings.HasPrefix(got, first) {
		t.Errorf("published %s, want %s", got, first)
	}
	var again []string
	testkit.Eventually(t, "the replay repeats the events", func() bool {
		again = nil
		position, err := s.bus.Replay(t.Context(), "a", w.Epoch, 0, 0, func(e *feed.Message) { again = append(again, describe(e)) })
		if err != nil || position.Epoch != w.Epoch || int(position.Next) != len(again) || position.State != feed.Exact {
			t.Fatalf("position %+v, %v; replayed\n%s", position, err, strings.Join(again, "\n"))
		}
		return slices.Equal(again, h.all())
	})
	again = nil
	if _, err := s.bus.Replay(t.Context(), "a", w.Epoch, 1, 0, func(e *feed.Message) { again = append(again, describe(e)) }); err != nil || len(again) != 0 {
		t.Errorf("a rank that does not exist: %v, %v", again, err)
	}
}
