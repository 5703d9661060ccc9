package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/stats"
)

// memory has the figures of one router at the end of a round, in MiB.
type memory struct {
	Router string `json:"router"`
	PID    int    `json:"pid"`
	// Age is the time since the start of the process, in seconds.
	Age int64 `json:"age_s"`
	// Live is the memory in use after garbage collections, when no client sends and no booking is left, and Resident the process memory.
	Live     float64 `json:"live_mib"`
	Resident float64 `json:"mib"`
}

const mebibyte = 1 << 20

// memories reads the memory of the routers.
func (c *cluster) memories(ctx context.Context) (list []memory, err error) {
	for i, admin := range c.admins {
		// A sync.Pool keeps its objects over one collection.
		for range 3 {
			// It takes long on a machine with a high load.
			err := process.Await(ctx, calmWithin, func(ctx context.Context) error { return c.collect(ctx, admin) })
			if err != nil {
				return nil, err
			}
		}
		live, err := c.sample(ctx, admin, "go_memstats_heap_alloc_bytes")
		if err != nil {
			return nil, err
		}
		p := c.parts[fmt.Sprint("router ", i)]
		resident, err := process.Resident(p.PID())
		if err != nil {
			return nil, err
		}
		list = append(list, memory{Router: p.name, PID: p.PID(), Age: int64(time.Since(p.began).Seconds()),
			Live: float64(live) / mebibyte, Resident: float64(resident) / mebibyte})
	}
	return list, nil
}

// collect has a router collect garbage: the page of its heap profile does that.
func (c *cluster) collect(ctx context.Context, admin string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/debug/pprof/heap?gc=1", nil)
	if err != nil {
		return err
	}
	resp, err := c.pages.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the heap profile of %s: %s", admin, resp.Status)
	}
	return err
}

// others returns the process memory of the other parts of the program in MiB, by their kind.
func (c *cluster) others() map[string]int64 {
	sums := map[string]int64{}
	for _, kind := range []string{"xds", "planner", "agent", "bus"} {
		for name, p := range c.parts {
			if !strings.HasPrefix(name, kind) {
				continue
			}
			// A part that has just ended has no memory.
			if n, err := process.Resident(p.PID()); err == nil {
				sums[kind] += n / mebibyte
			}
		}
	}
	return sums
}

// longLife is the number of rounds that a router must have lived for a statement about the growth of its memory.
const longLife = 15

// growth describes the memory of one router process over its life.
type growth struct {
	router string
	rounds int
	// first, middle and last are the medians of the thirds of its life, in MiB.
	first, middle, last float64
	// spread is the largest distance of a round of the middle or last third from their median, in percent.
	spread float64
}

// percent is the growth from the middle third of a life to the last. The first third is left out: histories with a bound fill up in it.
func (g growth) percent() float64 { return 100 * (g.last/g.middle - 1) }

// growths returns the growth of the routers that lived for at least atLeast rounds. The figure of a round is of gives.
func growths(rounds [][]memory, atLeast int, of func(memory) float64) (list []growth) {
	lives := map[int][]float64{}
	names := map[int]string{}
	var order []int
	for _, round := range rounds {
		for _, m := range round {
			if lives[m.PID] == nil {
				order = append(order, m.PID)
			}
			lives[m.PID] = append(lives[m.PID], of(m))
			names[m.PID] = m.Router
		}
	}

	for _, pid := range order {
		life := lives[pid]
		n := len(life)
		if n < max(atLeast, 3) {
			continue
		}
		g := growth{router: names[pid], rounds: n,
			first: stats.Median(life[:n/3]), middle: stats.Median(life[n/3 : 2*n/3]), last: stats.Median(life[2*n/3:])}
		all := stats.Median(life[n/3:])
		for _, x := range life[n/3:] {
			g.spread = max(g.spread, 100*(x/all-1), 100*(1-x/all))
		}
		list = append(list, g)
	}
	return list
}

// printGrowth prints the growth of the routers with long lives.
func (r *run) printGrowth() {
	var rounds [][]memory
	for _, x := range r.results {
		rounds = append(rounds, x.Routers)
	}
	for _, kind := range []struct {
		name string
		of   func(memory) float64
	}{
		{"in use", func(m memory) float64 { return m.Live }},
		{"of the process", func(m memory) float64 { return m.Resident }},
	} {
		for _, g := range growths(rounds, longLife, kind.of) {
			fmt.Fprintf(r.out, "%s, %d rounds: memory %s %.1f, %.1f, %.1f MiB (medians of thirds), "+
				"last third beside the middle one %+.1f %%, single rounds within %.1f %%\n",
				g.router, g.rounds, kind.name, g.first, g.middle, g.last, g.percent(), g.spread)
		}
	}
}
