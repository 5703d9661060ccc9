package bus_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// embed runs a server on a port of its own, so that it can be stopped and started again.
func embed(t *testing.T, port int) *bus.Embedded {
	t.Helper()
	e, err := bus.Embed(bus.EmbedConfig{Host: "127.0.0.1", Port: port, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func connect(t *testing.T, url string) *bus.Bus {
	t.Helper()
	return testkit.JoinBus(t, bus.Config{URL: url})
}

// members is the fleet as a watcher sees it.
type members struct {
	mu sync.Mutex
	m  map[string]fleet.Worker
}

func (m *members) apply(l bus.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.Worker == nil {
		delete(m.m, l.Name)
		return
	}
	m.m[l.Name] = *l.Worker
}

func (m *members) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for name, w := range m.m {
		out = append(out, name+"="+w.State.String())
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// running starts f and returns what ends and awaits it.
func running(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func worker(name string, s fleet.State) fleet.Worker {
	return fleet.Worker{
		Name: name, Model: "m", Address: "10.0.0.1:80", Engine: "vllm", Epoch: 7, Ranks: 2, Weight: 3, State: s, Taints: "fast,zone=a,",
		KVEvents: "tcp://10.0.0.1:5557", KVReplay: "tcp://10.0.0.1:5558", Blocks: 100, BlockSize: 16,
	}
}

// TestLeaseLifecycle: a worker appears with its whole description, changes, and is gone at once when its
// agent removes the lease.
func TestLeaseLifecycle(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	seen := &members{m: map[string]fleet.Worker{}}
	running(t, func(ctx context.Context) error { return connect(t, e.URL()).WatchWorkers(ctx, seen.apply, nil) })

	var mu sync.Mutex
	now, changed := worker("w", fleet.Starting), make(chan struct{}, 1)
	holder := connect(t, e.URL())
	stop := running(t, func(ctx context.Context) error {
		return holder.HoldWorker(ctx, bus.Claim{Name: "w", Current: func() fleet.Worker { mu.Lock(); defer mu.Unlock(); return now }, Changed: changed})
	})
	testkit.Eventually(t, "the worker is seen", func() bool { return seen.String() == "[w=starting]" })
	seen.mu.Lock()
	if got := seen.m["w"]; got != worker("w", fleet.Starting) {
		t.Errorf("the worker came as %+v", got)
	}
	seen.mu.Unlock()
	mu.Lock()
	now.State = fleet.Ready
	mu.Unlock()
	changed <- struct{}{}
	testkit.Eventually(t, "the change is seen", func() bool { return seen.String() == "[w=ready]" })
	stop()
	testkit.Eventually(t, "the worker is gone", func() bool { return seen.String() == "[]" })
}

// TestLeaseIsBackAfterAPause: a holder that pauses for longer than the lease lives loses it, and writes
// it again.
func TestLeaseIsBackAfterAPause(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	seen := &members{m: map[string]fleet.Worker{}}
	running(t, func(ctx context.Context) error { return connect(t, e.URL()).WatchWorkers(ctx, seen.apply, nil) })
	pause, resume := make(chan struct{}), make(chan struct{})
	holder := connect(t, e.URL())
	running(t, func(ctx context.Context) error {
		return holder.HoldWorker(ctx, bus.Claim{Name: "w", Current: func() fleet.Worker {
			select {
			case <-pause: // as a process that is stopped, for as long as it takes
				<-resume
			default:
			}
			return worker("w", fleet.Ready)
		}})
	})
	testkit.Eventually(t, "the worker is seen", func() bool { return seen.String() == "[w=ready]" })
	close(pause)
	testkit.Eventually(t, "the lease has expired", func() bool { return seen.String() == "[]" })
	close(resume)
	testkit.Eventually(t, "the worker is back", func() bool { return seen.String() == "[w=ready]" })
}

// TestBusRestarts: while the server is gone no worker leaves the fleet. A server that comes back empty
// gets the leases again, and a worker whose holder has ended is gone after one lifetime.
func TestBusRestarts(t *testing.T) {
	port := testkit.Port(t)
	e := embed(t, port)
	seen := &members{m: map[string]fleet.Worker{}}
	watcher := connect(t, e.URL())
	running(t, func(ctx context.Context) error { return watcher.WatchWorkers(ctx, seen.apply, nil) })
	holder := connect(t, e.URL())
	running(t, func(ctx context.Context) error {
		return holder.HoldWorker(ctx, bus.Claim{Name: "stays", Current: func() fleet.Worker { return worker("stays", fleet.Ready) }})
	})
	leaver := connect(t, e.URL())
	stop := running(t, func(ctx context.Context) error {
		return leaver.HoldWorker(ctx, bus.Claim{Name: "leaves", Current: func() fleet.Worker { return worker("leaves", fleet.Ready) }})
	})
	testkit.Eventually(t, "both are seen", func() bool { return seen.String() == "[leaves=ready stays=ready]" })

	e.Close()
	testkit.Eventually(t, "the loss is noticed", func() bool { return !watcher.Connected() && !leaver.Connected() })
	stop() // the lease cannot be removed: there is no server
	if got := seen.String(); got != "[leaves=ready stays=ready]" {
		t.Errorf("without a bus the fleet became %s", got)
	}
	back := watcher.Back()
	e = embed(t, port)
	defer e.Close()
	<-back
	testkit.Eventually(t, "only the worker with a holder stays", func() bool { return seen.String() == "[stays=ready]" })
}

func batch() *kvevent.Batch {
	return &kvevent.Batch{Rank: 1, Seconds: 12.5, Unknown: 2, Events: []kvevent.Event{
		{Kind: kvevent.Stored, Tier: fleet.Host, Hashes: []kvevent.EngineHash{1, 2}, Parent: 9, HasParent: true, Blocks: []blockhash.Block{3, 1 << 63}, BlockSize: 16, Window: 128, Group: 2},
		{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{7}},
		{Kind: kvevent.Cleared},
	}}
}

// TestEventsAndReplay: events arrive as they were sent, and past batches can be requested.
func TestEventsAndReplay(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	from, to := connect(t, e.URL()), connect(t, e.URL())
	got := make(chan string, 100)
	running(t, func(ctx context.Context) error {
		return to.SubscribeEvents(ctx, func(e *feed.Message) { got <- show(e) })
	})
	events := writing(t, from, "n")
	sent := feed.Message{Worker: "n.w", Rank: 1, Epoch: 5, Seq: 3, Batch: batch()}
	testkit.Eventually(t, "the subscription is there", func() bool {
		add(t, events, &sent)
		return len(got) > 0
	})
	if g := <-got; g != show(&sent) {
		t.Errorf("sent %s\n got %s", show(&sent), g)
	}

	mark := feed.Message{Worker: "n.w", Rank: 1, Epoch: 5, Seq: 4, Mark: true, Batch: &kvevent.Batch{}}
	add(t, events, &mark)
	testkit.Eventually(t, "the mark arrives", func() bool { return <-got == show(&mark) })

	running(t, func(ctx context.Context) error {
		return from.ServeReplay(ctx, "n.w", 5, func(rank int, seq uint64, _ int) (page [][]byte, end feed.Position) {
			for last := min(seq+3, 6); seq < last; seq++ { // three on each page
				page = append(page, bus.EncodeBatch(&feed.Message{Worker: "n.w", Rank: rank, Epoch: 5, Seq: seq, Batch: batch()}))
			}
			return page, feed.Position{Epoch: 5, Next: 6, State: feed.Exact}
		})
	})
	var past []uint64
	testkit.Eventually(t, "the replay is served", func() bool {
		past = nil
		stands, err := to.Replay(t.Context(), "n.w", 5, 1, 2, func(e *feed.Message) { past = append(past, e.Seq) })
		return err == nil && stands == feed.Position{Epoch: 5, Next: 6, State: feed.Exact}
	})
	if fmt.Sprint(past) != "[2 3 4 5]" {
		t.Errorf("the replay has %v", past)
	}
	if _, err := to.Replay(t.Context(), "nobody", 5, 0, 0, nil); err == nil {
		t.Error("a worker without an agent has a replay")
	}
}

// TestSnapshots: snapshots of any size arrive complete, many at once. A snapshot that its owner drops
// meanwhile, that is refused for its size, or that does not exist, is an error with the reason.
func TestSnapshots(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	from, to := connect(t, e.URL()), connect(t, e.URL())
	var mu sync.Mutex
	kept, asked := map[int]*feed.Snapshot{}, 0
	running(t, func(ctx context.Context) error {
		return from.ServeSnapshots(ctx, "w", 5, func(rank int, id uint64) *feed.Snapshot {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if s := kept[rank]; s != nil && (id == 0 || id == s.ID) {
				return s
			}
			return nil
		})
	})
	anySize := func(context.Context, int) error { return nil }
	testkit.Eventually(t, "snapshots are served", func() bool {
		_, err := to.Snapshot(t.Context(), "w", 5, 0, anySize)
		return errors.Is(err, feed.ErrNoSnapshot) && func() bool { mu.Lock(); defer mu.Unlock(); return asked > 0 }()
	})
	mu.Lock()
	for rank, size := range []int{0, 1, 512 << 10, 512<<10 + 1, 20 << 20} {
		s := &feed.Snapshot{Worker: "w", Rank: rank, Epoch: 5, ID: uint64(rank + 1), Next: 9, Seconds: 1.5, Complete: rank%2 == 0, BlockSize: 16, Dump: make([]byte, size)}
		for i := range s.Dump {
			s.Dump[i] = byte(i * 31 / 7)
		}
		kept[rank] = s
	}
	mu.Unlock()
	var all sync.WaitGroup
	for rank, want := range kept {
		for range 4 {
			all.Go(func() {
				got, err := to.Snapshot(t.Context(), "w", 5, rank, anySize)
				if err != nil || !bytes.Equal(got.Dump, want.Dump) {
					t.Errorf("rank %d: %v", rank, err)
					return
				}
				got.Dump = want.Dump
				if !reflect.DeepEqual(got, want) {
					t.Errorf("rank %d came as %+v", rank, got)
				}
			})
		}
	}
	all.Wait()
	tooLarge := errors.New("too large")
	if _, err := to.Snapshot(t.Context(), "w", 5, 4, func(_ context.Context, size int) error {
		if size != 20<<20 {
			t.Errorf("size %d", size)
		}
		return tooLarge
	}); !errors.Is(err, tooLarge) {
		t.Error(err)
	}
	if _, err := to.Snapshot(t.Context(), "w", 5, 4, func(context.Context, int) error {
		mu.Lock()
		defer mu.Unlock()
		delete(kept, 4)
		return nil
	}); !errors.Is(err, bus.ErrSnapshotGone) {
		t.Error(err)
	}
	if _, err := to.Snapshot(t.Context(), "nobody", 5, 0, anySize); !errors.Is(err, feed.ErrNoSnapshot) {
		t.Error(err)
	}
}

// TestReplicaSnapshots: a replica answers for all workers, by the names and epochs in the subjects. Nobody answers for another replica.
func TestReplicaSnapshots(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	from, to := connect(t, e.URL()), connect(t, e.URL())
	anySize := func(context.Context, int) error { return nil }
	running(t, func(ctx context.Context) error {
		return from.ServeReplicas(ctx, "a", func(worker string, epoch uint64, rank int, id uint64) *feed.Snapshot {
			if worker == "none" {
				return nil
			}
			return &feed.Snapshot{ID: cmp.Or(id, 1), Epoch: epoch, Next: uint64(rank + 1), Dump: bytes.Repeat([]byte(worker), 1<<18)}
		})
	})

	for _, worker := range []string{"w", "node.local"} {
		testkit.Eventually(t, "the index of "+worker+" comes", func() bool {
			s, err := to.ReplicaSnapshot(t.Context(), "a", worker, 7, 2, anySize)
			return err == nil && s.Worker == worker && s.Epoch == 7 && s.Rank == 2 && s.Next == 3 &&
				bytes.Equal(s.Dump, bytes.Repeat([]byte(worker), 1<<18))
		})
	}
	for _, of := range [][2]string{{"a", "none"}, {"b", "w"}} {
		if _, err := to.ReplicaSnapshot(t.Context(), of[0], of[1], 7, 0, anySize); !errors.Is(err, feed.ErrNoSnapshot) {
			t.Errorf("%s: %v", of, err)
		}
	}
}

// writing returns a writer of a node's events that runs until the test ends.
func writing(t *testing.T, b *bus.Bus, node string) *bus.EventWriter {
	t.Helper()

	w := b.EventWriter(node)
	running(t, func(ctx context.Context) error {
		w.Run(ctx)
		return nil
	})
	return w
}

func add(t *testing.T, w *bus.EventWriter, e *feed.Message) {
	t.Helper()

	if err := w.Add(bus.EncodeBatch(e)); err != nil {
		t.Fatal(err)
	}
}

func show(e *feed.Message) string {
	text := fmt.Sprintf("%s/%d epoch %d seq %d mark %v at %g, %d unknown:", e.Worker, e.Rank, e.Epoch, e.Seq, e.Mark, e.Batch.Seconds, e.Batch.Unknown)
	for _, v := range e.Batch.Events {
		text += fmt.Sprintf(" {%s %s %v parent %v %v %v %d %d %d}", v.Kind, v.Tier, v.Hashes, v.HasParent, v.Parent, v.Blocks, v.BlockSize, v.Window, v.Group)
	}
	return text
}

func somePlan() plan.Plan {
	return plan.Plan{Pools: []plan.Pool{{Model: "m", Role: fleet.Decode, Replicas: 3, Ready: 1, Reason: "because"}}}
}

func TestLoadAndPlan(t *testing.T) {
	e := embed(t, -1)
	defer e.Close()
	a, b := connect(t, e.URL()), connect(t, e.URL())
	loads := make(chan bus.Load, 100)
	running(t, func(ctx context.Context) error { return b.SubscribeLoad(ctx, func(l bus.Load) { loads <- l }) })
	sent := bus.Load{Worker: "w", Rank: 1, Epoch: 5, Running: 3, Waiting: 2, KVUsage: 0.5, PrefixQueries: 1 << 40, PrefixHits: 7, Gaps: 9, GapTime: 5 * time.Second,
		Store: fleet.Store{
			Used: true, Served: true, Peers: fleet.TierLoad{Wait: time.Minute, Token: time.Millisecond},
			Tiers: [fleet.Tiers]fleet.TierLoad{fleet.Disk: {Wait: time.Second, Token: time.Microsecond}},
		},
	}
	testkit.Eventually(t, "the load arrives", func() bool {
		if err := a.PublishLoad(sent); err != nil {
			t.Fatal(err)
		}
		return len(loads) > 0
	})
	if got := <-loads; got != sent {
		t.Errorf("sent %+v, got %+v", sent, got)
	}
	plans := make(chan plan.Plan, 10)
	p := somePlan()
	if err := a.PublishPlan(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) error { return b.WatchPlan(ctx, func(p plan.Plan) { plans <- p }) })
	if got := <-plans; fmt.Sprint(got) != fmt.Sprint(p) {
		t.Errorf("published %v, got %v", p, got)
	}
}

// TestBookingsArrive sends one update in this process, over a server that listens nowhere.
func TestBookingsArrive(t *testing.T) {
	b := testkit.Bus(t)
	got := make(chan *peers.Update, 100)
	running(t, func(ctx context.Context) error {
		return b.SubscribeBookings(ctx, func(u *peers.Update) { got <- u })
	})
	sent := &peers.Update{Replica: "r", Seq: 7, Full: true, Digest: 9, Ranks: []peers.RankAmount{
		{Worker: "w", Epoch: 2, Rank: 1, Amount: fleet.Amount{Requests: 3, PrefillTokens: 400, DecodeBlocks: 50, PrefillTime: 6}},
	}, Prompts: []peers.Prompt{{Worker: "w", Epoch: 2, Rank: 1, Blocks: []blockhash.Sequence{5, 6}, Known: 1, Computed: -time.Second, Withdrawn: true}}}

	testkit.Eventually(t, "the update arrives", func() bool {
		if err := b.PublishBookings(sent); err != nil {
			t.Fatal(err)
		}
		return len(got) > 0
	})

	if u := <-got; !reflect.DeepEqual(u, sent) {
		t.Errorf("sent %+v, got %+v", sent, u)
	}
}

// TestConnectWaitsForItsServer ends with the context, because the server may start later.
func TestConnectWaitsForItsServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	url := fmt.Sprintf("nats://127.0.0.1:%d", testkit.Port(t))

	_, err := bus.Connect(ctx, bus.Config{URL: url, Cluster: "test", LeaseTTL: testkit.LeaseTTL, Log: slog.New(slog.DiscardHandler)})

	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// TestLargeBatchIsRefused: NATS would close the connection for a message that is too large.
func TestLargeBatchIsRefused(t *testing.T) {
	b := testkit.Bus(t)
	large := &kvevent.Batch{Events: []kvevent.Event{{Hashes: make([]kvevent.EngineHash, 1<<18)}}}

	err := b.EventWriter("").Add(bus.EncodeBatch(&feed.Message{Worker: "w", Batch: large}))

	if err == nil || !strings.Contains(err.Error(), "exceeds the 1047552 of a message") {
		t.Errorf("error %v", err)
	}
}
