package kvindex

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/race"
)

// TestDumpCarriesEverything: an index loaded from another's dumps answers as the twin of the first, and goes on to agree with it
// under the engines' next events.
func TestDumpCarriesEverything(t *testing.T) {
	race.Skip(t)
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed(t), 0)), x: New(Config{}), n: naive{map[fleet.RankID]*naiveRank{}},
		now: time.Unix(1000, 0), fan: 2, depth: 5, ranks: 4, windows: []int{2, 1, 2}}
	var out Overlap
	for round := range 100 {
		for range 50 {
			w.step()
		}
		second := New(Config{})
		for id := range fleet.RankID(w.ranks) {
			dump := w.x.AppendDump([]byte("before"), id)
			if err := second.Load(id, dump[6:]); err != nil {
				t.Fatal(err)
			}
			clear(w.n.rank(id).until)
			w.query(&out, second, id)
		}
		third := New(Config{})
		for id := range fleet.RankID(w.ranks) {
			if err := third.Load(id, second.AppendDump(nil, id)); err != nil {
				t.Fatal(err)
			}
		}
		for id := range fleet.RankID(w.ranks) {
			if got, want := spelled(third, id), spelled(second, id); got != want {
				t.Errorf("round %d, rank %d: what was loaded is not what was dumped: %s, want %s", round, id, got, want)
			}
		}
		audit(t, w.x)
		w.x = second
	}
	audit(t, w.x)
}

// spelled is a rank's dump as text, in an order of its own.
func spelled(x *Index, id fleet.RankID) string {
	d, err := parseDump(x.AppendDump(nil, id))
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, s := range d.sections {
		for at := s.pieces(); at.more(); {
			p := at.next()
			for i := range p.count {
				all = append(all, fmt.Sprint(s.kind, p.mask, p.at(i)))
			}
		}
	}
	slices.Sort(all)
	return fmt.Sprint(d.groups, all, d.orphans)
}

func (w *world) query(out *Overlap, x *Index, id fleet.RankID) {
	for range 5 {
		query := w.chain()
		x.Lookup(query, out)
		if got, want := out.Of(id), w.n.rank(id).overlap(query); got != want {
			w.t.Fatalf("rank %d of %v: %v, the twin says %v", id, query, got, want)
		}
	}
}

// TestDumpOfManyBlocks: the bytes of a dump for each block are bounded, and a lookup skips in the loaded blocks.
func TestDumpOfManyBlocks(t *testing.T) {
	race.Skip(t)
	x := New(Config{})
	fill(x, 1, 100_000)
	dump := x.AppendDump(nil, 0)
	if perBlock := float64(len(dump)) / 100_000; perBlock > 16.2 {
		t.Errorf("%.2f bytes a block", perBlock)
	}
	second := New(Config{})
	if err := second.Load(7, dump); err != nil {
		t.Fatal(err)
	}
	blocks, _ := prompt(51_200, 512)
	var out Overlap
	if second.Lookup(blocks, &out); out.Of(7)[fleet.Device] != 512 || second.Blocks(7) != 100_000 {
		t.Errorf("rank 7 holds %d blocks of the prompt and %d in all", out.Of(7)[fleet.Device], second.Blocks(7))
	}
	s := second.Stats()
	if perBlock := float64(s.Bytes) / 100_000; perBlock > 52 {
		t.Errorf("%.1f bytes a block after a load", perBlock)
	}
	audit(t, second)
}

// TestLoadLargerThanTheIndex: blocks that do not fit are left out, and the bound holds.
func TestLoadLargerThanTheIndex(t *testing.T) {
	race.Skip(t)
	x := New(Config{})
	fill(x, 1, 40_000)
	dump := x.AppendDump(nil, 0)
	small := New(Config{MaxBytes: 1 << 20})
	for range 3 {
		if err := small.Load(0, dump); err != nil {
			t.Fatal(err)
		}
		if s := small.Stats(); s.Bytes > s.MaxBytes || s.Pairs < 5000 {
			t.Errorf("%+v", s)
		}
	}
	audit(t, small)
}

func TestLoadRefusesAndChangesNothing(t *testing.T) {
	x := New(Config{})
	blocks, hashes := prompt(1, 100)
	x.Store(0, fleet.Device, Chain{Hashes: hashes, Blocks: blocks})
	dump := x.AppendDump(nil, 0)
	signed := func(body ...byte) []byte { return binary.LittleEndian.AppendUint64(body, xxh3.Hash(body)) }
	for _, c := range []struct {
		name string
		dump []byte
		want string
	}{
		{"empty", nil, "it ends too early"},
		{"cut", dump[:len(dump)-9], "checksum"},
		{"version", signed(9, 0, 0, 0), "version 9 is not supported"},
		{"no end", signed(dumpVersion, 0), "too early"},
		{"kind", signed(dumpVersion, 0, 7, 0, 1, 0), "a section of kind 7"},
		{"class", signed(dumpVersion, 0, 1, 4, 0, 0, 0), "class 4"},
		{"tiers", signed(append([]byte{dumpVersion, 0, 1, 0, 4, 0x1f}, make([]byte, 18)...)...), "mask is 0x1f"},
		{"blocks", signed(dumpVersion, 0, 1, 0, 8, 1, 0, 0), "too early"},
		{"trailing", signed(dumpVersion, 0, 0, 0, 0), "does not end where it should"},
		{"groups", signed(dumpVersion, 9), "it has 9 sliding-window groups"},
		{"group twice", signed(dumpVersion, 2, 1, 8, 1, 8), "group 1 twice"},
		{"group mask", signed(append([]byte{dumpVersion, 1, 1, 8, 2, 0, 4, 2}, make([]byte, 18)...)...), "mask is 0x2"},
		{"orphans", signed(dumpVersion, 0, 0, 1, 0x81, 0, 0), "does not end where it should"},
	} {
		if err := x.Load(0, c.dump); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	var out Overlap
	if x.Lookup(blocks, &out); out.Of(0)[fleet.Device] != 100 {
		t.Errorf("after refused dumps %d of 100 blocks are left", out.Of(0)[fleet.Device])
	}
}

// TestConcurrentLoads: lookups see all of a rank or all of its replacement.
func TestConcurrentLoads(t *testing.T) {
	source := New(Config{})
	blocks, hashes := prompt(1, 2000)
	source.Store(0, fleet.Device, Chain{Hashes: hashes, Blocks: blocks})
	dump := source.AppendDump(nil, 0)
	x := New(Config{})
	for r := range fleet.RankID(3) {
		if err := x.Load(r, dump); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for r := range fleet.RankID(3) {
		wg.Go(func() {
			for range 12 {
				if err := x.Load(r, dump); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			var out Overlap
			for range 120 {
				// A lookup that began with the old rank may outlive it; then it finds less.
				if x.Lookup(blocks, &out); out.Of(r)[fleet.Tier(1)] != 0 {
					t.Error("rank on a tier that it never had")
				}
				_ = x.AppendDump(nil, r)
			}
		})
	}
	wg.Wait()
	audit(t, x)
}

// FuzzLoad: a dump is refused and changes nothing, or it is loaded, stays within the bound, and
// its own dump loads to the same.
func FuzzLoad(f *testing.F) {
	x := New(Config{})
	blocks, hashes := prompt(1, 12)
	x.Store(0, fleet.Device, Chain{Hashes: hashes, Blocks: blocks})
	f.Add(x.AppendDump(nil, 0))
	x.Store(0, fleet.Host, Chain{Hashes: hashes[:4], Blocks: blocks[:4]})
	x.Store(0, fleet.Disk, Chain{Parent: 12345, HasParent: true, Hashes: hashes[9:], Blocks: blocks[:3]})
	f.Add(x.AppendDump(nil, 0))
	x.StoreWindow(0, Window{Group: 3, Blocks: 2}, Chain{Hashes: hashes[:5], Blocks: blocks[:5]})
	x.StoreWindow(0, Window{Group: 4, Blocks: 7}, Chain{Parent: 12345, HasParent: true, Hashes: hashes[7:], Blocks: blocks[:5]})
	f.Add(x.AppendDump(nil, 0))
	f.Fuzz(func(t *testing.T, dump []byte) {
		// The checksum is put right: else no changed input would get past it.
		if len(dump) >= 8 {
			body := dump[:len(dump)-8]
			dump = binary.LittleEndian.AppendUint64(bytes.Clone(body), xxh3.Hash(body))
		}
		x := New(Config{MaxBytes: 64 << 10, MaxOrphans: 16})
		b, h := prompt(9, 3)
		x.Store(0, fleet.Device, Chain{Hashes: h, Blocks: b})
		err := x.Load(0, dump)
		if used := x.budget.used.Load(); used > 64<<10 || used != count(x) {
			t.Fatalf("%d bytes, counting says %d", used, count(x))
		}
		if err != nil {
			if x.Blocks(0) != 3 {
				t.Fatal("a refused dump changed the index")
			}
			return
		}
		second := New(Config{MaxOrphans: 16})
		if err := second.Load(0, x.AppendDump(nil, 0)); err != nil {
			t.Fatal(err)
		}
		if got, want := spelled(second, 0), spelled(x, 0); got != want {
			t.Fatalf("what was loaded is not what was dumped: %s, want %s", got, want)
		}
		audit(t, x)
	})
}

// BenchmarkLoad: how long until a new replica has loaded 2 million blocks, two ranks loaded at a time?
//
//	go test -run - -bench Load ./internal/kv/kvindex
func BenchmarkLoad(b *testing.B) {
	for _, shape := range []struct{ ranks, holders int }{{4, 1}, {4, 4}} {
		b.Run(fmt.Sprintf("blocks=2000000/ranks=%d/holders=%d", shape.ranks, shape.holders), func(b *testing.B) {
			x := New(Config{MaxBytes: 1 << 30})
			dumps, size := make([][]byte, shape.ranks), 0
			for at := 0; at < 500_000; at += 500 {
				for r := range fleet.RankID(shape.ranks) {
					number := uint64(at)
					if shape.holders == 1 {
						number |= uint64(r) << 32
					}
					blocks, hashes := prompt(number, 500)
					x.Store(r, fleet.Device, Chain{Hashes: hashes, Blocks: blocks})
				}
			}
			start := time.Now()
			for r := range dumps {
				dumps[r] = x.AppendDump(nil, fleet.RankID(r))
				size += len(dumps[r])
			}
			dumped := time.Since(start)
			var second *Index
			b.ReportAllocs()
			for b.Loop() {
				second = New(Config{MaxBytes: 1 << 30})
				var wg sync.WaitGroup
				for part := range 2 {
					wg.Go(func() {
						for r := part; r < len(dumps); r += 2 {
							if err := second.Load(fleet.RankID(r), dumps[r]); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
			}
			if s := second.Stats(); s.Pairs != 2_000_000 {
				b.Fatalf("%+v", s)
			}
			b.ReportMetric(float64(size)/2e6, "B/block")
			b.ReportMetric(dumped.Seconds(), "s-to-dump")
		})
	}
}
