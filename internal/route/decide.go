package route

import (
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/pick"
)

// Decide says where req goes, and books it there; or, Queued, that Request.Ready will be told. It
// never waits and never returns nil. Every Picked decision must be followed by one End, sooner or
// later, and every Queued one by a call of Ready, by Leave or by GiveUp.
func (r *Router) Decide(req *Request, now time.Time) *Decision {
	return r.DecideInto(new(Decision), req, now)
}

// DecideInto is Decide for a caller that uses a decision again: it overwrites d and its slices, and
// returns d, or another for a request whose turn in the queue has come at once. With an ID in the
// request, its body parsed, and a prompt that was seen before, it allocates nothing.
func (r *Router) DecideInto(d *Decision, req *Request, now time.Time) *Decision {
	s := r.take()
	defer r.give(s)
	*d = Decision{
		ID: req.ID, At: now, Session: req.Session, Source: req.Source, Candidates: d.Candidates[:0], Others: d.Others[:0],
	}
	if d.ID == "" {
		d.ID = r.NewID()
	}
	final, err := r.decide(s, d, req)
	switch {
	case err != nil:
		d.refuse(err)
	case final != d: // it waited for no time at all, and was told already
		return final
	}
	r.finish(d, s.chain[:d.Blocks])
	return d
}

// finish keeps a decision, and counts it. chain is its prompt's blocks.
func (r *Router) finish(d *Decision, chain []blockhash.Sequence) {
	r.counts.add(d)
	r.recent.add(d)
	if r.cfg.Decided != nil && d.Outcome != Queued {
		r.cfg.Decided(d, chain)
	}
}

// decide is the sentence: prompt → blocks → overlap → costs → pick, or the queue.
func (r *Router) decide(s *scratch, d *Decision, req *Request) (*Decision, *prompt.Error) {
	m, err := r.read(s, d, req)
	if err != nil {
		return d, err
	}
	if err := s.prepare(m, d); err != nil {
		return d, err
	}
	busy := r.eligible(s, m, d)
	if busy != nil && !m.parks(d, req) {
		return d, busy
	}
	s.blocks = s.prompt.AppendBlocks(s.blocks[:0], m.BlockSize, m.seed(s.salt, s.prompt.Media))
	r.index.Expire(d.At)
	r.index.Lookup(s.blocks, &s.overlap)
	s.name(d)
	if busy == nil && !m.crowded(req) {
		if err := r.place(s, m, d); err == nil || !m.parks(d, req) {
			return d, err
		}
	}
	return r.enqueue(s, m, d, req)
}

// place books the request on the best of s.ranks and says why.
func (r *Router) place(s *scratch, m *model, d *Decision) *prompt.Error {
	d.Cost = m.choice(s.asks.role).Cost.String()
	won, err := r.book(s, m, d)
	if err != nil {
		return err
	}
	r.explain(s, m, d, won)
	r.predict(s, d, *s.candidates[won].Rank)
	return nil
}

// book scores, chooses and books until the chosen rank's load was still what it was scored
// by. Each lost race means that another decision was booked, so the loop ends; the bound is
// for the unlucky.
func (r *Router) book(s *scratch, m *model, d *Decision) (int, *prompt.Error) {
	for try := 0; ; try++ {
		if try > 0 && m.Busy.bounds() { // the one that came before may have filled the rank
			if err := r.eligible(s, m, d); err != nil {
				return 0, err
			}
		}
		won, k, err := r.choose(s, m, d)
		if err != nil {
			return 0, err
		}
		if try == maxRaces {
			r.bookings.Force(d.ID, k)
			return won, nil
		}
		c := &s.candidates[won]
		if m.Busy.bounds() && r.fullWith(&m.Busy, c.Rank, &c.Facts.Booked, d.At) {
			continue // it has become busy since it was found free
		}
		if r.bookings.Start(d.ID, k, c.Facts.Booked) {
			return won, nil
		}
	}
}

// maxRaces is how many lost races a decision bears.
const maxRaces = 64

// choose scores all candidates by their load now and picks one; k is the booking to make.
func (r *Router) choose(s *scratch, m *model, d *Decision) (won int, k pick.Booking, err *prompt.Error) {
	r.score(s, m, d)
	if s.asks.deadline > 0 {
		if _, soonest := r.soonest(s); soonest > s.asks.deadline {
			return 0, k, s.tooLate(m, d, soonest)
		}
		s.candidates = slices.DeleteFunc(s.candidates, func(c pick.Candidate) bool { return r.firstToken(s, &c) > s.asks.deadline })
	}
	won = s.policy.Choose(s.candidates, &s.how, s.rng)
	c := &s.candidates[won]
	s.amount.PrefillTokens, s.amount.PrefillTime = int64(c.Uncached), r.adds(s, c)
	last := d.Last
	if last != 0 && (s.asks.role == fleet.Decode || r.index.Reported(c.Rank.ID, blockhash.Sequence(last))) {
		last = 0 // it is computed already: its block will not tell when its turn has come
	}
	return won, pick.Booking{
		Rank: *c.Rank, Amount: s.amount, Last: last, Source: d.Source, At: d.At,
		Prompt: int32(d.PromptTokens), Cached: int32(d.PromptTokens - c.Uncached),
		FirstToken: c.Facts.Wait + s.amount.PrefillTime,
	}, nil
}

// predict lets the picked rank hold the prompt before it says so itself. A short prediction
// only bridges the time until the engine's events, so few blocks suffice; a long one stands
// for the rank's whole cache.
func (r *Router) predict(s *scratch, d *Decision, rank fleet.Rank) {
	ttl, limit := r.cfg.PredictFor(rank), rank.Worker.Blocks
	if ttl <= 0 || len(s.blocks) == 0 {
		return
	}
	if ttl <= bridge && (limit == 0 || limit > bridgeBlocks) {
		limit = bridgeBlocks
	}
	r.index.Predict(rank.ID, s.chain, r.lasting(s, d, rank, ttl), d.At.Add(ttl), limit)
}

// lasting is how many of the prompt's blocks need no prediction: what the rank holds by its own
// word, and what is predicted for at least half of the time that a new prediction would get. A
// conversation's next turn so pays for its new blocks alone.
func (r *Router) lasting(s *scratch, d *Decision, rank fleet.Rank, ttl time.Duration) int {
	known := s.overlap.Of(rank.ID)[fleet.Device]
	if known == 0 {
		return 0
	}
	until, predicted := r.index.PredictedUntil(rank.ID, s.chain[known-1])
	if predicted && until.Sub(d.At) < ttl/2 {
		return 0
	}
	return known
}

const (
	bridge       = 10 * time.Second
	bridgeBlocks = 1 << 14
)
