package shadow

import (
	"fmt"
	"io"

	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/trace"
)

// Model has the figures of one model in a log. Tokens are those of prompts.
type Model struct {
	Name string
	// Requests are those whose prompts were read, and Tokens their tokens.
	Requests, Tokens int
	// Seen are the requests of which the log shows the worker that served, and SeenTokens their tokens. The next five are about these.
	Seen, SeenTokens int
	// Served is the tokens that the workers which served had, Picked those that the shadow's picks had, and Most those on the worker
	// that had most, whatever its load.
	Served, Picked, Most int
	// Better is the number of requests whose pick had more tokens than the worker that served, and Gained the sum of these differences.
	Better, Gained int
	// Workers is the number of ranks that the log shows. Blocks is the capacity of the largest in blocks, 0 if it is not known, and
	// BlockSize the tokens of a block.
	Workers, Blocks, BlockSize int

	arrivals []trace.Arrival
	placed   []int        // by arrival: the number of the rank that served it, or unknown
	numbers  map[rank]int // of ranks, in order of appearance
}

// unknown stands for a rank that the log does not show.
const unknown = -1

// maxWorkers bounds the ranks of a model, as the simulation does.
const maxWorkers = 4096

// rank names a rank in a log.
type rank struct {
	address string
	number  int
}

// request is a decision, and what its end has shown. Counts of tokens are at most those of the prompt.
type request struct {
	model          *Model
	tokens, picked int
	had            []candidate // until its end
	served         candidate   // worker is unknown before the end, and if the log does not show it
	most           int
}

// candidate is a rank with the tokens of a prompt that it had.
type candidate struct {
	rank
	worker, tokens int
}

// reader is the state of Read.
type reader struct {
	models map[string]*Model
	asked  map[string]*request
}

// Read reads a decision log. It returns the models in order of their first requests; with a name, that model alone. Errors of the log name
// its line.
func Read(log io.Reader, name string) ([]*Model, error) {
	r := reader{models: map[string]*Model{}, asked: map[string]*request{}}
	list, err := trace.ReadDecisions(log, r.read)
	if err != nil {
		return nil, err
	}

	var out []*Model
	for i := range list {
		q := r.asked[list[i].ID]
		if name != "" && q.model.Name != name {
			continue
		}
		if q.model.Requests == 0 {
			out = append(out, q.model)
		}
		q.model.add(q, list[i].Arrival)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the log has no request for model %q", name)
	}
	return out, nil
}

// read reads a line.
func (r *reader) read(line *decisionlog.Line) error {
	if e := line.End; e != nil {
		if q := r.asked[e.ID]; q != nil {
			q.end(e.Served)
		}
		return nil
	}

	d := line.Decision
	m := r.models[d.Model]
	if m == nil {
		m = &Model{Name: d.Model, numbers: map[rank]int{}}
		r.models[d.Model] = m
	}
	m.BlockSize = max(m.BlockSize, d.BlockSize)
	q := &request{model: m, tokens: d.PromptTokens, served: candidate{worker: unknown}}
	q.picked = q.atMost(d.CachedTokens)
	r.asked[d.ID] = q

	for i := range d.Candidates {
		c := &d.Candidates[i]
		at := rank{c.Address, c.Rank}
		n, err := m.number(at)
		if err != nil {
			return err
		}
		m.Blocks = max(m.Blocks, c.CapacityBlocks)
		q.had = append(q.had, candidate{at, n, q.atMost(d.PromptTokens - c.Score.UncachedTokens)})
	}
	return nil
}

// atMost returns a number of tokens within the prompt's.
func (q *request) atMost(tokens int) int { return min(max(tokens, 0), q.tokens) }

// number returns the number of a rank.
func (m *Model) number(at rank) (int, error) {
	n, ok := m.numbers[at]
	switch {
	case ok:
		return n, nil
	case m.Workers == maxWorkers:
		return 0, fmt.Errorf("the log has more than %d workers of model %s", maxWorkers, m.Name)
	}
	m.numbers[at] = m.Workers
	m.Workers++
	return m.Workers - 1, nil
}

// end notes that the worker at that address has served. Ranks of one worker share an address, so it is unknown which of several has served.
func (q *request) end(address string) {
	found := 0
	for _, c := range q.had {
		q.most = max(q.most, c.tokens)
		if c.address == address {
			q.served = c
			found++
		}
	}
	if found != 1 {
		q.served.worker = unknown
	}
	q.had = nil
}

// add counts a request.
func (m *Model) add(q *request, at trace.Arrival) {
	m.arrivals = append(m.arrivals, at)
	m.placed = append(m.placed, q.served.worker)
	m.Requests++
	m.Tokens += q.tokens
	if q.served.worker == unknown {
		return
	}

	m.Seen++
	m.SeenTokens += q.tokens
	m.Served += q.served.tokens
	m.Picked += q.picked
	m.Most += q.most
	if more := q.picked - q.served.tokens; more > 0 {
		m.Better++
		m.Gained += more
	}
}
