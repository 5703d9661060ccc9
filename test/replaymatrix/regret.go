package main

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// metric is a figure by which routers are compared.
type metric struct {
	name string
	of   func(*figures) float64
	more bool // more is better
}

var metrics = []metric{
	{"throughput", func(f *figures) float64 { return f.Throughput }, true},
	{"TTFT mean", func(f *figures) float64 { return f.TTFT }, false},
	{"TTFT p99", func(f *figures) float64 { return f.TTFTP99 }, false},
	{"E2E mean", func(f *figures) float64 { return f.E2E }, false},
}

// worse is by how much a figure is worse than another one, as a share of the other; negative if it is better.
func (m *metric) worse(a, b *figures) float64 {
	x, y := m.of(a), m.of(b)
	switch {
	case x == y:
		return 0
	case m.more:
		return 1 - x/y
	}
	return x/y - 1
}

// A rival with more errors than kv, by a tenth and moreErrors, is not compared, because requests that fail make the others quicker.
const moreErrors = 20

// regret is by how much kv is worse than others in a cell, by metric.
type regret struct {
	// strict compares with the best value of each metric, of whatever rival.
	strict [4]float64
	// byRow is the rival with that value.
	byRow [4]*row
	// single compares with one rival: the one with the least mean E2E.
	single [4]float64
	rival  *row
	// hindsight compares the rival row whose largest regret is least with the best value of each metric: what one router could reach
	// that chose the best policy for each cell after it has seen all of them.
	hindsight [4]float64
}

// worst is the largest of the strict regrets.
func (g *regret) worst() float64 { return slices.Max(g.strict[:]) }

// regretOf compares the first row of an outcome with the others.
func regretOf(o *outcome) regret {
	var g regret
	kv := &o.Rows[0]
	var rivals []*row
	for i := range o.Rows[1:] {
		if r := &o.Rows[1+i]; r.Errors <= kv.Errors*1.1+moreErrors {
			rivals = append(rivals, r)
		}
	}
	if len(rivals) == 0 {
		return g
	}

	g.rival = slices.MinFunc(rivals, func(a, b *row) int { return cmp.Compare(a.E2E, b.E2E) })
	for i := range metrics {
		m := &metrics[i]
		g.byRow[i] = slices.MaxFunc(rivals, func(a, b *row) int {
			return cmp.Compare(m.worse(&kv.figures, &a.figures), m.worse(&kv.figures, &b.figures))
		})
		g.single[i] = m.worse(&kv.figures, &g.rival.figures)
	}
	g.strict = g.behind(kv)
	for i, r := range rivals {
		if behind := g.behind(r); i == 0 || slices.Max(behind[:]) < slices.Max(g.hindsight[:]) {
			g.hindsight = behind
		}
	}
	return g
}

// behind is by how much a row is worse than the best value of any rival, by metric.
func (g *regret) behind(r *row) (by [4]float64) {
	for i := range metrics {
		by[i] = metrics[i].worse(&r.figures, &g.byRow[i].figures)
	}
	return by
}

// summary is the regret over all cells.
type summary struct {
	outcomes []outcome
	regrets  []regret
}

func summarize(list []outcome) *summary {
	s := &summary{outcomes: list}
	for i := range list {
		s.regrets = append(s.regrets, regretOf(&list[i]))
	}
	return s
}

// near is the regret that counts as none.
const near = 0.03

// shareNear is the share of cells with a regret of at most near, and worst the cell with the largest.
func (s *summary) shareNear(of func(*regret) float64) (share float64, worst int) {
	for i := range s.regrets {
		v := of(&s.regrets[i])
		if v <= near {
			share += 1 / float64(len(s.regrets))
		}
		if v > of(&s.regrets[worst]) {
			worst = i
		}
	}
	return share, worst
}

// oneSetting is the setting of a rival with which its requests are the shortest over all cells, and the geometric means over cells of kv's
// TTFT and E2E divided by its. They are of the seed of the search. The name is empty for a rival with one setting, and if a cell has no
// search of kv, as files of earlier versions.
func (s *summary) oneSetting(router string) (name string, ttft, e2e float64) {
	type logs struct{ ttft, e2e float64 }
	sums := map[string]logs{}
	for i := range s.outcomes {
		search := s.outcomes[i].Search
		if len(search) == 0 || search[0].Router != s.outcomes[i].Rows[0].Router {
			return "", 0, 0
		}
		for j := range search {
			kv, r := &search[0], &search[j]
			if r.Router == router && min(kv.TTFT, r.TTFT) > 0 {
				sum := sums[r.Setting]
				sums[r.Setting] = logs{sum.ttft + math.Log(kv.TTFT/r.TTFT), sum.e2e + math.Log(kv.badness()/r.badness())}
			}
		}
	}

	cells := float64(len(s.outcomes))
	for _, setting := range slices.Sorted(maps.Keys(sums)) {
		sum := sums[setting]
		if ratio := math.Exp(sum.e2e / cells); ratio > e2e {
			name, e2e = setting, ratio
			ttft = math.Exp(sum.ttft / cells)
		}
	}
	return name, ttft, e2e
}

// ratio is the geometric mean over cells of kv's figure divided by a rival's. Best means the row of the rival's best setting, or
// of its default if the search chose the default.
func (s *summary) ratio(router string, best bool, of func(*figures) float64) float64 {
	sum, cells := 0.0, 0
	for i := range s.outcomes {
		rows := s.outcomes[i].Rows
		var rival *row
		for j := range rows {
			if rows[j].Router == router && (rival == nil || best && rows[j].Best) {
				rival = &rows[j]
			}
		}
		kv := of(&rows[0].figures)
		if rival == nil || kv <= 0 || of(&rival.figures) <= 0 {
			continue
		}
		sum += math.Log(kv / of(&rival.figures))
		cells++
	}
	return math.Exp(sum / float64(max(1, cells)))
}
