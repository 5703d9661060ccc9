package main

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
)

// TestDesign checks that every pair of values occurs often enough, that names are unique, and that the halves are about equal.
func TestDesign(t *testing.T) {
	cells := design(theDesign)
	if len(cells) < 150 || len(cells) > 250 {
		t.Errorf("there are %d cells, want 150 to 250", len(cells))
	}
	halves := map[string]int{}
	for i := range cells {
		halves[cells[i].half()]++
	}
	if a, b := halves["A"], halves["B"]; halves[both] != len(named) || a < b*3/4 || b < a*3/4 {
		t.Errorf("the halves have %v cells", halves)
	}

	seen := map[pair]int{}
	for _, v := range covering(theDesign) {
		v.pairs(func(p pair) { seen[p]++ })
	}
	pairs := 0
	for a := range axes {
		for b := a + 1; b < axes; b++ {
			pairs += sizes[a] * sizes[b]
		}
	}
	least := math.MaxInt
	for _, n := range seen {
		least = min(least, n)
	}
	if len(seen) != pairs || least < coverings {
		t.Errorf("%d of %d pairs occur, and one only %d times", len(seen), pairs, least)
	}
}

// TestHalvesStay checks the half of two cells: it must not change, because half B is not looked at.
func TestHalvesStay(t *testing.T) {
	want := map[string]string{
		"closed 1×, 1000/200 equal, 200 prefixes, quiet, ample caches, 8 engines, 1 router, events, aggregated":   "A",
		"closed 1×, 1000/200 equal, nothing shared, quiet, ample caches, 8 engines, 1 router, events, aggregated": "B",
	}
	found := 0
	cells := design(theDesign)
	for i := range cells {
		if half := want[cells[i].name()]; half != "" {
			found++
			if cells[i].half() != half {
				t.Errorf("%s is in half %s, want %s", cells[i].name(), cells[i].half(), half)
			}
		}
	}
	if found != len(want) {
		t.Errorf("%d of %d cells exist", found, len(want))
	}
}

// TestFlagsOfCells parses the flags of every cell with those of every setting.
func TestFlagsOfCells(t *testing.T) {
	cells := design(theDesign)
	for i := range cells {
		c := &cells[i]
		for _, r := range contestants() {
			for _, s := range r.settings {
				got, err := parse(c.flags(100) + " " + s.flags)
				if err != nil {
					t.Fatalf("%s, %s %s: %v", c.name(), r.name, s.name, err)
				}
				if s.change != nil {
					s.change(&got.cfg)
				}
				if err := errors.Join(got.cfg.Validate(), got.generated.Validate()); err != nil {
					t.Fatalf("%s, %s %s: %v", c.name(), r.name, s.name, err)
				}
				fleet := &got.cfg
				if c.fixed == "" && (fleet.Workers+fleet.Prefill != c.engines || fleet.Replicas != c.routers || fleet.NoEvents != c.noEvents) {
					t.Fatalf("%s has %d and %d workers and %d routers", c.name(), fleet.Workers, fleet.Prefill, fleet.Replicas)
				}
			}
		}
	}
}

// TestSlots compares the slots of cells with what was computed by hand.
func TestSlots(t *testing.T) {
	for _, c := range []struct {
		cell          cell
		blocks, slots int
	}{
		{cell{shape: shapes[0], engines: 8, seqs: 256}, 16384, 8 * 256},
		{cell{shape: shapes[0], engines: 8, seqs: 256, apart: true}, 16384, 4 * 256},
		// A request has 474 blocks: 34 fit.
		{cell{shape: shapes[4], engines: 2, seqs: 256}, 16384, 2 * 34},
		// 256 requests of 19 blocks, and 200 prefixes of 900 tokens: (4864 + 2812) / 4.
		{cell{shape: shapes[0], sharing: sharings[2], engines: 1, seqs: 256, tight: true}, 1919, 101},
	} {
		if b, s := c.cell.blocks(), c.cell.slots(); b != c.blocks || s != c.slots {
			t.Errorf("%s: %d blocks and %d slots, want %d and %d", c.cell.name(), b, s, c.blocks, c.slots)
		}
	}
}

// TestSessions checks that each prompt of a user begins with the one before, and that lengths have the mean that was asked for.
func TestSessions(t *testing.T) {
	g := trace.Generated{Requests: 1000, Input: 400, Output: 10}
	next, err := g.Source()
	if err != nil {
		t.Fatal(err)
	}
	next = sessions(next, &g, 20)

	length := map[uint64]int{} // of the last prompt, by session
	sum, grown := 0, 0
	for {
		a, ok, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		s := a.Prompt.(trace.Segments)[0]
		sum += s.Length
		if last, has := length[s.ID]; has {
			grown++
			if s.Length-last != 120 {
				t.Fatalf("a prompt of %d tokens follows one of %d: want 120 more", s.Length, last)
			}
		}
		length[s.ID] = s.Length
	}
	if mean := sum / 1000; mean < 390 || mean > 410 || grown < 700 {
		t.Errorf("prompts have %d tokens in the mean, and %d continue a session: want 400, and 4 of 5", mean, grown)
	}
}

// TestCapacity compares the rates of a fleet, of one with slow engines, and of a full closed loop on four engines.
func TestCapacity(t *testing.T) {
	c := cell{shape: shape{128, 64}, engines: 4, seqs: 256, routers: 1, condition: conditions[len(conditions)-1]}
	known := newCapacities()
	rate, err := known.capacityOf(&c)
	if err != nil {
		t.Fatal(err)
	}
	even := c
	even.condition = conditions[0]
	whole, err := known.capacityOf(&even)
	if err != nil {
		t.Fatal(err)
	}
	if len(known.known) != 1 || math.Abs(rate/whole-0.75) > 1e-9 {
		t.Errorf("two engines at half speed: %.1f of %.1f requests a second, want three quarters, from %d runs", rate, whole, len(known.known))
	}

	r, err := play("--format generate --requests 4096 --isl 128 --osl 64 --arrivals constant --rate 100000 --concurrency 1024 --workers 4 "+
		"--policy round-robin", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(r.Completed) / r.Duration; got < 0.85*whole || got > 1.1*whole {
		t.Errorf("four full engines end %.1f requests a second, and %.1f were expected", got, whole)
	}
}

// TestOver takes the mean of figures, and the median of the 99th percentile.
func TestOver(t *testing.T) {
	got := over([]figures{{TTFT: 1, TTFTP99: 9, E2E: 30}, {TTFT: 2, TTFTP99: 100, E2E: 30}, {TTFT: 6, TTFTP99: 10, E2E: 60}})
	if got.TTFT != 3 || got.TTFTP99 != 10 || got.E2E != 40 {
		t.Errorf("%+v", got)
	}
	if got := over([]figures{{TTFTP99: 9}, {TTFTP99: 100}}); got.TTFTP99 != 54.5 {
		t.Errorf("the median of two is %v", got.TTFTP99)
	}
}

// rows are those of a cell in which two rivals are best by different metrics, and one fails.
func rows() []row {
	return []row{
		{Router: "kv", figures: figures{Throughput: 90, TTFT: 110, TTFTP99: 400, E2E: 1000}},
		{Router: "x", figures: figures{Throughput: 100, TTFT: 220, TTFTP99: 500, E2E: 800}},
		{Router: "y", figures: figures{Throughput: 45, TTFT: 100, TTFTP99: 800, E2E: 2000}},
		{Router: "y", Best: true, figures: figures{Throughput: 80, TTFT: 121, TTFTP99: 800, E2E: 1250}},
		{Router: "z", figures: figures{Throughput: 900, TTFT: 1, TTFTP99: 1, E2E: 1, Errors: 500}},
	}
}

func TestRegret(t *testing.T) {
	o := outcome{Cell: "a", Rows: rows()}
	g := regretOf(&o)
	near := func(got, want [4]float64) bool {
		for i := range got {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				return false
			}
		}
		return true
	}
	if !near(g.strict, [4]float64{0.1, 0.1, -0.2, 0.25}) || !near(g.single, [4]float64{0.1, -0.5, -0.2, 0.25}) || g.rival.Router != "x" {
		t.Errorf("strict %v, against %s %v", g.strict, g.rival.Router, g.single)
	}

	if !near(g.hindsight, [4]float64{0.2, 0.21, 0.6, 0.5625}) {
		t.Errorf("in hindsight the best setting of y is best, got %v", g.hindsight)
	}

	same := outcome{Cell: "b", Rows: []row{o.Rows[0], {Router: "y", figures: o.Rows[0].figures}}}
	s := summarize([]outcome{same, o})
	share, worst := s.shareNear(func(g *regret) float64 { return g.strict[3] })
	if share != 0.5 || worst != 1 {
		t.Errorf("%v of the cells are near, and the worst is %d", share, worst)
	}
	e2e := metrics[3].of
	if got := s.ratio("y", false, e2e); math.Abs(got-math.Sqrt(0.5)) > 1e-9 {
		t.Errorf("kv is %v times y by default, want the root of 0.5", got)
	}
	if got := s.ratio("y", true, e2e); math.Abs(got-math.Sqrt(0.8)) > 1e-9 {
		t.Errorf("kv is %v times y's best setting, want the root of 0.8", got)
	}
}

// TestPage checks the order of cells, and that nothing is loaded and names are escaped.
func TestPage(t *testing.T) {
	easy := outcome{Cell: "the easy one", Rows: rows()[:1]}
	heavy := outcome{Cell: "<script>heavy", Flags: "--workers 2", Rows: rows()}
	var page strings.Builder
	if err := summarize([]outcome{easy, heavy, heavy}).writePage(&page, "3 cells"); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	if strings.Contains(text, "<script") || strings.Contains(text, "://") || strings.Contains(text, "ZgotmplZ") {
		t.Error("the page has a script, loads something, or lost a colour")
	}
	if !strings.Contains(text, "stator replay --workers 2 --seed 1") ||
		!strings.Contains(text, `class="bad" style="--heat: 0.38" title="x">&#43;25.0 %`) {
		t.Error("the page has no flags or no heat of the E2E regret")
	}
	if strings.Index(text, "the easy one") < strings.LastIndex(text, "heavy") {
		t.Error("the worst cells are not first")
	}
}

// TestSearch plays a small cell with two settings, of which the second is better on the seed of the search. Rows of the tables have
// other seeds.
func TestSearch(t *testing.T) {
	slow := func(cfg *sim.Config) { cfg.SignalLag = time.Second; cfg.Slow = map[int]float64{0: 3, 1: 3} }
	b := bench{seeds: 2, routers: []contestant{
		{"kv", []setting{{"default", "", nil}}},
		{"rival", []setting{{"default", "", slow}, {"quick", "--policy round-robin", nil}}},
	}}
	o, err := b.cell(&smoke[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Rows) != 3 || len(o.Search) != 3 || o.Search[0].Router != "kv" {
		t.Fatalf("%d rows and %d of the search: %+v", len(o.Rows), len(o.Search), o)
	}
	if o.Rows[1].Best || !o.Rows[2].Best || o.Rows[2].Setting != "quick" || len(o.Rows[2].Seeds) != 2 {
		t.Fatalf("%+v", o)
	}
	if o.Search[2].E2E == o.Rows[2].Seeds[0].E2E {
		t.Error("the search has the seed of the table")
	}

	worse := o.Search[2]
	worse.E2E *= 2
	other := o
	other.Search = []row{o.Search[0], o.Search[1], worse}
	name, _, e2e := summarize([]outcome{o, other}).oneSetting("rival")
	want := o.Search[0].E2E / o.Search[2].E2E / math.Sqrt2
	if name != "quick" || math.Abs(e2e-want) > 1e-9 {
		t.Errorf("the best setting over both cells is %q, and kv's E2E %v of its: want quick, %v", name, e2e, want)
	}
	other.Search = other.Search[1:]
	if name, _, _ := summarize([]outcome{o, other}).oneSetting("rival"); name != "" {
		t.Errorf("without a search of kv the best setting is %q", name)
	}
}

// TestStore writes outcomes, and resumes.
func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.json")
	write := func(resume bool, cell string) (kept int) {
		s, list, err := openStore(path, resume)
		if err == nil {
			err = errors.Join(s.addOutcome(&outcome{Cell: cell, Rows: rows()}), s.close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}

	write(true, "from a run before")
	if n := write(false, "a"); n != 0 {
		t.Errorf("a new run keeps %d outcomes", n)
	}
	if n := write(true, "b"); n != 1 {
		t.Errorf("a resumed run keeps %d outcomes, want 1", n)
	}
	list, err := readOutcomes(path)
	if err != nil || len(list) != 2 || list[0].Cell != "a" || list[1].Cell != "b" || list[1].Rows[3].E2E != 1250 || !list[1].Rows[3].Best {
		t.Errorf("%v: %+v", err, list)
	}
}
