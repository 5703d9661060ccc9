package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/score"
)

// A speculative prefill computes a prompt that no client has sent yet, so that it is cached when it comes.
//
//	event                                             effect
//	a rank holds the whole prompt already             nothing is booked: SpeculationCached
//	no rank is idle                                   nothing is booked: SpeculationBusy
//	engines choose the ranks of the next turn's API   nothing is booked on those with several: SpeculationBusy, if there are no others
//	ranks are idle                                    it is booked on the one that holds most of the prompt: SpeculationBooked
//	a request of a client is booked on that rank      the caller stops it, see IsDisturbed
//	it ends                                           the caller calls Ended, with Ending.Speculative
//
// Its booking has no load. With load, decisions about requests of clients would avoid the rank, or have them wait, for a request that is
// stopped when one of them comes.

// Speculation is the result of [Router.Speculate].
type Speculation uint8

// The results.
const (
	SpeculationBooked     Speculation = iota
	SpeculationCached                 // a rank holds the whole prompt
	SpeculationBusy                   // no rank is idle of which the next turn would find the cache
	SpeculationImpossible             // no rank may take the request, or its prompt is not read
)

// Speculate books a speculative prefill on the idle rank that holds most of its prompt. It never waits, and is not counted as a decision
// about a client's request; Explain has it. The endpoint of the request is the API by which the next turn comes. Its content is a
// completion all the same, which has the tokens of that turn's prompt.
func (r *Router) Speculate(req *request.Request, now time.Time) (*decision.Decision, Speculation) {
	w := r.workspaces.acquire()
	defer r.workspaces.release(w)

	q := &w.asked
	d := &decision.Decision{ID: r.NewID(), At: now, Client: decision.Client{Session: decision.Label(req.Session)}}
	if r.readPrompt(w, q, req, d) != nil || q.Parsed == nil || q.Role != fleet.Aggregated {
		return nil, SpeculationImpossible
	}
	d.Policy = speculative
	f := r.finder.Find(&w.field, q, now)
	if refused := f.Refusal(q, now); refused != nil {
		if refused.IsBusy() {
			return nil, SpeculationBusy
		}
		return nil, SpeculationImpossible
	}

	q.Cut()
	d.NameBlocks(q.Chain)
	r.index.Expire(now)
	r.lookUp(w, q)
	for range maxRaces {
		j := r.judge.Field(&w.judged, &w.overlap, q, f, now)
		won, result := idlest(j, d.Blocks)
		if result != SpeculationBooked {
			return nil, result
		}
		c := &j.Candidates[won]
		k := r.newBooking(q, j, c, d)
		k.Amount, k.Last = fleet.Amount{}, 0
		if !r.bookings.Start(d.ID, k, c.Facts.Booked) {
			continue
		}
		j.Explain(d, won, r.cfg.Candidates)
		r.predict(w, q, d, c)
		r.judge.Touch(c, q.Chain)
		r.recent.Add(d)
		return d, SpeculationBooked
	}
	return nil, SpeculationBusy
}

// speculative is the policy of the decisions about speculative prefills.
const speculative = "speculative prefill"

// idlest returns the idle candidate that holds most of a prompt of that number of blocks.
func idlest(j *score.Judged, blocks int) (won int, result Speculation) {
	won, most := -1, 0
	for i := range j.Candidates {
		c := &j.Candidates[i]
		each := max(1, c.Facts.Each)
		held := c.Facts.HeldBlocks()
		if held >= blocks/each*each && c.Rank.Load.Caches() {
			return -1, SpeculationCached
		}
		if isIdle(c) && (won < 0 || held > most) {
			won, most = i, held
		}
	}
	if won < 0 {
		return -1, SpeculationBusy
	}
	return won, SpeculationBooked
}

// isIdle reports whether nothing runs or waits on a candidate whose cache can hold a prompt for later, by bookings and by reports.
func isIdle(c *pick.Candidate) bool {
	booked := c.Facts.Booked
	return booked.Requests <= 0 && booked.PrefillTokens <= 0 && c.Facts.Untracked == 0 && !c.Facts.Queued &&
		!c.AnyRank && c.Rank.Load.Caches()
}

// IsDisturbed reports whether requests of clients are booked on the rank of a speculative prefill, by this router or by others. It is also
// true if its booking has ended.
func (r *Router) IsDisturbed(id string) bool {
	k, ok := r.bookings.Get(id)
	return !ok || k.Rank.Load.Booked().Requests > 0
}
