package main

import (
	"fmt"
	"strings"
)

// shape is the mean tokens of prompts and answers.
type shape struct{ input, output int }

var shapes = []shape{{1000, 200}, {3000, 150}, {128, 1024}, {8000, 1000}, {30000, 300}}

// spread is the largest distance of lengths from their mean, as a share of it.
type spread struct {
	name  string
	share float64
}

var spreads = []spread{{"equal", 0}, {"spread", 0.5}}

// sharing describes the common beginnings of prompts.
type sharing struct {
	name     string
	share    float64 // of the mean prompt that is a shared prefix
	prefixes int
	sessions bool // the prompts of a session grow from turn to turn
}

var sharings = []sharing{
	{"nothing shared", 0, 1, false},
	{"one system prompt", 0.2, 1, false},
	{"200 prefixes", 0.9, 200, false},
	{"sessions", 0, 1, true},
}

// arrival is a process of arrivals. In a closed loop, load is a share of the fleet's slots; otherwise it is a share of
// the requests per second that the fleet can serve.
type arrival struct {
	kind string
	load float64
}

const (
	closedLoop = "closed"
	poisson    = "poisson"
	bursts     = "bursts"
)

var arrivals = []arrival{
	{closedLoop, 0.25}, {closedLoop, 0.5}, {closedLoop, 1}, {closedLoop, 2},
	{poisson, 0.3}, {poisson, 0.7}, {poisson, 0.95}, {poisson, 1.2},
	{bursts, 0.3}, {bursts, 0.7}, {bursts, 0.95}, {bursts, 1.2},
}

func (a arrival) name() string {
	if a.kind == closedLoop {
		return fmt.Sprintf("closed %g×", a.load)
	}
	return fmt.Sprintf("%s %.0f %%", a.kind, 100*a.load)
}

// condition makes some engines differ: by flags, and by factors by which their passes take longer all the time. Slow may be nil.
type condition struct {
	name  string
	flags string
	slow  func(engine, decoders int) float64
}

var conditions = []condition{
	{"quiet", "", nil},
	{"noise", "--noise 0.3", nil},
	{"noise and stalls", "--noise 0.3 --stalls", nil},
	{"one 1.5× slow", "", func(engine, decoders int) float64 {
		if engine == min(3, decoders-1) {
			return 1.5
		}
		return 1
	}},
	{"3× slow for 20 s", "--slow-spell 0=3@10s+20s", nil},
	{"a restart", "--restart 1@10s+15s", nil},
	{"two classes", "", func(engine, _ int) float64 { return 1 + float64(engine%2) }},
}

var (
	fleets   = []int{8, 2, 64} // numbers of engines
	replicas = []int{1, 3}     // numbers of routers
)

const (
	blockTokens = 64
	ampleBlocks = 16384
	maxSeqs     = 256 // vLLM's default of max_num_seqs
	// largeSeqs is max_num_seqs in fleets of more than largeFleet engines, so that runs of full fleets stay short.
	largeSeqs, largeFleet = 64, 8
)

// cell is one load on one fleet.
type cell struct {
	shape     shape
	spread    spread
	sharing   sharing
	arrival   arrival
	condition condition
	tight     bool // caches have about a quarter of the blocks that the load needs
	engines   int
	seqs      int // requests that may run at once on an engine
	routers   int
	noEvents  bool
	apart     bool // one half of the engines prefills, and the other half decodes
	// title and fixed are the name and all flags of a cell that is not made from the axes.
	title, fixed string
}

// name describes all of a cell. The half to which a cell belongs follows from it.
func (c *cell) name() string {
	if c.title != "" {
		return c.title
	}
	either := func(is bool, yes, no string) string {
		if is {
			return yes
		}
		return no
	}
	return strings.Join([]string{
		c.arrival.name(), fmt.Sprintf("%d/%d %s", c.shape.input, c.shape.output, c.spread.name), c.sharing.name, c.condition.name,
		either(c.tight, "tight caches", "ample caches"), fmt.Sprintf("%d engines", c.engines),
		either(c.routers == 1, "1 router", fmt.Sprintf("%d routers", c.routers)),
		either(c.noEvents, "no events", "events"), either(c.apart, "prefill apart", "aggregated"),
	}, ", ")
}

// decoders is the number of engines that decode.
func (c *cell) decoders() int {
	if c.apart {
		return c.engines / 2
	}
	return c.engines
}

// requestBlocks returns the number of blocks of a request of the mean lengths at its end.
func (c *cell) requestBlocks() int { return (c.shape.input+c.shape.output)/blockTokens + 1 }

// blocks returns the size of an engine's cache. A load needs the blocks of all requests that can run at once, and of the shared
// prefixes.
func (c *cell) blocks() int {
	if !c.tight {
		return ampleBlocks
	}
	running := min(c.seqs, ampleBlocks/c.requestBlocks()) * c.requestBlocks()
	shared := int(c.sharing.share*float64(c.shape.input)) * c.sharing.prefixes / blockTokens
	return max(4*c.requestBlocks(), min(running+shared, ampleBlocks)/4)
}

// slots returns the number of requests that can run at once in the fleet.
func (c *cell) slots() int {
	return c.decoders() * max(1, min(c.seqs, c.blocks()/c.requestBlocks()))
}

// concurrency returns the number of requests that a closed loop runs at a time.
func (c *cell) concurrency() int { return max(1, int(c.arrival.load*float64(c.slots()))) }

const (
	leastRequests = 4000
	// mostWork bounds the work of a run, which is about half a second of CPU: a token of an answer is 1, and prompts are cheaper.
	mostWork         = 2_500_000
	promptTokensEach = 16
)

// requests returns the number of requests of a run: enough for a steady state, as far as a run stays short.
func (c *cell) requests() int {
	running := c.slots()
	if c.arrival.kind == closedLoop {
		running = c.concurrency()
	}
	most := mostWork / (c.shape.output + c.shape.input/promptTokensEach)
	least := 3 * running
	if c.engines > largeFleet {
		least = 2 * running
	}
	return max(min(max(leastRequests, 6*running), most), least)
}

// warmup is the share of an open loop's time whose requests are not measured.
const warmup = 0.2

// flags returns the flags of `stator replay` for the cell, without policy and seed. perSecond is the rate of requests that the
// fleet can serve; a closed loop does not need it.
func (c *cell) flags(perSecond float64) string {
	if c.fixed != "" {
		return c.fixed
	}
	n := c.requests()
	f := []string{
		fmt.Sprintf("--format generate --requests %d --isl %d --osl %d --spread %g", n, c.shape.input, c.shape.output, c.spread.share),
	}
	if c.sharing.share > 0 {
		f = append(f, fmt.Sprintf("--prefix-share %g --prefixes %d", c.sharing.share, c.sharing.prefixes))
	}

	rate := c.arrival.load * perSecond
	open := fmt.Sprintf("--rate %.4g --warmup %.1fs", rate, warmup*float64(n)/rate)
	switch c.arrival.kind {
	case closedLoop:
		f = append(f, fmt.Sprintf("--arrivals constant --rate 100000 --concurrency %d", c.concurrency()))
	case poisson:
		f = append(f, "--arrivals poisson", open)
	case bursts:
		f = append(f, fmt.Sprintf("--arrivals bursts --burst %d", max(8, c.slots()/8)), open)
	}
	return strings.Join(append(f, c.fleetFlags()), " ")
}

// fleetFlags returns the flags of engines and routers.
func (c *cell) fleetFlags() string {
	f := []string{fmt.Sprintf("--workers %d --blocks %d", c.decoders(), c.blocks())}
	if c.seqs != maxSeqs {
		f = append(f, fmt.Sprintf("--max-num-seqs %d", c.seqs))
	}
	if c.apart {
		f = append(f, fmt.Sprintf("--prefill-workers %d", c.engines-c.decoders()))
	}
	for i := range c.engines {
		if factor := c.slowness(i); factor != 1 {
			f = append(f, fmt.Sprintf("--slow %d=%g", i, factor))
		}
	}
	if c.condition.flags != "" {
		f = append(f, c.condition.flags)
	}
	if c.routers > 1 {
		f = append(f, fmt.Sprintf("--replicas %d", c.routers))
	}
	if c.noEvents {
		f = append(f, "--no-events")
	}
	return strings.Join(f, " ")
}

// slowness is the factor by which all passes of an engine take longer.
func (c *cell) slowness(engine int) float64 {
	if c.condition.slow == nil {
		return 1
	}
	return c.condition.slow(engine, c.decoders())
}
