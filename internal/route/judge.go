package route

import (
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

// judge computes the cost of the usable ranks of a field by their load now. The result is valid until
// the next call with the same workspace.
func (r *Router) judge(w *workspace, q *asked, f *field, now time.Time) *judged {
	return r.judgeIn(&w.judged, w, q, f, now)
}

// judgeIn is judge with the memory of j.
func (r *Router) judgeIn(j *judged, w *workspace, q *asked, f *field, now time.Time) *judged {
	j.asked = q
	j.speeds = &r.speeds
	j.models = j.models[:0]
	j.request = cost.Request{BlockSize: q.model.BlockSize, PromptTokens: q.tokens, Computed: q.remote}
	j.loadFacts(f, &w.overlap, now)
	for i := range j.candidates {
		c := &j.candidates[i]
		c.Facts.Held = r.index.Blocks(c.Rank.ID)
		r.discount(c, q)
	}

	j.findPulls(f, &w.overlap)
	j.findLoads(f, &w.overlap)

	j.function = q.costFunction(j)
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

// loadFacts makes a candidate of every usable rank, and finds the smallest booked prefill of all.
func (j *judged) loadFacts(f *field, overlap *kvindex.Overlap, now time.Time) {
	n := f.usable()
	j.candidates = slices.Grow(j.candidates[:0], n)[:n]
	for i := range j.candidates {
		c, load := &j.candidates[i], f.ranks[i].Load
		c.Rank = &f.ranks[i]
		c.Facts.Booked = load.Booked()
		c.Facts.View = load.View(now, maxReportAge)
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

// cheapest returns the indexes of the n cheapest candidates, cheapest first. The winner takes the last
// place if it is not one of them. One pass with insertion suffices because n is small.
func (j *judged) cheapest(won, n int) []int {
	less := func(a, b int) bool {
		ca, cb := j.candidates[a].Total, j.candidates[b].Total
		return ca < cb || ca == cb && (a == won || b != won && a < b)
	}
	order := j.order[:0]
	for i := range j.candidates {
		if len(order) == n {
			if !less(i, order[n-1]) {
				continue
			}
			order = order[:n-1]
		}
		at, _ := slices.BinarySearchFunc(order, i, func(have, i int) int {
			if less(have, i) {
				return -1
			}
			return 1
		})
		order = slices.Insert(order, at, i)
	}

	if !slices.Contains(order, won) {
		order[len(order)-1] = won
	}
	j.order = order
	return order
}

// explain writes the pick and its reasons into the decision: the cheapest candidates, the picked one
// among them, and the addresses to try next. It judges the candidates that are shown once more,
// because a candidate keeps only its total.
func (j *judged) explain(d *Decision, won, shown int) {
	winner := &j.candidates[won]
	worker := winner.Rank.Worker
	d.Worker, d.Address = worker.Name, worker.Address
	d.Rank, d.Ranks = winner.Rank.Number, worker.Ranks
	d.Transfer, d.TransferAt = worker.Transfer, TransferAddress(worker, winner.Rank.Number)
	d.Overlap = winner.Facts.HeldBlocks()
	d.Cached = d.PromptTokens - winner.Uncached
	d.Considered = len(j.candidates)

	order := j.cheapest(won, shown)
	d.Candidates = slices.Grow(d.Candidates[:0], len(order))[:len(order)]
	for i, at := range order {
		c := &j.candidates[at]
		j.setModelOf(c)
		d.Candidates[i] = Candidate{
			Worker: c.Rank.Worker.Name, Rank: c.Rank.Number, Address: c.Rank.Worker.Address, Picked: at == won,
			Overlap: c.Facts.Overlap, Evicting: c.Facts.Evicting, OnNode: c.Facts.OnNode, OnPeers: c.Facts.OnPeers,
			Load: c.Facts.Booked, Untracked: c.Facts.Untracked, Reported: c.Facts.Reported,
		}
		j.judgeOne(c, &d.Candidates[i].Score)
		if at == won {
			j.explainPull(d, d.Candidates[i].Score.Pulled)
		}
	}
	j.listOthers(d, order)
}

// explainPull names the worker from whose cache the picked one should fetch the pulled tokens; none for 0.
func (j *judged) explainPull(d *Decision, tokens int) {
	if tokens == 0 {
		return
	}
	from := j.source.rank
	d.Pull = Pull{
		Worker: from.Worker.Name, Rank: from.Number, At: TransferAddress(from.Worker, from.Number), Tokens: tokens,
	}
}

// maxOthers is the number of addresses that a retry may try.
const maxOthers = 2

// listOthers adds the addresses to try next to a decision, best first. There is one retry only. So a worker that did not
// serve its last request stands behind the others, and before it one of the picked worker's node: engines of a node often
// stop together, as when their agent is replaced.
func (j *judged) listOthers(d *Decision, order []int) {
	for place := range otherPlaces {
		for _, at := range order {
			rank := j.candidates[at].Rank
			if d.placeOf(rank) == place && d.mayRetryAt(rank.Worker) {
				d.addOther(rank.Worker.Address)
			}
		}
	}
}

// otherPlaces is the number of places that placeOf distinguishes.
const otherPlaces = 4

// placeOf returns the place of a rank in the order of ranks to try after the picked worker. Lower places come first.
func (d *Decision) placeOf(rank *fleet.Rank) int {
	place := 0
	if node := fleet.NodeOf(d.Worker); node != "" && fleet.NodeOf(rank.Worker.Name) == node {
		place++
	}
	if rank.Load.Health().HasFailed() {
		place += 2
	}
	return place
}

// mayRetryAt reports whether a worker may be tried after the picked one. Ranks of one worker share an address, and a
// retry must reach another worker. It carries the number of the picked rank, so that worker must have such a rank.
func (d *Decision) mayRetryAt(w *fleet.Worker) bool {
	return w.Address != d.Address && !slices.Contains(d.Others, w.Address) && (d.Ranks == 1 || d.Rank < w.Ranks)
}

// addOther adds an address to try next, unless there are enough.
func (d *Decision) addOther(address string) {
	if len(d.Others) == maxOthers {
		return
	}
	if cap(d.Others) == 0 {
		d.Others = make([]string, 0, maxOthers)
	}
	d.Others = append(d.Others, address)
}
