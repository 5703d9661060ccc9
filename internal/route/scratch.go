package route

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
)

// scratch is everything one decision needs and the next can use again.
type scratch struct {
	rng        *rand.Rand
	parsed     *prompt.Request
	salt       string
	prompt     prompt.Prompt
	blocks     []blockhash.Block
	chain      []blockhash.Sequence
	overlap    kvindex.Overlap
	policy     pick.Policy
	how        pick.Asked
	asks       asks
	weights    cost.Weights // the model's, with what the request overrides
	delay      cost.Delay
	asked      cost.Request
	amount     fleet.Amount
	ranks      []fleet.Rank
	kinds      []kind // of ranks
	lines      []kindLine
	everyone   everyone // what ranks and kinds are, where nothing restricts them
	candidates []pick.Candidate
	order      []int
}

// keep is how many bytes of a prompt's buffers survive a decision: one giant prompt must
// not pin its memory for ever.
const keep = 4 << 20

// shed lets go of what belongs to the request, and of buffers that have grown too large.
func (s *scratch) shed() {
	s.parsed, s.salt, s.how, s.asks = nil, "", pick.Asked{}, asks{}
	if cap(s.prompt.Text)+4*cap(s.prompt.Tokens)+8*cap(s.blocks) > keep {
		s.prompt, s.blocks, s.chain = prompt.Prompt{}, nil, nil
	}
}

// score judges every rank of s.ranks by its load now.
func (r *Router) score(s *scratch, m *model, d *Decision) {
	q := &s.asked
	*q = cost.Request{BlockSize: m.BlockSize, PromptTokens: d.PromptTokens, Computed: s.asks.role == fleet.Decode}
	s.candidates = slices.Grow(s.candidates[:0], len(s.ranks))[:len(s.ranks)]
	for i := range s.ranks {
		c, load := &s.candidates[i], s.ranks[i].Load
		c.Rank = &s.ranks[i]
		c.Facts.Booked = load.Booked()
		c.Facts.Foreign = load.Foreign(d.At, reportAge)
		c.Facts.Wait, c.Facts.Pace = load.Wait(d.At), load.Pace()
		c.Facts.Capacity = s.kinds[i].blocks
		c.Facts.Overlap = s.overlap.Of(c.Rank.ID)
		if i == 0 || c.Facts.Booked.PrefillTokens < q.MinPrefillTokens {
			q.MinPrefillTokens = c.Facts.Booked.PrefillTokens
		}
	}
	by := s.judge(m)
	s.lines = s.lines[:0]
	for i := range s.candidates {
		c := &s.candidates[i]
		if i == 0 || s.kinds[i].learned != s.kinds[i-1].learned {
			q.Line = s.line(s.kinds[i].learned)
		}
		score := s.scored(by, c)
		c.Total, c.Uncached = score.Total, score.Uncached
	}
	s.amount = fleet.Amount{Requests: 1, DecodeBlocks: int64(q.Blocks() + s.asks.answerBlocks(m.BlockSize))}
}

// scored is what a candidate costs by a function, and by the taints that the request prefers.
func (s *scratch) scored(by cost.Function, c *pick.Candidate) cost.Score {
	score := by.Score(&s.asked, &c.Facts)
	if len(s.asks.preferred) > 0 {
		score.Preference = s.asks.preference(c.Rank.Worker)
		score.Total *= score.Preference
	}
	return score
}

// kind is what of a worker every decision asks for: workers lie apart in memory, and this does not.
type kind struct {
	learned *perfmodel.Learned
	blocks  int
}

// prefill is how long prompts are believed to take on workers of a candidate's kind.
func (r *Router) prefill(s *scratch, c *pick.Candidate) perfmodel.Line {
	return s.line(r.speeds.of(c.Rank.Worker).prefill)
}

// own is how long a candidate is expected to compute the prompt.
func (r *Router) own(s *scratch, c *pick.Candidate) time.Duration {
	return time.Duration(float64(r.prefill(s, c).Prefill(c.Uncached)) * c.Facts.Pace)
}

// adds is how much longer the prefills of a candidate are expected to take with the prompt. One that
// fits into a pass with those that wait already costs that pass no second beginning.
func (r *Router) adds(s *scratch, c *pick.Candidate) time.Duration {
	own, pending := r.own(s, c), c.Facts.Booked.PrefillTokens
	if pending == 0 || pending+int64(c.Uncached) > passTokens {
		return own
	}
	return own - time.Duration(float64(r.prefill(s, c).Base)*c.Facts.Pace)
}

// passTokens is what engines compute of prompts in one pass where nobody has told them otherwise: vLLM's
// max_num_batched_tokens.
const passTokens = 8192

// firstToken is when a candidate's first token is expected, from now.
func (r *Router) firstToken(s *scratch, c *pick.Candidate) time.Duration {
	return c.Facts.Wait + r.own(s, c)
}

// kindLine is what is believed of a kind of workers during one decision.
type kindLine struct {
	kind *perfmodel.Learned
	line perfmodel.Line
}

// line is what has been learned of a kind: the same for all of one decision, reasons included.
func (s *scratch) line(kind *perfmodel.Learned) perfmodel.Line {
	for i := range s.lines {
		if s.lines[i].kind == kind {
			return s.lines[i].line
		}
	}
	s.lines = append(s.lines, kindLine{kind, kind.Line()})
	return s.lines[len(s.lines)-1].line
}

// name writes what the prompt is called.
func (s *scratch) name(d *Decision) {
	if d.Blocks = len(s.blocks); d.Blocks > 0 {
		s.chain = blockhash.Chain(s.chain[:0], s.blocks)
		d.First, d.Last = uint64(s.chain[0]), uint64(s.chain[d.Blocks-1])
	}
}

// explain writes the pick and its reasons into the decision: the best candidates by cost,
// the picked one among them, and the addresses to try next.
func (r *Router) explain(s *scratch, m *model, d *Decision, won int) {
	w := &s.candidates[won]
	d.Worker, d.Rank, d.Ranks, d.Address = w.Rank.Worker.Name, w.Rank.Number, w.Rank.Worker.Ranks, w.Rank.Worker.Address
	for _, n := range w.Facts.Overlap {
		d.Overlap += n
	}
	d.Cached = d.PromptTokens - w.Uncached
	d.Considered = len(s.candidates)
	s.best(won, r.cfg.Candidates)
	d.Candidates = slices.Grow(d.Candidates[:0], len(s.order))[:len(s.order)]
	by := s.judge(m)
	for i, at := range s.order {
		c := &s.candidates[at]
		s.asked.Line = r.prefill(s, c)
		d.Candidates[i] = Candidate{
			Worker: c.Rank.Worker.Name, Rank: c.Rank.Number, Address: c.Rank.Worker.Address, Picked: at == won,
			Overlap: c.Facts.Overlap, Load: c.Facts.Booked, Foreign: c.Facts.Foreign, Score: s.scored(by, c),
		}
	}
	d.others()
}

// best fills order with the indexes of the n cheapest candidates, cheapest first, with the
// winner in the last place if it is not one of them. One pass with insertion: n is small.
func (s *scratch) best(won, n int) {
	less := func(a, b int) bool {
		ca, cb := s.candidates[a].Total, s.candidates[b].Total
		return ca < cb || ca == cb && (a == won || b != won && a < b)
	}
	s.order = s.order[:0]
	for i := range s.candidates {
		if len(s.order) == n && !less(i, s.order[n-1]) {
			continue
		}
		if len(s.order) == n {
			s.order = s.order[:n-1]
		}
		at, _ := slices.BinarySearchFunc(s.order, i, func(have, i int) int {
			if less(have, i) {
				return -1
			}
			return 1
		})
		s.order = slices.Insert(s.order, at, i)
	}
	if !slices.Contains(s.order, won) {
		s.order[len(s.order)-1] = won
	}
}

// maxOthers is how many addresses a retry may walk to.
const maxOthers = 2

// others collects the next best addresses. Ranks of one worker share an address, and a
// retry must reach another worker.
func (d *Decision) others() {
	for i := range d.Candidates {
		a := d.Candidates[i].Address
		if a == d.Address || slices.Contains(d.Others, a) {
			continue
		}
		if cap(d.Others) == 0 {
			d.Others = make([]string, 0, maxOthers)
		}
		if d.Others = append(d.Others, a); len(d.Others) == maxOthers {
			return
		}
	}
}
