package kvindex

import (
	"encoding/binary"
	"flag"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/test/race"
)

// naive is the index as one would first write it: maps, loops, and everything it ever heard.
type naive struct {
	ranks map[fleet.RankID]*naiveRank
}

type naiveRank struct {
	names map[uint64]name  // the meaning of each engine hash
	tiers map[uint64]uint8 // on which tiers it is held
	paths map[uint64][]blockhash.Block
	until map[string]int64 // predictions by path
	// promised are predictions that an index may keep after it has forgotten the engine's events: it cannot know that the block was
	// reported, nor that a removal means it.
	promised map[string]int64

	windows map[int]int             // by group: blocks in a row that it needs
	groups  map[uint64]map[int]bool // which groups hold an engine hash
}

type name struct {
	parent uint64
	root   bool
	block  blockhash.Block
}

func (n *naive) rank(id fleet.RankID) *naiveRank {
	if n.ranks[id] == nil {
		n.ranks[id] = &naiveRank{map[uint64]name{}, map[uint64]uint8{}, map[uint64][]blockhash.Block{}, map[string]int64{}, map[string]int64{},
			map[int]int{}, map[uint64]map[int]bool{}}
	}
	return n.ranks[id]
}

// path is the blocks as the key of a map.
func path(blocks []blockhash.Block) string {
	key := make([]byte, 0, 8*len(blocks))
	for _, b := range blocks {
		key = binary.LittleEndian.AppendUint64(key, uint64(b))
	}
	return string(key)
}

// path spells the content of an engine hash; false while its parent has not been named.
func (r *naiveRank) path(h uint64) ([]blockhash.Block, bool) {
	p, ok := r.paths[h]
	return p, ok
}

// resolve gives every block that waits, and whose parent is known now, its path.
func (r *naiveRank) resolve() {
	for again := true; again; {
		again = false
		for h, n := range r.names {
			if _, known := r.paths[h]; known || r.tiers[h] == 0 && len(r.groups[h]) == 0 {
				continue
			}
			up, known := r.paths[n.parent]
			if n.root || known {
				r.paths[h] = append(append([]blockhash.Block(nil), up...), n.block)
				again = true
			}
		}
	}
}

// forget drops an engine hash that the rank holds on no tier and in no group.
func (r *naiveRank) forget(h uint64) {
	if r.tiers[h] == 0 && len(r.groups[h]) == 0 {
		delete(r.names, h)
		delete(r.tiers, h)
		delete(r.groups, h)
		delete(r.paths, h)
	}
}

// held returns the tiers of every path the rank holds, predictions as device.
func (r *naiveRank) held() map[string]uint8 {
	held := map[string]uint8{}
	for h, tiers := range r.tiers {
		if p, ok := r.path(h); ok && tiers != 0 {
			held[path(p)] |= tiers
		}
	}
	for p := range r.until {
		held[p] |= 1 << fleet.Device
	}
	return held
}

func (r *naiveRank) overlap(query []blockhash.Block) (counts [fleet.Tiers]int) {
	held, tier := r.held(), 0
	for i := range query {
		tiers := held[path(query[:i+1])]
		for ; tier < fleet.Tiers && tiers>>tier&1 == 0; tier++ {
		}
		if tier == fleet.Tiers {
			break
		}
		counts[tier]++
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	for over := total - r.reusable(query[:total]); over > 0; over-- {
		for tier = fleet.Tiers - 1; counts[tier] == 0; tier-- {
		}
		counts[tier]--
	}
	return counts
}

// inHost returns the number of blocks of a prefix in host memory, as far as it counts at all.
func (r *naiveRank) inHost(query []blockhash.Block) (n int) {
	held, most := r.held(), 0
	for _, blocks := range r.overlap(query) {
		most += blocks
	}
	for n < most && held[path(query[:n+1])]>>fleet.Host&1 != 0 {
		n++
	}
	return n
}

// reusable is the longest part of a prefix that ends where every group holds its window.
func (r *naiveRank) reusable(query []blockhash.Block) int {
	inGroup := map[int]map[string]bool{}
	for g := range r.windows {
		inGroup[g] = map[string]bool{}
		for h, groups := range r.groups {
			if p, ok := r.path(h); ok && groups[g] {
				inGroup[g][path(p)] = true
			}
		}
	}
	for n := len(query); n > 0; n-- {
		ok := true
		for g, window := range r.windows {
			for i := max(0, n-window); i < n; i++ {
				p := path(query[:i+1])
				_, predicted := r.until[p]
				ok = ok && (predicted || inGroup[g][p])
			}
		}
		if ok {
			return n
		}
	}
	return 0
}

// world drives the index and the twin alike with possible events of engines, in any order.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	x      *Index
	n      naive
	now    time.Time
	fan    int // how many blocks may follow a block
	depth  int
	ranks  int
	claims int
	// long has chains go along one of a few prompts of many blocks, and leave it or not.
	long bool
	// windows, if not empty, are the windows of the groups of the first two ranks.
	windows []int
}

func (w *world) chain() []blockhash.Block {
	chain := make([]blockhash.Block, 1+w.rng.IntN(w.depth))
	for i := range chain {
		chain[i] = blockhash.Block(1 + w.rng.IntN(w.fan))
	}
	if w.long {
		leave := w.rng.IntN(2 * len(chain))
		for i := range min(leave, len(chain)) {
			chain[i] = blockhash.Block(1000 + i)
		}
	}
	return chain
}

// names are the engine hashes of a chain: ranks of odd and even number hash differently.
func names(id fleet.RankID, chain []blockhash.Block) []uint64 {
	hashes := make([]uint64, len(chain))
	for i := range chain {
		hashes[i] = xxh3.HashStringSeed(path(chain[:i+1]), uint64(id%2))
	}
	return hashes
}

func (w *world) step() {
	id := fleet.RankID(w.rng.IntN(w.ranks))
	tier := fleet.Tier(w.rng.IntN(fleet.Tiers) * w.rng.IntN(2)) // half of them device
	chain := w.chain()
	hashes := names(id, chain)
	from := w.rng.IntN(len(chain)) * w.rng.IntN(2)
	r := w.n.rank(id)
	if len(w.windows) > 0 && id < 2 && w.rng.IntN(2) == 0 {
		w.windowStep(id, r, chain, hashes, from)
		return
	}
	switch dice := w.rng.IntN(1000); {
	case dice < 500: // store a chain or its end; then the parent may be unknown
		parent := uint64(0)
		if from > 0 {
			parent = hashes[from-1]
		}
		w.x.Store(id, tier, Chain{Parent: parent, HasParent: from > 0, Hashes: hashes[from:], Blocks: chain[from:]})
		for i := from; i < len(chain); i++ {
			r.names[hashes[i]] = name{root: i == 0, block: chain[i]}
			if i > 0 {
				r.names[hashes[i]] = name{parent: hashes[i-1], block: chain[i]}
			}
			r.tiers[hashes[i]] |= 1 << tier
		}
		r.resolve()
	case dice < 600: // a tier event without tokens
		w.x.Store(id, tier, Chain{Hashes: hashes[from:]})
		for _, h := range hashes[from:] {
			if r.tiers[h] != 0 || len(r.groups[h]) > 0 {
				r.tiers[h] |= 1 << tier
			}
		}
	case dice < 900:
		w.x.Remove(id, tier, hashes[from:])
		for _, h := range hashes[from:] {
			if r.tiers[h]>>tier&1 != 0 && tier == fleet.Device {
				if p, ok := r.path(h); ok {
					delete(r.until, path(p))
				}
			}
			r.tiers[h] &^= 1 << tier
			r.forget(h)
		}
	case dice < 902:
		w.x.Clear(id)
		delete(w.n.ranks, id)
	case dice < 904:
		w.x.Drop(id)
		delete(w.n.ranks, id)
	case dice < 908: // a dump has everything but predictions
		if err := w.x.Load(id, w.x.AppendDump(nil, id)); err != nil {
			w.t.Fatal(err)
		}
		clear(r.until)
		clear(r.promised)
	case dice < 915: // a request did not reach its rank
		until := w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
		n := w.x.Withdraw(id, blockhash.Chain(nil, chain), from, until)
		end := (until.UnixNano() + tick - 1) / tick * tick
		for i := from; i < len(chain); i++ {
			p := path(chain[:i+1])
			if at, ok := r.until[p]; ok && at <= end {
				delete(r.until, p)
				n--
			} else if r.promised[p] > 0 && w.x.Stats().Evicted > 0 {
				n-- // the index may have evicted the block, or an earlier prediction of it, which the twin does not know
			}
		}
		if n > 0 { // an index that is full may have dropped some
			w.t.Fatalf("%d blocks too many were withdrawn", n)
		}
	case dice < 960:
		until := w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
		from := max(0, w.rng.IntN(8)-4)
		w.x.Predict(id, blockhash.Chain(nil, chain), from, until, 0)
		held := r.held()
		for i := min(from, len(chain)); i < len(chain); i++ {
			p := path(chain[:i+1])
			r.promised[p] = max(r.promised[p], (until.UnixNano()+tick-1)/tick*tick)
			_, was := r.until[p]
			if reported := r.reported(p); was || held[p]>>fleet.Device&1 == 0 || !reported {
				r.until[p] = max(r.until[p], (until.UnixNano()+tick-1)/tick*tick)
			}
		}
	default:
		w.now = w.now.Add(time.Duration(w.rng.IntN(200)) * time.Millisecond)
		w.x.Expire(w.now)
		for _, r := range w.n.ranks {
			expired := func(_ string, at int64) bool { return at <= w.now.UnixNano() }
			maps.DeleteFunc(r.until, expired)
			maps.DeleteFunc(r.promised, expired)
		}
	}
}

// windowStep applies a random event of a sliding-window group.
func (w *world) windowStep(id fleet.RankID, r *naiveRank, chain []blockhash.Block, hashes []uint64, from int) {
	group := w.rng.IntN(len(w.windows))
	switch dice := w.rng.IntN(100); {
	case dice < 70:
		parent := uint64(0)
		if from > 0 {
			parent = hashes[from-1]
		}
		blocks := chain[from:]
		if dice < 10 {
			blocks = nil
		}
		w.x.StoreWindow(id, Window{Group: group + 3, Blocks: w.windows[group]}, Chain{Parent: parent, HasParent: from > 0, Hashes: hashes[from:], Blocks: blocks})
		r.windows[group] = w.windows[group]
		for i := from; i < len(chain); i++ {
			h := hashes[i]
			if dice < 10 && r.tiers[h] == 0 && len(r.groups[h]) == 0 {
				continue
			}
			if dice >= 10 {
				r.names[h] = name{root: i == 0, block: chain[i]}
				if i > 0 {
					r.names[h] = name{parent: hashes[i-1], block: chain[i]}
				}
			}
			if r.groups[h] == nil {
				r.groups[h] = map[int]bool{}
			}
			r.groups[h][group] = true
		}
		r.resolve()
	default:
		w.x.RemoveWindow(id, group+3, hashes[from:])
		for _, h := range hashes[from:] {
			delete(r.groups[h], group)
			r.forget(h)
		}
	}
}

func (r *naiveRank) reported(p string) bool {
	for h, tiers := range r.tiers {
		if tiers>>fleet.Device&1 != 0 {
			if have, ok := r.path(h); ok && path(have) == p {
				return true
			}
		}
	}
	return false
}

// The tests against the twin take a part of a minute; a million steps of each take ten:
//
//	go test -run Twin -timeout 1h ./internal/kv/kvindex -args -steps 1000000
//	go test -run Pressure -timeout 1h ./internal/kv/kvindex -args -steps 1000000
//
// Each run has a new seed and prints it; -seed repeats one.
var (
	stepsFlag = flag.Int("steps", 0, "steps of each test against the twin; 0 is a few thousand")
	seedFlag  = flag.Uint64("seed", 0, "seed of the tests against the twin; 0 is a new one")
)

func steps(few int) int {
	switch {
	case *stepsFlag > 0:
		return *stepsFlag
	case testing.Short():
		return few / 3
	}
	return few
}

func seed(t *testing.T) uint64 {
	s := *seedFlag
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d", s)
	return s
}

// TestAgreesWithTwin: under everything an engine may say, in any order, the index answers
// as the naive twin does.
func TestAgreesWithTwin(t *testing.T) {
	race.Skip(t)
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed(t), 0)), x: New(Config{}), n: naive{map[fleet.RankID]*naiveRank{}},
		now: time.Unix(1000, 0), fan: 2, depth: 5, ranks: 4}
	var out Overlap
	for i := range steps(60_000) {
		w.step()
		if i%4 != 0 {
			continue
		}
		query := w.chain()
		w.x.Lookup(query, &out)
		for id := range fleet.RankID(w.ranks) {
			if got, want := out.Of(id), w.n.rank(id).overlap(query); got != want {
				t.Fatalf("step %d: rank %d of %v: %v, the twin says %v", i, id, query, got, want)
			}
			if got, want := out.InHost(id), w.n.rank(id).inHost(query); got != want {
				t.Fatalf("step %d: rank %d has %d blocks of %v in host memory, the twin %d", i, id, got, query, want)
			}
			w.checkUntil(i, id, query)
		}
	}
	audit(t, w.x)
}

// checkUntil compares how long each block of a chain is predicted.
func (w *world) checkUntil(step int, id fleet.RankID, chain []blockhash.Block) {
	for i, seq := range blockhash.Chain(nil, chain) {
		got := int64(0)
		if at, ok := w.x.PredictedUntil(id, seq); ok {
			got = at.UnixNano()
		}
		if want := w.n.rank(id).until[path(chain[:i+1])]; got != want {
			w.t.Fatalf("step %d: rank %d is predicted to hold %v until %d, the twin says %d", step, id, chain[:i+1], got, want)
		}
	}
}

// TestLongPromptsAgreeWithTwin is TestAgreesWithTwin with prompts of several stretches, so that lookups skip, over holes, and prompts leave
// each other inside the skipped blocks.
func TestLongPromptsAgreeWithTwin(t *testing.T) {
	race.Skip(t)
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed(t), 0)), x: New(Config{}), n: naive{map[fleet.RankID]*naiveRank{}},
		now: time.Unix(1000, 0), fan: 2, depth: 200, ranks: 3, long: true, windows: []int{5, 70}}
	var out Overlap
	for i := range steps(150) {
		w.step()
		if i%3 == 0 {
			w.checkUntil(i, fleet.RankID(w.rng.IntN(w.ranks)), w.chain())
			w.query(&out, w.x, fleet.RankID(w.rng.IntN(w.ranks)))
		}
		if i%100 == 99 { // else the twin has too much to look through
			id := fleet.RankID(w.rng.IntN(w.ranks))
			w.x.Drop(id)
			delete(w.n.ranks, id)
		}
	}
	audit(t, w.x)
}

// TestHybridAgreesWithTwin is TestAgreesWithTwin with two ranks that have sliding-window
// groups, two of them of one size.
func TestHybridAgreesWithTwin(t *testing.T) {
	race.Skip(t)
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed(t), 0)), x: New(Config{}), n: naive{map[fleet.RankID]*naiveRank{}},
		now: time.Unix(1000, 0), fan: 2, depth: 6, ranks: 3, windows: []int{2, 1, 2, 4}}
	var out Overlap
	for i := range steps(8000) {
		w.step()
		for id := range fleet.RankID(w.ranks) {
			if i%8 == 0 {
				w.query(&out, w.x, id)
			}
		}
	}
	audit(t, w.x)
}

// TestNeverClaimsUnderPressure: in too few bytes the index evicts blocks, but its reports are true,
// and it stays within its bytes.
func TestNeverClaimsUnderPressure(t *testing.T) {
	race.Skip(t)
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed(t), 0)), x: New(Config{MaxBytes: 96 << 10, MaxOrphans: 20, MaxPredicted: 50}),
		n: naive{map[fleet.RankID]*naiveRank{}}, now: time.Unix(1000, 0), fan: 6, depth: 5, ranks: 4, windows: []int{2, 3}}
	var out Overlap
	for i := range steps(20_000) {
		w.step()
		if used := w.x.budget.used.Load(); used > 96<<10 || used < 0 {
			t.Fatalf("step %d: %d bytes of %d", i, used, 96<<10)
		}
		if i%16 != 0 {
			continue
		}
		query := w.chain()
		w.x.Lookup(query, &out)
		for id := range fleet.RankID(w.ranks) {
			w.checkClaims(i, id, query, out.Of(id))
		}
	}
	if w.claims == 0 || w.x.Stats().Evicted == 0 {
		t.Errorf("nothing was tested: %d claims, %+v", w.claims, w.x.Stats())
	}
	audit(t, w.x)
}

// checkClaims spells out an overlap block by block: each must be held on the tier it is
// claimed for.
func (w *world) checkClaims(step int, id fleet.RankID, query []blockhash.Block, got [fleet.Tiers]int) {
	r := *w.n.rank(id)
	r.until = r.promised
	held, at := r.held(), 0
	total := 0
	for _, n := range got {
		total += n
	}
	if r.reusable(query[:total]) != total {
		w.t.Fatalf("step %d: rank %d is said to reuse %v, which its windows do not allow", step, id, query[:total])
	}
	for tier, n := range got {
		for range n {
			if at++; held[path(query[:at])]>>tier&1 == 0 {
				w.t.Fatalf("step %d: rank %d is said to hold %v on %s", step, id, query[:at], fleet.Tier(tier))
			}
			w.claims++
		}
	}
}

// audit counts everything again and compares it with the budget; then it drops all ranks
// and expects nothing but empty tables.
func audit(t *testing.T, x *Index) {
	t.Helper()
	if got, want := x.budget.used.Load(), count(x); got != want {
		t.Errorf("the budget says %d bytes, counting says %d", got, want)
	}
	for id := range *x.byID.Load() {
		x.Drop(fleet.RankID(id))
	}
	for range 1000 {
		x.reap(1 << 20)
	}
	s := x.Stats()
	if s.Nodes != 0 || s.Sets != 0 || s.Dropped != 0 || s.Pairs != 0 || s.Windowed != 0 || s.Orphans != 0 || s.Predicted != 0 {
		t.Errorf("after dropping everything: %+v", s)
	}
	if got, want := x.budget.used.Load(), count(x); got != want {
		t.Errorf("after dropping everything the budget says %d bytes, counting says %d", got, want)
	}
}

func sharesBytes(p *predictionPart) (n int64) {
	for ; p != nil; p = p.next {
		n += p.bytes()
	}
	return n
}

func count(x *Index) (n int64) {
	seen := map[*chunk]bool{}
	for i := range x.nodes.shards {
		t := x.nodes.shards[i].table.Load()
		if t == nil {
			continue
		}
		n += int64(len(t.slots)) * slotBytes
		for j := range t.slots {
			r := t.slots[j].run.Load()
			if r == nil || seen[r.chunk] {
				continue
			}
			g := r.chunk
			seen[g] = true
			n += chunkBytes
			for r := g.runs; r != nil; r = r.next {
				if r != &g.first {
					n += runBytes
				}
			}
		}
	}
	for i := range x.sets.shards {
		for _, s := range x.sets.shards[i].byHash {
			for ; s != nil; s = s.next {
				n += s.bytes()
			}
		}
	}
	ranks := append([]*rank(nil), x.dropped...)
	for _, r := range append(ranks, *x.byID.Load()...) {
		if r == nil {
			continue
		}
		for i := range r.engine.segments {
			n += int64(len(r.engine.segments[i].entries)) * entryBytes
		}
		for i := range r.predictions.heap {
			n += sharesBytes(r.predictions.heap[i].parts)
		}
		for i := range r.predictions.spare {
			n += sharesBytes(r.predictions.spare[i].first)
		}
		n += int64(len(r.orphans.byHash))*orphanBytes + int64(len(r.twins))*twinBytes
		if r.windows != nil {
			for i := range r.windows.table.segments {
				n += int64(len(r.windows.table.segments[i].entries)) * entryBytes
			}
		}
	}
	return n
}
