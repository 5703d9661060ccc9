package main

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// The design has three parts: the named cells, the ordinary ones, and others that pair every value of an axis with every
// value of all other axes at least twice.

// named are loads on which this router was compared with others before, with exactly these flags.
var named = []cell{
	{title: "named: 256 at a time, 200 prefixes", fixed: base + " --concurrency 256 --prefix-share 0.9 --prefixes 200"},
	{title: "named: 1024 at a time, 200 prefixes", fixed: base + " --concurrency 1024 --prefix-share 0.9 --prefixes 200"},
	{
		title: "named: 1024 at a time, one system prompt, noise and stalls",
		fixed: base + " --concurrency 1024 --prefix-share 0.2 --prefixes 1 --noise 0.3 --stalls",
	},
	{
		title: "named: 4096 at a time, one system prompt, noise and stalls",
		fixed: base + " --concurrency 4096 --prefix-share 0.2 --prefixes 1 --noise 0.3 --stalls",
	},
	{
		title: "named: 4096 at a time, 200 prefixes, one 1.5× slow",
		fixed: base + " --concurrency 4096 --prefix-share 0.9 --prefixes 200 --slow 3=1.5",
	},
}

const base = "--format generate --arrivals constant --rate 100000 --requests 6000 --isl 1000 --osl 200 --spread 0 --workers 8 " +
	"--blocks 16384"

// axes is the number of axes, and vector has the number of a value on each.
const axes = 10

type vector [axes]int

// sizes are the numbers of values. Draws prefer earlier values of an axis by weights, because cells with 64 engines take longest.
var (
	sizes   = vector{len(shapes), len(spreads), len(sharings), len(arrivals), len(conditions), 2, len(fleets), len(replicas), 2, 2}
	weights = map[int][]int{6: {6, 2, 1}, 7: {2, 1}, 8: {3, 1}, 9: {3, 1}}
)

// cellOf returns the cell of a vector.
func cellOf(v vector) cell {
	c := cell{
		shape: shapes[v[0]], spread: spreads[v[1]], sharing: sharings[v[2]], arrival: arrivals[v[3]], condition: conditions[v[4]],
		tight: v[5] == 1, engines: fleets[v[6]], seqs: maxSeqs, routers: replicas[v[7]], noEvents: v[8] == 1, apart: v[9] == 1,
	}
	if c.engines > largeFleet {
		c.seqs = largeSeqs
	}
	return c
}

// draw returns a random vector.
func draw(rng *rand.Rand) (v vector) {
	for axis, size := range sizes {
		w := weights[axis]
		if w == nil {
			v[axis] = rng.IntN(size)
			continue
		}
		sum := 0
		for _, weight := range w {
			sum += weight
		}
		left := rng.IntN(sum)
		for left >= w[v[axis]] {
			left -= w[v[axis]]
			v[axis]++
		}
	}
	return v
}

// pair is two values of different axes.
type pair struct{ axis, value, otherAxis, otherValue int }

// pairs calls see for each pair of a vector.
func (v *vector) pairs(see func(pair)) {
	for a := range axes {
		for b := a + 1; b < axes; b++ {
			see(pair{a, v[a], b, v[b]})
		}
	}
}

const (
	coverings = 2  // how often each pair must occur
	drawsEach = 60 // vectors of which the best is taken
	// theDesign is the seed of the design from which all published tables are. Other seeds draw cells for checks after both halves of it
	// were looked at.
	theDesign = 20
)

// covering returns vectors in which every pair of values of two axes occurs often enough. Each is the one among some random
// vectors with the most pairs that are still missing.
func covering(seed uint64) (list []vector) {
	rng := rand.New(rand.NewPCG(seed, axes))
	missing := map[pair]int{}
	for a := range axes {
		for b := a + 1; b < axes; b++ {
			for i := range sizes[a] {
				for j := range sizes[b] {
					missing[pair{a, i, b, j}] = coverings
				}
			}
		}
	}

	for len(missing) > 0 {
		best, most := vector{}, 0
		for range drawsEach {
			v, gain := draw(rng), 0
			v.pairs(func(p pair) { gain += min(missing[p], 1) })
			if gain > most {
				best, most = v, gain
			}
		}
		if most == 0 {
			continue
		}
		list = append(list, best)
		best.pairs(func(p pair) {
			missing[p]--
			if missing[p] <= 0 {
				delete(missing, p)
			}
		})
	}
	return list
}

// design returns all cells of a seed, each once. Another design than the usual one has none of its cells.
func design(seed uint64) []cell {
	var drawn []cell
	for _, v := range covering(seed) {
		drawn = append(drawn, cellOf(v))
	}
	if seed != theDesign {
		known := design(theDesign)
		return eachOnce(append(known, drawn...))[len(known):]
	}

	list := slices.Clone(named)
	for shape := range shapes {
		for _, share := range []int{0, 2} {
			for load := range 4 {
				list = append(list, cellOf(vector{shape, 0, share, load}))
			}
		}
	}
	return eachOnce(append(list, drawn...))
}

// eachOnce returns the cells without repetitions, each at its first place.
func eachOnce(list []cell) []cell {
	seen := map[string]bool{}
	unique := list[:0]
	for _, c := range list {
		if !seen[c.name()] {
			unique = append(unique, c)
		}
		seen[c.name()] = true
	}
	return unique
}

// half returns the half of the design to which a cell belongs: A may be looked at while the router is changed, and B is
// for the end. The named cells belong to both.
func (c *cell) half() string {
	if c.fixed != "" {
		return both
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.name()))
	if h.Sum32()>>16&1 == 0 {
		return "A"
	}
	return "B"
}

const both = "both"
