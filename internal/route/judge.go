package route

import (
	"math"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/pick"
)

// judged is the candidates for a request with their costs at one moment.
type judged struct {
	asked      *asked
	candidates []pick.Candidate
	function   cost.Function
	request    cost.Request // the same for all candidates, except for the learned values, which change with the candidate's class
	// booking is the load that a pick adds, whichever candidate it is, so without its prefill.
	booking fleet.Amount

	source source     // from which candidates could fetch a part of the prompt
	stores storeReach // and from which they could load it
	speeds *speeds
	// models are the learned models that were read for this decision. Learning goes on beside it,
	// and the reasons that are printed must match the costs that decided.
	models []classModel

	// weights and delay are memory for a cost function whose weights the request overrides.
	weights cost.Weights
	delay   cost.Delay
	score   cost.Score // of the candidate that is judged
	order   []int      // indexes of candidates, filled by cheapest
}

// classModel has the values that were learned of a class of workers by the time of one decision.
type classModel struct {
	class          *learned
	pass, transfer *perfmodel.Pass
	answer, reuse  float64
}

// judge computes what a request would cost on ranks. It is safe for concurrent use.
type judge struct {
	index  *kvindex.Index
	speeds *speeds
	uses   uses
}

// field computes the cost of the usable ranks of a field by their load now, in the memory of j. overlap is that of the request's prompt
// with the cache of each rank.
func (g *judge) field(j *judged, overlap *kvindex.Overlap, q *asked, f *field, now time.Time) *judged {
	j.asked = q
	j.speeds = g.speeds
	j.models = j.models[:0]
	j.request = cost.Request{BlockSize: q.model.BlockSize, PromptTokens: q.tokens, Computed: q.remote}
	j.loadFacts(f, overlap, now)
	for i := range j.candidates {
		c := &j.candidates[i]
		c.Facts.Held = g.index.Blocks(c.Rank.ID)
		g.uses.discount(c, q)
	}

	j.findPulls(f, overlap)
	j.findLoads(f, overlap)

	j.function = j.costFunction()
	for i := range j.candidates {
		c := &j.candidates[i]
		if i == 0 || f.facts[i].class != f.facts[i-1].class {
			j.setModel(f.facts[i].class)
		}
		j.judgeOne(c, &j.score)
		c.Total, c.Tie = j.score.Total, j.score.Tie
		c.Uncached = j.score.Uncached
	}
	// The answers to one prompt share its blocks and its prefill.
	j.booking = fleet.Amount{Requests: int64(q.batch.sequences), DecodeBlocks: int64(j.request.Blocks() + q.answerBlocks())}
	return j
}

// costFunction returns the model's cost function with the weights that the request overrides. The changed
// copy lies in j.
func (j *judged) costFunction() cost.Function {
	q := j.asked
	function := q.model.choice(q.role).Cost
	if !q.overlapWeight.Set && !q.prefillLoadScale.Set {
		return function
	}

	switch f := function.(type) {
	case *cost.Weights:
		j.weights = *f
		overrideIf(&j.weights.Overlap, q.overlapWeight.Value, q.overlapWeight.Set)
		overrideIf(&j.weights.PrefillLoadScale, q.prefillLoadScale.Value, q.prefillLoadScale.Set)
		return &j.weights
	case *cost.Delay: // it learns how much prefill weighs, so only the worth of cached tokens changes
		j.delay = *f
		if q.overlapWeight.Set {
			for t := range j.delay.Tier {
				j.delay.Tier[t] *= q.overlapWeight.Value
			}
		}
		return &j.delay
	}
	return function
}

// loadFacts makes a candidate of every usable rank, and finds the smallest booked prefill of all.
func (j *judged) loadFacts(f *field, overlap *kvindex.Overlap, now time.Time) {
	n := f.usable()
	j.candidates = slices.Grow(j.candidates[:0], n)[:n]
	for i := range j.candidates {
		c, load := &j.candidates[i], f.ranks[i].Load
		c.Rank = &f.ranks[i]
		c.Facts.Booked = load.Booked()
		c.Facts.View = load.View(now, fleet.MaxReportAge)
		c.Facts.Wait = load.Wait(now)
		c.Facts.Pace = load.Pace(now)
		c.Facts.Gathering = load.IsGathering(now)
		c.Facts.Capacity = f.facts[i].blocks

		c.Facts.Overlap = [fleet.Tiers]int{}
		c.Facts.Evicting = 0
		c.Facts.Pullable = 0
		c.Facts.OnNode, c.Facts.OnPeers = 0, 0
		c.Facts.Store = nil
		if !j.asked.readsNoCache {
			c.Facts.Overlap = overlap.Of(c.Rank.ID)
			if c.Facts.HeldBlocks() > c.Facts.Overlap[fleet.Device] {
				c.Facts.Store = load.Store()
			}
		}
		if i == 0 || c.Facts.Booked.PrefillTokens < j.request.MinPrefillTokens {
			j.request.MinPrefillTokens = c.Facts.Booked.PrefillTokens
		}
	}
}

// judgeOne fills in the cost of a candidate, with the factor for preferred taints. j.request must have the model of the candidate's class.
func (j *judged) judgeOne(c *pick.Candidate, score *cost.Score) {
	j.function.Score(&j.request, &c.Facts, score)
	if len(j.asked.preferred) > 0 {
		score.Preference = j.asked.preference(c.Rank.Worker)
		score.Total *= score.Preference
	}
}

// model returns the learned values of a class of workers: the same values during a whole decision.
func (j *judged) model(class *learned) *classModel {
	for i := range j.models {
		if j.models[i].class == class {
			return &j.models[i]
		}
	}
	answer := class.answers.of(j.asked.session)
	if known := float64(j.asked.outputTokens); known > 0 {
		answer = known
	}
	j.models = append(j.models, classModel{class, class.pass.Pass(), class.transfer.Pass(), answer, class.reuse.ratio()})
	return &j.models[len(j.models)-1]
}

// setModel sets the learned values of a class in the request.
func (j *judged) setModel(class *learned) {
	m, r := j.model(class), &j.request
	r.Line, r.Decode = m.pass.Prefill, m.pass.Decode
	r.Transfer = m.transfer.Prefill
	r.Answer, r.Reuse = m.answer, m.reuse
}

// setModelOf sets the learned values of a candidate's class in the request. It looks the class up, because candidates may have been removed
// since the field's facts lay beside them.
func (j *judged) setModelOf(c *pick.Candidate) { j.setModel(j.speeds.of(c.Rank.Worker)) }

// findPulls finds out how much of the prompt each candidate could fetch from the rank that holds most of it.
func (j *judged) findPulls(f *field, overlap *kvindex.Overlap) {
	j.source = source{}
	if j.asked.remote || j.asked.readsNoCache || len(f.ranks) == 0 || !canPull(f.ranks[0].Worker) {
		return
	}
	j.source = findSource(f, overlap)
	for i := range j.candidates {
		c := &j.candidates[i]
		if canPull(c.Rank.Worker) && j.source.rank != nil && j.source.rank.Worker != c.Rank.Worker {
			c.Facts.Pullable = max(0, j.source.blocks-c.Facts.HeldBlocks())
		}
	}
}

// expected has the expected times of the prompt on a candidate.
type expected struct {
	wait time.Duration // until it is computed
	// prefill is the time in which it is computed, with the steps of the requests that decode beside it.
	prefill time.Duration
	// added is the time by which the candidate's prefills take longer with it. It is less than prefill if the prompt is computed in a pass
	// that is made anyway, because the pass pays its fixed time only once.
	added time.Duration
}

// expect returns how the prompt is expected to fare on a candidate.
func (j *judged) expect(c *pick.Candidate) expected {
	j.setModelOf(c)
	there := cost.Expect(&j.request, &c.Facts, c.Uncached)
	e := expected{wait: there.Wait}
	if c.Uncached <= 0 {
		return e
	}
	e.prefill = time.Duration(float64(j.request.Line.Prefill(c.Uncached))*c.Facts.Pace) + there.Step
	e.added = e.prefill
	if there.Joins {
		e.added = time.Duration(float64(c.Uncached) * j.request.Line.Token * c.Facts.Pace)
	}
	return e
}

// firstToken returns the expected time until a candidate's first token, from now.
func (j *judged) firstToken(c *pick.Candidate) time.Duration {
	e := j.expect(c)
	return e.wait + e.prefill
}

// soonest is the candidate whose first token is expected first, and when that is, from now. There must
// be a candidate.
func (j *judged) soonest() (best *pick.Candidate, first time.Duration) {
	for i := range j.candidates {
		if at := j.firstToken(&j.candidates[i]); best == nil || at < first {
			best, first = &j.candidates[i], at
		}
	}
	return best, first
}

// dropLate removes the candidates whose first token is expected after the deadline.
func (j *judged) dropLate(deadline time.Duration) {
	j.candidates = slices.DeleteFunc(j.candidates, func(c pick.Candidate) bool { return j.firstToken(&c) > deadline })
}

// least is the lowest cost of the candidates. There must be one.
func (j *judged) least() float64 {
	least := j.candidates[0].Total
	for i := range j.candidates {
		least = min(least, j.candidates[i].Total)
	}
	return least
}

// leastLocal is the lowest cost of a decode worker that computes the prompt, too. By cost.Delay a worker that is idle for a moment counts
// as the mean of all: the next request may come to it during the prompt.
func (j *judged) leastLocal() float64 {
	delay, ok := j.function.(*cost.Delay)
	if !ok {
		return j.least()
	}
	running := int64(0)
	for i := range j.candidates {
		running += max(0, j.candidates[i].Facts.Booked.Requests)
	}
	mean := float64(running) / float64(len(j.candidates))

	least := math.Inf(1)
	for i := range j.candidates {
		c := &j.candidates[i]
		more := max(0, mean-float64(c.Facts.Booked.Requests))
		least = min(least, c.Total+delay.Interference*more*float64(j.expect(c).prefill)/1e6)
	}
	return least
}
