package kvbm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/disk"
	"github.com/stator-project/stator/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// layout is one of blocks of 4 KiB.
var layout = block.Layout{
	Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 32, DType: "bfloat16", TPSize: 1, Hashing: "sha256",
}

// heap is host memory of a test.
type heap [][]byte

func newHeap(slots int) heap {
	h := make(heap, slots)
	for i := range h {
		h[i] = make([]byte, layout.Bytes())
	}
	return h
}

func (h heap) Slots() int        { return len(h) }
func (h heap) Slot(i int) []byte { return h[i] }

// keysFrom returns keys of n blocks, and content those bytes that the block of a key has.
func keysFrom(first, n int) (keys []block.Key) {
	space := layout.Space()
	for i := range n {
		keys = append(keys, space.Key(binary.LittleEndian.AppendUint64(nil, uint64(first+i))))
	}
	return keys
}

func content(key block.Key) []byte { return bytes.Repeat(key[:], layout.Bytes()/len(key)) }

// backend is a tier in memory, with failures.
type backend struct {
	mu     sync.Mutex
	blocks map[block.Key][]byte
	broken map[block.Key]bool // cannot be loaded
	loads  int
	stuck  chan struct{} // loads and stores wait until it is closed or their context ends; may be nil
}

func newBackend() *backend {
	return &backend{blocks: map[block.Key][]byte{}, broken: map[block.Key]bool{}}
}

func (b *backend) Has(key block.Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.blocks[key] != nil
}

func (b *backend) Match(keys []block.Key) int {
	for i, key := range keys {
		if !b.Has(key) {
			return i
		}
	}
	return len(keys)
}

func (b *backend) wait(ctx context.Context) error {
	if b.stuck == nil {
		return nil
	}
	select {
	case <-b.stuck:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *backend) Load(ctx context.Context, keys []block.Key, dst [][]byte) []error {
	errs := make([]error, len(keys))
	err := b.wait(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, key := range keys {
		switch data := b.blocks[key]; {
		case err != nil:
			errs[i] = err
		case data == nil || b.broken[key]:
			errs[i] = errors.New("damaged")
		default:
			b.loads++
			copy(dst[i], data)
		}
	}
	return errs
}

func (b *backend) Store(ctx context.Context, key block.Key, data []byte, _ uint8) error {
	if err := b.wait(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocks[key] = slices.Clone(data)
	return nil
}

// start returns a store that runs until the end of the test.
func start(t *testing.T, cfg Config) *Store {
	t.Helper()
	cfg.Layout = layout
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Wait()
	})
	return s
}

// put commits blocks as an engine does.
func put(t *testing.T, s *Store, keys []block.Key, priority uint8) {
	t.Helper()
	slots, err := s.Reserve(len(keys))
	if err != nil {
		t.Fatal(err)
	}
	for k, i := range slots {
		copy(s.cfg.Memory.Slot(i), content(keys[k]))
	}
	if err := s.Commit(slots, keys, priority); err != nil {
		t.Fatal(err)
	}
}

// check fetches blocks, and fails unless all come with their bytes.
func check(t *testing.T, s *Store, keys []block.Key) {
	t.Helper()
	l := s.Fetch(t.Context(), keys)
	defer l.Release()
	if len(l.Slots) != len(keys) {
		t.Errorf("%d of %d blocks were fetched", len(l.Slots), len(keys))
	}
	for k, i := range l.Slots {
		if !bytes.Equal(s.cfg.Memory.Slot(i), content(keys[k])) {
			t.Errorf("block %d has other bytes", k)
		}
	}
}

// idle waits until nothing waits to be copied and no slot is in use.
func idle(t *testing.T, s *Store) {
	t.Helper()
	testkit.Eventually(t, "all is copied", func() bool {
		st := s.Stats()
		waits := slices.ContainsFunc(st.Tiers, func(t TierStats) bool { return t.Waiting > 0 })
		return !waits && st.Slots.Active+st.Slots.Partial+st.Slots.Leaving == 0
	})
}

// TestBlocksComeBackFromDisk: host memory has room for 8 of 40 blocks. All of them come back with their bytes, and again after a restart
// with empty host memory.
func TestBlocksComeBackFromDisk(t *testing.T) {
	dir := t.TempDir()
	open := func() *disk.Disk {
		d, err := disk.Open(disk.Config{Dir: dir, Bytes: 1 << 20, BlockBytes: layout.Bytes(), Space: layout.Space()})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	s := start(t, Config{Memory: newHeap(8), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: Disk(d)}}})
	keys := keysFrom(0, 40)
	for i := 0; i < len(keys); i += 4 {
		put(t, s, keys[i:i+4], 0)
		testkit.Eventually(t, "the blocks are copied", func() bool { return d.Match(keys[:i+4]) == i+4 })
	}
	idle(t, s)

	if f := s.Find(keys, 0, nil); f.Blocks != 40 || f.Load != 40 || f.On[0]+f.On[1] != 40 || f.On[1] < 32 {
		t.Errorf("found %+v", f)
	}
	for i := 0; i < len(keys); i += 8 {
		check(t, s, keys[i:i+8])
	}
	if st := s.Stats(); st.Tiers[0].Copied != 40 || st.Tiers[0].Loaded < 32 {
		t.Errorf("%+v", st)
	}

	idle(t, s)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open()
	t.Cleanup(func() { _ = d.Close() })
	s = start(t, Config{Memory: newHeap(8), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: Disk(d)}}})
	check(t, s, keys[:8])
}

// TestFetchMoreThanFits: a lease is as long as host memory has room.
func TestFetchMoreThanFits(t *testing.T) {
	b := newBackend()
	keys := keysFrom(0, 12)
	for _, k := range keys {
		b.blocks[k] = content(k)
	}
	s := start(t, Config{Memory: newHeap(8), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: b}}})
	l := s.Fetch(t.Context(), keys)
	if len(l.Slots) != 8 {
		t.Errorf("%d blocks, want 8", len(l.Slots))
	}
	if _, err := s.Reserve(1); !errors.Is(err, ErrNoRoom) {
		t.Errorf("reserve beside the lease: %v", err)
	}
	l.Release()
	l.Release() // has no effect
	slots, err := s.Reserve(8)
	if err != nil {
		t.Error(err)
	}
	if err := s.Drop(slots); err != nil {
		t.Error(err)
	}
}

func TestPolicies(t *testing.T) {
	all, reused := newBackend(), newBackend()
	s := start(t, Config{Memory: newHeap(16), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: reused, Write: WriteReused}}})
	keys := keysFrom(0, 4)
	put(t, s, keys, 0)
	s.Find(keys[:1], 0, nil)
	testkit.Eventually(t, "a block is copied", func() bool { return reused.Has(keys[0]) })
	idle(t, s)
	if n := reused.Match(keys[1:]); n > 0 {
		t.Errorf("%d blocks were copied without a second use", n)
	}

	s = start(t, Config{Memory: newHeap(16), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: all}}})
	put(t, s, keys, 0)
	testkit.Eventually(t, "all blocks are copied", func() bool { return all.Match(keys) == 4 })
}

// TestTierThatOthersFill: blocks are loaded from a tier with WriteNever, but never copied to it, also if they are pinned. Pins hold
// as if it were not there.
func TestTierThatOthersFill(t *testing.T) {
	b := newBackend()
	keys := keysFrom(0, 6)
	for _, key := range keys[:2] {
		b.blocks[key] = content(key)
	}
	s := start(t, Config{Memory: newHeap(4), Tiers: []Tier{{Name: "peer", Backend: b, Write: WriteNever}}})
	if f := s.Find(keys[:2], 0, nil); f.Blocks != 2 || f.On[1] != 2 {
		t.Errorf("found %+v", f)
	}
	check(t, s, keys[:2])

	put(t, s, keys[2:4], 0)
	s.Pin(t.Context(), keys[2:4], time.Now().Add(time.Hour))
	put(t, s, keys[4:], 0) // evicts the first two
	if _, err := s.Reserve(3); !errors.Is(err, ErrNoRoom) {
		t.Errorf("pinned blocks that are nowhere else have left: %v", err)
	}
	if st := s.Stats(); len(b.blocks) != 2 || st.Tier("peer") != (TierStats{Name: "peer", Loaded: 2}) {
		t.Errorf("the tier has %d blocks, and its figures are %+v", len(b.blocks), st.Tiers)
	}
}

// TestAcquire: blocks that another node reads keep their bytes until they are released, also if all others leave.
func TestAcquire(t *testing.T) {
	s := start(t, Config{Memory: newHeap(4)})
	keys := keysFrom(0, 10)
	put(t, s, keys[:2], 0)
	data, release := s.Acquire([]block.Key{keys[9], keys[0], keys[1]})
	if data[0] != nil || len(s.Keys()) != 2 {
		t.Errorf("%d bytes of a block that is not there, and keys %v", len(data[0]), s.Keys())
	}
	for _, key := range keys[2:] {
		put(t, s, []block.Key{key}, 0)
	}
	if !bytes.Equal(data[1], content(keys[0])) || !bytes.Equal(data[2], content(keys[1])) {
		t.Error("a block that is held has other bytes")
	}
	if st := s.Stats(); st.Slots.Active != 2 {
		t.Errorf("slots: %+v", st.Slots)
	}

	release()
	release()
	put(t, s, keysFrom(20, 4), 0)
	got := s.Keys()
	for _, key := range keysFrom(20, 4) {
		if !slices.Contains(got, key) {
			t.Errorf("block %v is missing", key)
		}
	}
	if st := s.Stats(); st.Slots.Active != 0 || len(got) != 4 {
		t.Errorf("slots: %+v, %d keys", st.Slots, len(got))
	}
}

// TestTiersAreChecked refuses names that are used twice or are missing, and tiers in a wrong order.
func TestTiersAreChecked(t *testing.T) {
	for want, tiers := range map[string][]Tier{
		`has the name "a"`:          {{Name: "a", Write: WriteNever}, {Name: "a", Tier: fleet.Disk}},
		`has the name ""`:           {{Tier: fleet.Disk}},
		`has the name "host"`:       {{Name: "host", Tier: fleet.Disk}},
		"disk comes after external": {{Name: "a", Tier: fleet.External}, {Name: "b", Tier: fleet.Disk}},
	} {
		if _, err := New(Config{Layout: layout, Memory: newHeap(1), Tiers: tiers}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// TestStuckTier: a tier that does not answer delays no engine. Blocks that its queue has no room for are counted, and a fetch ends at its
// deadline.
func TestStuckTier(t *testing.T) {
	b := newBackend()
	b.stuck = make(chan struct{})
	on := keysFrom(1000, 2)
	b.blocks[on[0]] = content(on[0])
	s := start(t, Config{
		Memory: newHeap(16), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: b}},
		Queue: 2, Writers: 1, FetchTimeout: time.Second,
	})
	for i := range 10 {
		put(t, s, keysFrom(10*i, 10), 0)
	}
	if st := s.Stats(); st.Tiers[0].Dropped < 70 || st.Committed != 100 {
		t.Errorf("%+v", st)
	}
	if l := s.Fetch(t.Context(), on); len(l.Slots) != 0 {
		t.Error("a block came from a tier that does not answer")
	}
	close(b.stuck)
	check(t, s, on[:1])
	idle(t, s)
	if st := s.Stats().Slots; st.Partial+st.Quarantined != 0 {
		t.Errorf("%+v", st)
	}
}

// TestDamagedBlock: a lease ends before a block that cannot be loaded, and has those before it.
func TestDamagedBlock(t *testing.T) {
	b := newBackend()
	keys := keysFrom(0, 6)
	for _, k := range keys {
		b.blocks[k] = content(k)
	}
	b.broken[keys[3]] = true
	s := start(t, Config{Memory: newHeap(16), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: b}}})
	l := s.Fetch(t.Context(), keys)
	defer l.Release()
	if len(l.Slots) != 3 {
		t.Errorf("%d blocks, want 3", len(l.Slots))
	}
}

// TestFetchedOnce: what several engines fetch at once is read once.
func TestFetchedOnce(t *testing.T) {
	b := newBackend()
	keys := keysFrom(0, 8)
	for _, k := range keys {
		b.blocks[k] = content(k)
	}
	s := start(t, Config{Memory: newHeap(16), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: b}}})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { check(t, s, keys) })
	}
	all.Wait()
	if b.loads != 8 {
		t.Errorf("%d blocks were read, want 8", b.loads)
	}
}

// microseconds is an engine that computes a token in a microsecond.
func microseconds(_, tokens int) time.Duration { return time.Duration(tokens) * time.Microsecond }

// TestFindComparesWithComputing: a tier that is slower than computing is not worth its time, and one that was never tried is.
func TestFindComparesWithComputing(t *testing.T) {
	b := newBackend()
	keys := keysFrom(0, 8)
	for _, k := range keys {
		b.blocks[k] = content(k)
	}
	now := time.Unix(1e9, 0)
	s := start(t, Config{
		Now:    func() time.Time { return now },
		Memory: newHeap(16), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: b}},
	})
	if f := s.Find(keys, 0, microseconds); f.Load != 8 {
		t.Errorf("at first %+v", f)
	}
	s.tiers[0].speed.observe(8, 8*10*time.Microsecond, now) // computing a block takes 16 µs
	if f := s.Find(keys, 0, microseconds); f.Load != 8 || f.Took != 80*time.Microsecond {
		t.Errorf("on a fast tier %+v", f)
	}
	s.tiers[0].speed.begin(100)
	if f := s.Find(keys, 0, microseconds); f.Load != 0 || f.Blocks != 8 {
		t.Errorf("on a busy tier %+v", f)
	}
	s.tiers[0].speed.endLoad(100, 0, true, now)

	// A load that failed after a second was slow. The tier is tried again when that is long ago.
	s.tiers[0].speed.begin(8)
	s.tiers[0].speed.endLoad(8, time.Second, false, now)
	if f := s.Find(keys, 0, microseconds); f.Load != 0 {
		t.Errorf("after a failure %+v", f)
	}
	now = now.Add(5 * time.Minute)
	if f := s.Find(keys, 0, microseconds); f.Load != 8 {
		t.Errorf("long after a failure %+v", f)
	}
}

// TestReport: routers get the time of a token on each tier and at peers. Blocks of a slower tier come by way of host memory. A tier that
// was not measured, or only long ago, takes a nanosecond.
func TestReport(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := start(t, Config{Now: func() time.Time { return now }, Memory: newHeap(4), Tiers: []Tier{
		{Name: "peer", Backend: newBackend(), Write: WriteNever}, {Name: "disk", Tier: fleet.Disk, Backend: newBackend()},
	}})
	unmeasured := fleet.Store{Used: true, Peers: fleet.TierLoad{Token: 2}, Tiers: [fleet.Tiers]fleet.TierLoad{
		fleet.Host: {Token: 1}, fleet.Disk: {Token: 2},
	}}
	if got := s.Report(); got != unmeasured {
		t.Errorf("before any load %+v", got)
	}
	s.Copied(10, 160*time.Microsecond) // a block has 16 tokens
	s.tiers[0].speed.observe(10, 1600*time.Microsecond, now)
	s.tiers[1].speed.observe(10, 3200*time.Microsecond, now)
	s.tiers[1].speed.begin(2)
	want := fleet.Store{Used: true, Peers: fleet.TierLoad{Token: 11 * time.Microsecond}, Tiers: [fleet.Tiers]fleet.TierLoad{
		fleet.Host: {Token: time.Microsecond}, fleet.Disk: {Wait: 640 * time.Microsecond, Token: 21 * time.Microsecond},
	}}
	if got := s.Report(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	now = now.Add(time.Hour)
	s.tiers[1].speed.endLoad(2, time.Second, false, now.Add(-time.Hour))
	if got := s.Report(); got != unmeasured {
		t.Errorf("an hour later %+v", got)
	}
}

// TestPinnedBlocksStay: pinned blocks survive as many others as host memory has room for several times.
func TestPinnedBlocksStay(t *testing.T) {
	s := start(t, Config{Memory: newHeap(16)})
	pinned := keysFrom(0, 4)
	put(t, s, pinned, 0)
	if n := s.Pin(t.Context(), pinned, time.Now().Add(time.Hour)); n != 4 {
		t.Errorf("%d were pinned", n)
	}
	for i := range 20 {
		put(t, s, keysFrom(100+8*i, 8), 0)
	}
	check(t, s, pinned)
	if n := s.Pin(t.Context(), keysFrom(100, 1), time.Now().Add(time.Hour)); n != 0 {
		t.Error("a block that has left was pinned")
	}
}

// TestFlush: nothing is left, and changes were reported for every block that came and left.
func TestFlush(t *testing.T) {
	var mu sync.Mutex
	there := map[block.Key]bool{}
	s := start(t, Config{Memory: newHeap(8), Changed: func(tier fleet.Tier, stored bool, keys []block.Key) {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range keys {
			if there[k] == stored {
				t.Errorf("%v: stored %t, but it was so before", tier, stored)
			}
			there[k] = stored
			if !stored {
				delete(there, k)
			}
		}
	}})
	for i := range 5 {
		put(t, s, keysFrom(4*i, 4), 0)
	}
	if len(there) != 8 {
		t.Errorf("%d blocks by the changes, want 8", len(there))
	}
	if n, err := s.Flush(); n[fleet.Host] != 8 || err != nil || len(there) != 0 {
		t.Errorf("%d were flushed, %v; %d are there by the changes", n, err, len(there))
	}
}

// TestConcurrentEngines: engines write and read random prefixes while tiers fail. No block ever has bytes of another one.
func TestConcurrentEngines(t *testing.T) {
	d, err := disk.Open(disk.Config{Dir: t.TempDir(), Bytes: 1 << 20, BlockBytes: layout.Bytes(), Space: layout.Space()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	b := newBackend()
	s := start(t, Config{Memory: newHeap(64), Tiers: []Tier{
		{Name: "disk", Tier: fleet.Disk, Backend: Disk(d)}, {Name: "external", Tier: fleet.External, Backend: b, Write: WriteReused},
	}})

	var all sync.WaitGroup
	for seed := range uint64(6) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for range 300 {
				keys := keysFrom(16*rng.IntN(12), 1+rng.IntN(8))
				if rng.IntN(2) == 0 {
					slots, err := s.Reserve(len(keys))
					if err != nil {
						continue
					}
					for k, i := range slots {
						copy(s.cfg.Memory.Slot(i), content(keys[k]))
					}
					if err := s.Commit(slots, keys, uint8(rng.IntN(3))); err != nil {
						t.Error(err)
					}
					continue
				}
				l := s.Fetch(t.Context(), keys[:s.Find(keys, 0, nil).Load])
				for k, i := range l.Slots {
					if !bytes.Equal(s.cfg.Memory.Slot(i), content(keys[k])) {
						t.Error("a block has other bytes")
					}
				}
				l.Release()
			}
		})
	}
	all.Wait()
	idle(t, s)
	st := s.Stats()
	if st.Slots.Partial+st.Slots.Complete+st.Slots.Leaving != 0 || st.Tiers[0].Loaded+st.Tiers[1].Loaded == 0 || st.Fetched == 0 {
		t.Errorf("%+v", st)
	}
}

// BenchmarkFind: how long does a decision about a prefix of 1,000 blocks take that two tiers share?
func BenchmarkFind(b *testing.B) {
	lower := newBackend()
	keys := keysFrom(0, 1000)
	for _, k := range keys[500:] {
		lower.blocks[k] = []byte{1}
	}
	s, err := New(Config{
		Layout: layout, Memory: newHeap(512), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: lower}},
	})
	if err != nil {
		b.Fatal(err)
	}
	slots, err := s.Reserve(500)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Commit(slots, keys[:500], 0); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if f := s.Find(keys, 0, microseconds); f.Blocks != 1000 {
			b.Fatal(f)
		}
	}
}

// BenchmarkFindWhileTiersFail: how long do decisions about 500 blocks take while a tier does not answer, its queue is full, and engines
// write, fetch and wait for it? Percentiles are of all decisions.
func BenchmarkFindWhileTiersFail(b *testing.B) {
	stuck := newBackend()
	stuck.stuck = make(chan struct{})
	keys := keysFrom(0, 500)
	for _, k := range keys {
		stuck.blocks[k] = []byte{1}
	}
	s, err := New(Config{
		Layout: layout, Memory: newHeap(512), Tiers: []Tier{{Name: "disk", Tier: fleet.Disk, Backend: stuck}}, Queue: 16,
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { s.Run(ctx) })
	for engine := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				slots, err := s.Reserve(4)
				if err == nil {
					_ = s.Commit(slots, keysFrom(10000*engine+4*i, 4), 0)
				}
				short, cancel := context.WithTimeout(ctx, time.Millisecond)
				s.Fetch(short, keys[10*engine:10*engine+10]).Release()
				cancel()
			}
		})
	}

	took := make([]time.Duration, 0, b.N)
	for b.Loop() {
		began := time.Now()
		f := s.Find(keys, 0, microseconds)
		if f.Blocks != len(keys) {
			b.Fatalf("%+v", f)
		}
		took = append(took, time.Since(began))
	}
	b.StopTimer()
	cancel()
	all.Wait()
	slices.Sort(took)
	for name, q := range map[string]float64{"p50-µs": 0.5, "p99-µs": 0.99} {
		b.ReportMetric(float64(took[int(q*float64(len(took)-1))].Nanoseconds())/1e3, name)
	}
}
