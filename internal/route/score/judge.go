package score

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/learned"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
)

// Judged is the candidates for a request with their costs at one moment.
type Judged struct {
	asked      *request.Prepared
	Candidates []pick.Candidate
	function   cost.Function
	Request    cost.Request // the same for all candidates, except for the learned values, which change with the candidate's class
	// Booking is the load that a pick adds, whichever candidate it is, so without its prefill.
	Booking fleet.Amount

	sources    []source        // from which candidates could fetch a part of the prompt
	partners   []cost.Partners // of decode workers, by the number of their site; empty if sites do not matter
	transfers  bool            // the cost depends on times of transfers
	outside    kvindex.Overlap // of the prompt with caches outside engines
	anyOutside bool            // it is not empty
	stores     storeReach      // and from which they could load it
	speeds     *learned.Speeds
	now        time.Time
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
	class         *learned.Class
	pass          *perfmodel.Pass
	transfers     [fleet.Levels]perfmodel.Line
	answer, reuse float64
	passes        float64
	loads         [fleet.Tiers]fleet.TierLoad
}

// Judge computes the cost of a request on ranks. It is safe for concurrent use.
type Judge struct {
	index   *kvindex.Index
	speeds  *learned.Speeds
	outside *Outside
	others  func() int
	uses    uses
}

// NewJudge returns a judge by the caches of an index and of o, which may be nil, and the learned values of speeds. others returns the
// number of other routers that decide for the same fleet; nil for none.
func NewJudge(x *kvindex.Index, o *Outside, speeds *learned.Speeds, others func() int) *Judge {
	if others == nil {
		others = func() int { return 0 }
	}
	return &Judge{index: x, outside: o, speeds: speeds, others: others}
}

// Touch records that a prompt uses the blocks of its chain on a candidate.
func (g *Judge) Touch(c *pick.Candidate, chain []blockhash.Sequence) {
	g.uses.touch(c.Rank.ID, c.Facts.Capacity, chain)
}

// Forget forgets a rank whose epoch is over.
func (g *Judge) Forget(rank fleet.RankID) { g.uses.drop(rank) }

// Field computes the cost of the usable ranks of a field by their load now, in the memory of j. overlap is the overlap of the request's
// prompt with the cache of each rank.
func (g *Judge) Field(j *Judged, overlap *kvindex.Overlap, q *request.Prepared, f *eligible.Field, now time.Time) *Judged {
	j.asked = q
	j.speeds, j.now = g.speeds, now
	j.models, j.anyOutside = j.models[:0], false
	j.Request = cost.Request{BlockSize: q.Model.BlockSize, PromptTokens: q.Tokens, Computed: q.Remote, Onward: q.Onward.Tokens}
	j.loadFacts(f, g.index, overlap, now)
	g.addUnseen(j, f, now)
	j.joinRanks(f, overlap)
	requests := int64(0)
	for i := range j.Candidates {
		c := &j.Candidates[i]
		requests += c.Facts.Requests()
		g.uses.discount(c, q)
		if c.Facts.Overlap[fleet.Device] > 0 {
			j.Request.MostHeld = max(j.Request.MostHeld, c.Facts.OnDevice(&j.Request))
		}
	}
	j.Request.Mean = float64(requests) / float64(max(1, len(j.Candidates)))

	j.findSources(f, overlap)
	j.findPartners(f)
	j.transfers = q.Remote || q.Onward.Tokens > 0 || len(j.sources) > 0
	j.findLoads(f, overlap)
	j.findOutside(g.outside)

	j.function = j.costFunction()
	for i := range j.Candidates {
		c := &j.Candidates[i]
		if i == 0 || f.Facts[i].Class != f.Facts[i-1].Class {
			j.setModel(f.Facts[i].Class)
		}
		if len(j.sources) > 0 {
			j.chooseSource(c)
		}
		j.judgeOne(c, &j.score)
		c.Total, c.Tie = j.score.Total, j.score.Tie
		c.Uncached = j.score.Uncached
	}
	// The answers to one prompt share its blocks and its prefill.
	j.Booking = fleet.Amount{Requests: int64(q.Batch.Sequences), DecodeBlocks: int64(j.Request.Blocks() + q.AnswerBlocks())}
	return j
}

// costFunction returns the model's cost function with the weights that the request overrides. The changed
// copy lies in j.
func (j *Judged) costFunction() cost.Function {
	q := j.asked
	function := q.Model.Choice(q.Role).Cost
	if !q.OverlapWeight.Set && !q.PrefillLoadScale.Set {
		return function
	}

	switch f := function.(type) {
	case *cost.Weights:
		j.weights = *f
		request.OverrideIf(&j.weights.Overlap, q.OverlapWeight.Value, q.OverlapWeight.Set)
		request.OverrideIf(&j.weights.PrefillLoadScale, q.PrefillLoadScale.Value, q.PrefillLoadScale.Set)
		return &j.weights
	case *cost.Delay: // it learns how much prefill weighs, so only the worth of cached tokens changes
		j.delay = *f
		if q.OverlapWeight.Set {
			for t := range j.delay.Tier {
				j.delay.Tier[t] *= q.OverlapWeight.Value
			}
		}
		return &j.delay
	}
	return function
}

// loadFacts makes a candidate of every usable rank, and finds the smallest booked prefill of all.
func (j *Judged) loadFacts(f *eligible.Field, x *kvindex.Index, overlap *kvindex.Overlap, now time.Time) {
	n := f.Usable()
	j.Candidates = slices.Grow(j.Candidates[:0], n)[:n]
	for i := range j.Candidates {
		c, load := &j.Candidates[i], f.Ranks[i].Load
		c.Rank = &f.Ranks[i]
		c.AnyRank, c.Least = false, 0
		load.ReadView(&c.Facts.View, now, f.Facts[i].Slots)
		c.Facts.Unseen = fleet.Amount{}
		c.Facts.Each = 1
		if len(j.asked.Model.CoarseSizes) > 0 { // seldom, and a worker lies apart in memory
			c.Facts.Each = j.asked.Model.BlocksIn(c.Rank.Worker)
		}
		c.Facts.Capacity = f.Facts[i].Blocks * c.Facts.Each
		c.Facts.Held = x.Blocks(c.Rank.ID) * c.Facts.Each

		c.Facts.Overlap = [fleet.Tiers]int{}
		c.Facts.Evicting = 0
		c.Facts.Pullable, c.Facts.Source = 0, 0
		c.Facts.FromSource, c.Facts.Toward = fleet.Apart, fleet.Apart
		c.Facts.Partners = nil
		if j.Request.Onward > 0 { // of a prefill worker whose decode worker has a known place
			place := c.Rank.Worker.Place()
			c.Facts.Toward = place.Shared(&j.asked.Onward.Place)
		}
		c.Facts.OnNode, c.Facts.OnPeers = 0, 0
		c.Facts.Outside = [fleet.Tiers]int{}
		c.Facts.Store = nil
		// Few ranks hold a part of a prompt, and a health lies apart in memory.
		if held := overlap.Find(c.Rank.ID); held != nil && !j.asked.ReadsNoCache && load.Caches() {
			c.Facts.Overlap = held.Blocks
			if cost.HeldBlocks(&held.Blocks) > held.Blocks[fleet.Device] {
				c.Facts.Store = load.Store()
			}
		}
		if i == 0 || c.Facts.Booked.PrefillTokens < j.Request.MinPrefillTokens {
			j.Request.MinPrefillTokens = c.Facts.Booked.PrefillTokens
		}
	}
}

// addUnseen adds the load that other routers are expected to have booked without that this one knows. Dynamo's cost stays as Dynamo's own.
func (g *Judge) addUnseen(j *Judged, f *eligible.Field, now time.Time) {
	others := g.others()
	if _, ok := j.asked.Model.Choice(j.asked.Role).Cost.(*cost.Delay); !ok || others == 0 {
		return
	}
	for i := range j.Candidates {
		facts := &j.Candidates[i].Facts
		facts.Unseen = f.Ranks[i].Load.Unseen(others, now)
		facts.Wait += facts.Unseen.PrefillTime
	}
}

// judgeOne fills in the cost of a candidate, with the factor for preferred taints. j.request must have the model of the candidate's class.
func (j *Judged) judgeOne(c *pick.Candidate, score *cost.Score) {
	j.function.Score(&j.Request, &c.Facts, score)
	if len(j.asked.Preferred) > 0 {
		score.Preference = j.asked.Preference(c.Rank.Worker)
		score.Total *= score.Preference
	}
}

// model returns the learned values of a class of workers: the same values during a whole decision.
func (j *Judged) model(class *learned.Class) *classModel {
	for i := range j.models {
		if j.models[i].class == class {
			return &j.models[i]
		}
	}
	answer := class.Answers.Of(j.asked.Session)
	switch known := float64(j.asked.OutputTokens); {
	case j.asked.Role == fleet.Prefill:
		answer = 1
	case known > 0:
		answer = known
	}
	m := classModel{class: class, pass: class.Pass.Pass(), answer: answer, reuse: class.Reuse.Ratio(), passes: class.Passes.Mean()}
	if j.transfers {
		m.transfers = class.Transfers(j.now)
	}
	if j.anyOutside { // few requests need these times, and they are behind locks
		m.loads = class.Loads(j.now)
	}
	j.models = append(j.models, m)
	return &j.models[len(j.models)-1]
}

// setModel sets the learned values of a class in the request.
func (j *Judged) setModel(class *learned.Class) {
	m, r := j.model(class), &j.Request
	r.Line, r.Decode = m.pass.Prefill, m.pass.Decode
	if j.transfers {
		r.Transfers = m.transfers
	}
	r.Answer, r.Reuse = m.answer, m.reuse
	r.Passes = m.passes
	r.Loads = m.loads
}

// setModelOf sets the learned values of a candidate's class in the request. It looks the class up, because candidates may have been removed
// since the field's facts lay beside them.
func (j *Judged) setModelOf(c *pick.Candidate) { j.setModel(j.speeds.Of(c.Rank.Worker)) }

// expected has the expected times of the prompt on a candidate.
type expected struct {
	Wait time.Duration // until it is computed
	// Prefill is the time in which it is computed, with the steps of the requests that decode beside it.
	Prefill time.Duration
	// Added is the time by which the candidate's prefills take longer with it. It is less than prefill if the prompt is computed in a pass
	// that is made anyway, because the pass pays its fixed time only once.
	Added time.Duration
	Held  bool // it waits until another request has ended
}

// firstToken is the time until the first token.
func (e expected) firstToken() time.Duration { return e.Wait + e.Prefill }

// Expect returns how the prompt is expected to fare on a candidate.
func (j *Judged) Expect(c *pick.Candidate) expected {
	j.setModelOf(c)
	there := cost.Expect(&j.Request, &c.Facts, c.Uncached)
	e := expected{Wait: there.Wait, Held: there.Held}
	if c.Uncached <= 0 {
		return e
	}
	e.Prefill = time.Duration(float64(j.Request.Line.Prefill(c.Uncached))*c.Facts.Pace) + there.Step
	tokens := float64(c.Uncached) * j.Request.Line.Token * c.Facts.Pace
	e.Added = time.Duration(tokens + there.Passes*(float64(e.Prefill)-tokens))
	return e
}

// FirstToken returns the expected time until a candidate's first token, from now.
func (j *Judged) FirstToken(c *pick.Candidate) time.Duration { return j.Expect(c).firstToken() }

// Soonest is the candidate whose first token is expected first, and when that is, from now. There must
// be a candidate.
func (j *Judged) Soonest() (best *pick.Candidate, first time.Duration) {
	for i := range j.Candidates {
		if at := j.FirstToken(&j.Candidates[i]); best == nil || at < first {
			best, first = &j.Candidates[i], at
		}
	}
	return best, first
}

// DropLate removes the candidates whose first token is expected after the deadline.
func (j *Judged) DropLate(deadline time.Duration) {
	j.Candidates = slices.DeleteFunc(j.Candidates, func(c pick.Candidate) bool { return j.FirstToken(&c) > deadline })
}

// Least is the lowest cost of the candidates. There must be one.
func (j *Judged) Least() float64 { return j.leastCandidate().Total }

// leastCandidate is the first candidate of the lowest cost.
func (j *Judged) leastCandidate() *pick.Candidate {
	least := &j.Candidates[0]
	for i := range j.Candidates {
		if c := &j.Candidates[i]; c.Total < least.Total {
			least = c
		}
	}
	return least
}
