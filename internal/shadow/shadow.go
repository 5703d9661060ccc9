package shadow

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/sim"
	"github.com/stator-project/stator/internal/trace"
)

// Model is what a log shows of one model. Counts of tokens are tokens of prompts.
type Model struct {
	Name string
	// Requests are those whose prompts were read, and Tokens their tokens.
	Requests, Tokens int
	// Seen are the requests of which the log shows the worker that served, and what it had. The next five are about these requests
	// alone.
	Seen, SeenTokens int
	// Served is the tokens that the workers which served had, Picked those that the shadow's picks had, and Most those on the worker
	// that had most, whatever its load.
	Served, Picked, Most int
	// Better is the number of requests whose pick had more tokens than the worker that served, and Gained the sum of these differences.
	Better, Gained int
	// Workers is the number of ranks that the log shows. Blocks is the capacity of one, 0 if it is not known, and BlockSize the tokens of
	// a block.
	Workers, Blocks, BlockSize int

	arrivals []trace.Arrival
	placed   []int        // by arrival: the number of the worker that served it, or unknown
	numbers  map[rank]int // of workers
	ranks    []rank       // by number
}

// unknown stands for a worker that the log does not show.
const unknown = -1

// maxWorkers bounds the workers of a model, as the simulation does.
const maxWorkers = 4096

// rank names a rank in a log.
type rank struct {
	address string
	number  int
}

// request is a decision whose end was not read so far. had has the tokens on each candidate.
type request struct {
	model          *Model
	tokens, picked int
	had            []candidate
	served         int // number of the worker
}

type candidate struct{ worker, tokens int32 }

// reader is the state of Read.
type reader struct {
	models map[string]*Model
	asked  map[string]*request
	err    error
}

// Read reads a decision log, which has a line for each model in order of their first requests. An empty name means all models.
func Read(log io.Reader, name string) ([]*Model, error) {
	r := reader{models: map[string]*Model{}, asked: map[string]*request{}}
	list, err := trace.ReadDecisions(log, r.read)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, err
	}

	var out []*Model
	for i := range list {
		l := &list[i]
		q := r.asked[l.ID]
		if q == nil || name != "" && l.Model != name {
			continue
		}
		m := q.model
		if len(m.arrivals) == 0 {
			out = append(out, m)
		}
		m.arrivals = append(m.arrivals, l.Arrival)
		m.placed = append(m.placed, q.served)
		m.Requests++
		m.Tokens += q.tokens
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the log has no request for model %q", name)
	}
	return out, nil
}

func (r *reader) read(line *decisionlog.Line) {
	if e := line.End; e != nil {
		if q := r.asked[e.ID]; q != nil && q.had != nil {
			q.end(e.Served)
		}
		return
	}

	d := line.Decision
	m := r.models[d.Model]
	if m == nil {
		m = &Model{Name: d.Model, numbers: map[rank]int{}}
		r.models[d.Model] = m
	}
	q := &request{model: m, tokens: d.PromptTokens, picked: d.CachedTokens, served: unknown}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		n, err := m.number(rank{c.Address, c.Rank})
		if err != nil {
			r.err = err
			return
		}
		m.Blocks = max(m.Blocks, c.CapacityBlocks)
		q.had = append(q.had, candidate{int32(n), int32(max(0, d.PromptTokens-c.Score.UncachedTokens))})
	}
	m.BlockSize = max(m.BlockSize, d.BlockSize)
	r.asked[d.ID] = q
}

// number returns the number of a rank, in order of appearance.
func (m *Model) number(at rank) (int, error) {
	n, ok := m.numbers[at]
	switch {
	case ok:
		return n, nil
	case m.Workers == maxWorkers:
		return 0, fmt.Errorf("the log has more than %d workers of model %s", maxWorkers, m.Name)
	}
	m.numbers[at] = m.Workers
	m.ranks = append(m.ranks, at)
	m.Workers++
	return m.Workers - 1, nil
}

// end counts a request that the worker at that address has served. Ranks of one worker share an address, so it is unknown which of
// several has served.
func (q *request) end(address string) {
	m := q.model
	found, most := 0, 0
	var served candidate
	for _, c := range q.had {
		most = max(most, int(c.tokens))
		if m.ranks[c.worker].address == address {
			served = c
			found++
		}
	}
	q.had = nil
	if found != 1 {
		return
	}

	q.served = int(served.worker)
	m.Seen++
	m.SeenTokens += q.tokens
	m.Served += int(served.tokens)
	m.Picked += q.picked
	m.Most += most
	if more := q.picked - int(served.tokens); more > 0 {
		m.Better++
		m.Gained += more
	}
}

// Arrivals returns the requests.
func (m *Model) Arrivals() trace.Source { return trace.List(m.arrivals) }

// Replay plays the arrivals with the placements of the log, and with the router's, on the engines and with the router of cfg.
func (m *Model) Replay(cfg sim.Config) (logged, routed *sim.Result, err error) {
	routed, err = sim.Run(cfg, m.Arrivals())
	if err != nil {
		return nil, nil, err
	}
	cfg.Chooser = func(int) pick.Policy { return &placements{workers: m.placed} }
	logged, err = sim.Run(cfg, m.Arrivals())
	return logged, routed, err
}

// placements is a policy that chooses the worker which served, for one request after the other. Requests whose worker is unknown go to
// the workers in turn.
type placements struct {
	workers []int
	next    int
}

// Choose implements pick.Policy. A simulation chooses once for each arrival.
func (p *placements) Choose(candidates []pick.Candidate, _ *pick.Request, _ *rand.Rand) int {
	worker := p.workers[p.next%len(p.workers)]
	p.next++
	for i := range candidates {
		if worker != unknown && candidates[i].Rank.Worker.Name == sim.WorkerName(worker) {
			return i
		}
	}
	return p.next % len(candidates)
}
