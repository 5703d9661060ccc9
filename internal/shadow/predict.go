package shadow

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
)

// Prediction is the result of replays of a model's requests.
type Prediction struct {
	// Logged had the placements of the log. Routed had the router's: it has one or more replays, from the one that found least to
	// the one that found most.
	Logged *sim.Result
	Routed []*sim.Result
}

// Predict plays the requests on the engines, and with the router, of cfg: once with the placements of the log, and several times with the
// router's own. These differ in their seeds, from cfg.Seed on, and so in how the router breaks ties.
func (m *Model) Predict(cfg sim.Config, replays int) (*Prediction, error) {
	var p Prediction
	for range replays {
		routed, err := sim.Run(cfg, trace.List(m.arrivals))
		if err != nil {
			return nil, err
		}
		p.Routed = append(p.Routed, routed)
		cfg.Seed++
	}
	slices.SortStableFunc(p.Routed, func(a, b *sim.Result) int { return cmp.Compare(found(a), found(b)) })

	logged := &placements{workers: m.placed} // of all replicas, which decide in turn
	cfg.Chooser = func(int) pick.Policy { return logged }
	var err error
	p.Logged, err = sim.Run(cfg, trace.List(m.arrivals))
	return &p, err
}

// Middle returns the replay with the router that found more than half of the others.
func (p *Prediction) Middle() *sim.Result { return p.Routed[len(p.Routed)/2] }

// placements is a policy that chooses the worker which served, for one request after the other. Requests whose worker is unknown go to
// the workers in turn.
type placements struct {
	workers []int
	next    int
}

// Choose implements pick.Policy. A simulation without a queue chooses once for each arrival.
func (p *placements) Choose(candidates []pick.Candidate, _ *pick.Request, _ *rand.Rand) int {
	worker := p.workers[p.next]
	p.next++
	name := sim.WorkerName(worker)
	at := slices.IndexFunc(candidates, func(c pick.Candidate) bool { return c.Rank.Worker.Name == name })
	if at < 0 {
		at = p.next % len(candidates)
	}
	return at
}
