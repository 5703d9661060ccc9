package route

import (
	"time"
	"unique"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/eligible"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/score"
)

// maxRaces is the number of races that a decision may lose before it books whatever the load.
const maxRaces = 64

// PrefillTimeout bounds the time that prefill workers have for the prompt of a request whose decision is Split.
const PrefillTimeout = 30 * time.Second

// book judges, chooses and books. It begins again if the chosen rank's load has changed since it was judged. Each lost
// race means that another decision was booked, so all decisions together make progress; maxRaces bounds the wait of a
// decision that loses each time.
func (r *Router) book(w *workspace, q *request.Prepared, d *decision.Decision) (won int, refused *decision.Refusal) {
	f, busy := &w.field, &q.Model.Busy
	for try := 0; ; try++ {
		if try > 0 && (busy.IsSet() || f.Admitted) { // the booking that came first may have filled the rank
			f = r.finder.Find(&w.field, q, d.At)
			if refused := f.Refusal(q, d.At); refused != nil {
				return 0, refused
			}
		}
		j := r.judge.Field(&w.judged, &w.overlap, q, f, d.At)
		q.Steps.End(request.Judged)
		if q.Deadline > 0 {
			if _, first := j.Soonest(); first > q.Deadline {
				return 0, request.RefuseLate(q, first)
			}
			j.DropLate(q.Deadline)
		}

		won := q.Policy.Choose(j.Candidates, &q.PolicyInput, w.rng)
		if r.cfg.Shadow || q.Dry {
			return won, nil
		}
		c := &j.Candidates[won]
		k := r.newBooking(q, j, c, d)
		if try == maxRaces {
			r.bookings.Force(d.ID, k)
			return won, nil
		}
		if busy.IsSet() && r.finder.IsBusyWith(busy, c.Rank, &c.Facts.Booked, d.At) {
			continue // it became busy after it was found free
		}
		if f.Admitted && !eligible.Admits(c.Rank, c.Facts.Booked.Requests, d.At) {
			continue // another request went to a half-open worker meanwhile
		}
		if r.bookings.Start(d.ID, k, c.Facts.Booked) {
			return won, nil
		}
	}
}

// newBooking is the booking of a request on a candidate.
func (r *Router) newBooking(q *request.Prepared, j *score.Judged, c *pick.Candidate, d *decision.Decision) pick.Booking {
	amount, there := j.Booking, j.Expect(c)
	amount.PrefillTokens = int64(c.Uncached)
	amount.PrefillTime = there.Added
	// The booking's blocks are the engine's own.
	chain, each := q.ChainOn(c.Rank.Worker)
	amount.DecodeBlocks = (amount.DecodeBlocks + int64(each) - 1) / int64(each)
	last := uint64(0)
	if len(chain) > 0 {
		last = uint64(chain[len(chain)-1])
	}
	switch {
	case last == 0:
	case c.AnyRank, !c.Rank.Load.Caches():
		last = 0 // another rank may compute the prompt, or the engine stores no blocks: the picked rank's events show nothing
	case q.Batch.Prompts > 1:
		last = 0 // it is the first prompt's, and shows nothing of the others
	case q.Remote, r.index.IsReported(c.Rank.ID, blockhash.Sequence(last)):
		last = 0 // the block is there already, so no event will show that the prompt is computed
	}
	firstToken, cached := there.Wait+there.Added, j.Promised(c)
	if q.Remote {
		firstToken += PrefillTimeout
		cached = c.Facts.Cached(&j.Request)
	}
	certain := min(cached, c.Facts.Overlap[fleet.Device]*max(1, j.Request.BlockSize))
	outside, from := j.LoadedOutside(c)

	return pick.Booking{
		Rank: *c.Rank, Amount: amount, Last: last, At: d.At,
		Tokens: pick.Tokens{
			Prompt: int32(d.PromptTokens), Cached: int32(cached), Certain: int32(certain), Outside: int32(outside), OutsideTier: from,
			Held: there.Held,
		},
		FirstToken: pick.InMicros(firstToken),
		Caller:     unique.Make(pick.Caller{Source: d.Source, Account: d.Account, Stream: d.Stream}),
	}
}
