package workeragent

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/test/testkit"
)

// savingRelay is a relay of an engine that survives its agent, with the folder of that agent.
func savingRelay(t *testing.T, state *State) *relay {
	t.Helper()
	r := testRelay(t)
	r.cfg.State = state
	r.cfg.PastBatches = saveParts // so that each batch is a reason to save
	r.worker.KVEvents, r.worker.KVReplay = "ipc:///events", "ipc:///replay"
	return r
}

// openFolder opens the state folder of an agent until the test ends.
func openFolder(t *testing.T) (s *State, dir string) {
	t.Helper()
	dir = t.TempDir()
	s, err := OpenState(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, dir
}

// longLife returns the batches of an engine with blocks on two tiers and in a group of a sliding window.
func longLife() (all []*kvevent.Batch) {
	for i := range uint64(40) {
		b := stored(10*i+1, 10*i+2, 10*i+3)
		b.Seconds = float64(100 + i)
		host := b.Events[0]
		host.Tier = fleet.Host
		window := b.Events[0]
		window.Window, window.Group = 64, 1
		b.Events = append(b.Events, host, window)
		if i%3 == 2 {
			b.Events = append(b.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{kvevent.EngineHash(10*(i-1) + 3)}})
		}
		if i == 25 {
			b.Events = append([]kvevent.Event{{Kind: kvevent.Cleared}}, b.Events...)
		}
		all = append(all, b)
	}
	return all
}

// relayFrom relays the batches from one number to before another, as a source delivers them.
func relayFrom(t *testing.T, r *relay, batches []*kvevent.Batch, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if resume, gap := r.Batch(uint64(i), batches[i]); gap {
			t.Fatalf("batch %d: a gap, from %d", i, resume)
		}
	}
}

// held returns the blocks that a relay's mirror has, by tier and window.
func held(r *relay) (all []string) {
	m, _ := r.mirror.fleet.Snapshot().Rank(r.worker.Name, r.rank)
	for i := range uint64(40) {
		chain := blockhash.Chain(nil, []blockhash.Block{blockhash.Block(10*i + 1), blockhash.Block(10*i + 2), blockhash.Block(10*i + 3)})
		for n, seq := range chain {
			if r.mirror.index.IsReported(m.ID, seq) {
				all = append(all, fmt.Sprint(i, ".", n))
			}
		}
	}
	return append(all, fmt.Sprint(r.mirror.feed.Blocks(m), " entries, state ", r.mirror.feed.State(m)))
}

// TestNextAgentBeginsWithTheFile: a relay that begins with the file of another at any number, and gets what follows, is equal to one that has
// got everything: the same state, the same blocks, and the same numbers. Before that it is not exact.
func TestNextAgentBeginsWithTheFile(t *testing.T) {
	batches := longLife()
	whole := savingRelay(t, nil)
	whole.Connected(true)
	relayFrom(t, whole, batches, 0, len(batches))
	whole.CaughtUp(uint64(len(batches)))

	for at := 1; at <= len(batches); at += 3 {
		state, _ := openFolder(t)
		before := savingRelay(t, state)
		before.Connected(true)
		relayFrom(t, before, batches, 0, at)
		before.CaughtUp(uint64(at))
		before.save()

		after := savingRelay(t, state)
		last := after.beginWithFile()
		if last == nil || *last != (kvsource.Position{Seq: uint64(at - 1), Seconds: batches[at-1].Seconds}) {
			t.Fatalf("saved after %d: it begins after %+v", at, last)
		}
		after.Connected(true)
		if s := after.stateLocked(); s == feed.Exact {
			t.Errorf("saved after %d: %v before the engine has shown that nothing is missing", at, s)
		}
		relayFrom(t, after, batches, at, len(batches))
		after.CaughtUp(uint64(len(batches)))
		if got, want := held(after), held(whole); !slices.Equal(got, want) || after.next != whole.next {
			t.Errorf("saved after %d: next %d\n%v\nwant %d\n%v", at, after.next, got, whole.next, want)
		}
		if n := testutil.ToFloat64(after.metrics.cacheFiles.WithLabelValues(cacheRestored)); n != 1 {
			t.Errorf("%g are counted", n)
		}
	}
}

// TestFileWithoutWhatFollows: if the engine cannot replay what follows the file, or counts from 0 again, the rank is not exact: the source
// reports a new process, and the mirror is as without a file.
func TestFileWithoutWhatFollows(t *testing.T) {
	batches := longLife()
	for _, c := range []struct {
		name string
		from int // the first batch that the engine can replay
		// caughtUp means that routers which have the missing batches can be exact.
		caughtUp bool
	}{{"the engine no longer has it", 30, true}, {"another process has the same numbers", 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			state, _ := openFolder(t)
			before := savingRelay(t, state)
			before.Connected(true)
			relayFrom(t, before, batches, 0, 20)
			before.CaughtUp(20)
			before.save()

			after := savingRelay(t, state)
			now := after.now()
			after.now = func() time.Time { return now }
			after.beginWithFile()
			after.Connected(true)
			after.Restarted()
			if got := held(after); len(got) != 1 {
				t.Errorf("it still has %v", got)
			}
			if c.from > 0 {
				if _, gap := after.Batch(uint64(c.from), batches[c.from]); !gap {
					t.Error("there is no gap")
				}
				now = now.Add(time.Minute)
			}
			relayFrom(t, after, batches, c.from, c.from+5)
			after.CaughtUp(uint64(c.from + 5))
			_, end := after.replay(0, 1)
			if end.State != feed.Stale || end.CaughtUp != c.caughtUp {
				t.Errorf("it is at %+v, and should be stale, and caught up %v", end, c.caughtUp)
			}
		})
	}
}

// TestCachesAreSavedWhenExact: a rank that is not exact is not saved, nor one whose engine has no replay socket. It is saved again when enough
// was published, also if the engine counts from 0 again.
func TestCachesAreSavedWhenExact(t *testing.T) {
	batches := longLife()
	state, _ := openFolder(t)
	r := savingRelay(t, state)
	r.cfg.PastBatches = 10 * saveParts
	saved := func() float64 { return testutil.ToFloat64(r.metrics.cacheFiles.WithLabelValues(cacheSaved)) }
	step := func(what string, want float64) {
		t.Helper()
		r.save()
		if n := saved(); n != want {
			t.Errorf("%s: saved %g times, want %g", what, n, want)
		}
	}

	r.Connected(true)
	relayFrom(t, r, batches, 0, 9)
	r.CaughtUp(9)
	step("9 batches", 0)
	relayFrom(t, r, batches, 9, 10)
	r.Connected(false)
	step("not connected", 0)
	r.Connected(true)
	r.CaughtUp(10)
	step("10 batches", 1)
	step("nothing new", 1)
	relayFrom(t, r, batches, 10, 20)
	r.worker.KVReplay = ""
	step("without a replay socket", 1)
	r.worker.KVReplay = "ipc:///replay"
	step("20 batches", 2)
	r.Restarted()
	r.CaughtUp(0)
	relayFrom(t, r, batches, 0, 12)
	step("numbers that were used before", 2)
}

// TestBrokenCacheFiles: a file that is torn, of another process or rank, too large, no file, or without a dump that can be loaded is refused with
// one line, and the mirror stays empty.
func TestBrokenCacheFiles(t *testing.T) {
	batches := longLife()
	state, _ := openFolder(t)
	r := savingRelay(t, state)
	r.Connected(true)
	relayFrom(t, r, batches, 0, 20)
	r.CaughtUp(20)
	r.save()
	path := state.cacheFile("a", 0)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	good, err := parseCache(slices.Clone(whole))
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(c *feed.Snapshot)) func(t *testing.T) {
		return func(t *testing.T) {
			c := *good
			c.Worker, c.Rank = "a", 0
			change(&c)
			if err := state.saveCache(&c); err != nil {
				t.Fatal(err)
			}
		}
	}
	bytesOf := func(raw []byte) func(t *testing.T) {
		return func(t *testing.T) {
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	flipped := slices.Clone(whole)
	flipped[len(flipped)/2] ^= 1

	cases := map[string]func(t *testing.T){
		"empty": bytesOf(nil), "text": bytesOf([]byte(strings.Repeat("x", 200))), "flipped": bytesOf(flipped),
		"another epoch":     with(func(c *feed.Snapshot) { c.Epoch++ }),
		"other blocks":      with(func(c *feed.Snapshot) { c.BlockSize = 32 }),
		"no position":       with(func(c *feed.Snapshot) { c.Next = 0 }),
		"no time":           with(func(c *feed.Snapshot) { c.Seconds = math.NaN() }),
		"no dump":           with(func(c *feed.Snapshot) { c.Dump = nil }),
		"a dump of nothing": with(func(c *feed.Snapshot) { c.Dump = []byte("not a dump at all") }),
		"another rank": func(t *testing.T) {
			with(func(c *feed.Snapshot) { c.Rank = 1 })(t)
			if err := os.Rename(state.cacheFile("a", 1), path); err != nil {
				t.Fatal(err)
			}
		},
		"too large": func(t *testing.T) {
			if err := os.Truncate(path, maxCacheFile+1); err != nil {
				t.Fatal(err)
			}
		},
		"a pipe":   func(t *testing.T) { remake(t, path, func() error { return syscall.Mkfifo(path, 0o600) }) },
		"a folder": func(t *testing.T) { remake(t, path, func() error { return os.Mkdir(path, 0o700) }) },
	}
	for n := range 40 {
		cases[fmt.Sprint("torn at part ", n)] = bytesOf(whole[:n*len(whole)/40])
	}

	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			remake(t, path, func() error { return os.WriteFile(path, whole, 0o600) })
			spoil(t)
			log := &testkit.Log{}
			next := savingRelay(t, state)
			next.cfg.Log = log.Logger()
			if at := next.beginWithFile(); at != nil || next.next != 0 || len(held(next)) != 1 {
				t.Errorf("it begins after %+v, next %d, with %v", at, next.next, held(next))
			}
			if n := testutil.ToFloat64(next.metrics.cacheFiles.WithLabelValues(cacheRefused)); n != 1 || !log.Contains("saved cache state not used") {
				t.Errorf("%g are counted as refused", n)
			}
		})
	}
}

// remake makes something new in the place of a file.
func remake(t *testing.T, path string, what func() error) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := what(); err != nil {
		t.Fatal(err)
	}
}

// TestFullDiskKeepsTheFileBefore: on a full disk the file before stays, one line is logged, and nothing is left of the attempts. A new process and
// one that has ended have no file.
func TestFullDiskKeepsTheFileBefore(t *testing.T) {
	batches := longLife()
	state, dir := openFolder(t)
	r := savingRelay(t, state)
	log := &testkit.Log{}
	r.cfg.Log = log.Logger()
	r.Connected(true)
	relayFrom(t, r, batches, 0, 10)
	r.CaughtUp(10)
	r.save()
	path := state.cacheFile("a", 0)

	for i := 10; i < 13; i++ {
		if err := os.Symlink("/dev/full", path+".new"); err != nil {
			t.Fatal(err)
		}
		relayFrom(t, r, batches, i, i+1)
		r.save()
	}
	if n := testutil.ToFloat64(r.metrics.cacheFiles.WithLabelValues(cacheNotSaved)); n != 3 || log.Count("no space left on device") != 1 {
		t.Errorf("%g attempts are counted, and %d logged", n, log.Count("no space left on device"))
	}
	if at := savingRelay(t, state).beginWithFile(); at == nil || at.Seq != 9 {
		t.Errorf("the file before has %+v", at)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "caches", "*", "*")); !slices.Equal(left, []string{path}) {
		t.Errorf("left %q", left)
	}

	relayFrom(t, r, batches, 13, 14)
	r.save()
	if at := savingRelay(t, state).beginWithFile(); at == nil || at.Seq != 13 {
		t.Errorf("with room again the file has %+v", at)
	}
	if err := state.save("a", engineRecord{}); err != nil {
		t.Fatal(err)
	}
	if at := savingRelay(t, state).beginWithFile(); at != nil {
		t.Errorf("a new process begins after %+v", at)
	}
}

// TestRanksHaveTheirFiles: each data-parallel rank is saved and restored apart.
func TestRanksHaveTheirFiles(t *testing.T) {
	batches := longLife()
	state, _ := openFolder(t)
	ranks := func() relays {
		one := savingRelay(t, state)
		w := one.worker
		w.Ranks = 2
		if _, err := one.mirror.fleet.Put(w); err != nil {
			t.Fatal(err)
		}
		return newRelays(w, one.cfg, one.metrics, one.mirror, one.events)
	}
	before := ranks()
	for rank, r := range before {
		r.Connected(true)
		relayFrom(t, r, batches, 0, 10+rank)
		r.CaughtUp(uint64(10 + rank))
		r.save()
	}
	for rank, r := range ranks() {
		at := r.beginWithFile()
		if at == nil || at.Seq != uint64(9+rank) {
			t.Fatalf("rank %d begins after %+v", rank, at)
		}
		r.CaughtUp(at.Seq + 1)
		if got, want := held(r), held(before[rank]); !slices.Equal(got, want) {
			t.Errorf("rank %d has\n%v\nwant\n%v", rank, got, want)
		}
	}
}

// BenchmarkSave saves a cache of 65,536 blocks: prompts of 512 blocks, which share their first 64.
func BenchmarkSave(b *testing.B) {
	const blocks, prompt, shared = 65_536, 512, 64
	dir := b.TempDir()
	state, err := OpenState(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer state.Close()
	m := newCacheMirror(0)
	w := fleet.Worker{Name: "a", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Epoch: 7, BlockSize: 16}
	if _, err := m.fleet.Put(w); err != nil {
		b.Fatal(err)
	}
	rank, _ := m.fleet.Snapshot().Rank("a", 0)
	next := uint64(0)
	for i := uint64(0); m.feed.Blocks(rank) < blocks; i++ {
		hashes := make([]uint64, prompt)
		for n := range hashes {
			hashes[n] = 1 + uint64(n)
			if n >= shared {
				hashes[n] += (i + 1) << 16
			}
		}
		batch := stored(hashes...)
		batch.Seconds = float64(1 + i)
		m.feed.Apply(&feed.Message{Worker: "a", Epoch: 7, Seq: next, Batch: batch}, time.Unix(1000, 0))
		next++
	}

	b.ResetTimer()
	var size int
	for b.Loop() {
		c, ok := m.feed.Snapshot("a", 7, 0)
		if !ok {
			b.Fatal("there is no snapshot")
		}
		if err := state.saveCache(&c); err != nil {
			b.Fatal(err)
		}
		size = len(c.Dump)
	}
	b.ReportMetric(float64(size)/float64(m.feed.Blocks(rank)), "B/block")
	b.ReportMetric(float64(size), "B/file")
}
