package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/pick"
)

// Decide says where req goes, and books it there. It never waits and never returns nil.
// Every Picked decision must be followed by one End, sooner or later.
func (r *Router) Decide(req *Request, now time.Time) *Decision {
	s := r.take()
	defer r.give(s)
	d := &Decision{ID: req.ID, At: now, Session: req.Session, Source: req.Source}
	if d.ID == "" {
		d.ID = r.NewID()
	}
	if err := r.decide(s, d, req); err != nil {
		d.Outcome, d.Err = Refused, err
	}
	r.counts.add(d)
	r.recent.add(d)
	return d
}

// decide is the sentence: prompt → blocks → overlap → costs → pick.
func (r *Router) decide(s *scratch, d *Decision, req *Request) *prompt.Error {
	m, err := r.read(s, d, req)
	if err != nil {
		return err
	}
	if err := s.prepare(m, d); err != nil {
		return err
	}
	snap := r.fleet.Snapshot()
	if err := s.eligible(m, snap, d); err != nil {
		return err
	}
	s.blocks = s.prompt.AppendBlocks(s.blocks[:0], m.BlockSize, m.seed(s.salt, s.prompt.Media))
	r.index.Expire(d.At)
	r.index.Lookup(s.blocks, &s.overlap)
	s.name(d)

	d.Cost = m.Cost.String()
	won := r.book(s, m, d)
	s.explain(d, won, r.cfg.Candidates)
	r.predict(s, d, s.candidates[won].Rank)
	return nil
}

// book scores, chooses and books until the chosen rank's load was still what it was scored
// by. Each lost race means that another decision was booked, so the loop ends; the bound is
// for the unlucky.
func (r *Router) book(s *scratch, m *model, d *Decision) int {
	for range 64 {
		won, k := r.choose(s, m, d)
		if r.bookings.Start(d.ID, k, s.candidates[won].Facts.Booked) {
			return won
		}
	}
	won, k := r.choose(s, m, d)
	r.bookings.Force(d.ID, k)
	return won
}

// choose scores all candidates by their load now and picks one; k is the booking to make.
func (r *Router) choose(s *scratch, m *model, d *Decision) (won int, k pick.Booking) {
	r.score(s, m, d)
	won = s.policy.Choose(s.candidates, &s.how, s.rng)
	c := &s.candidates[won]
	takes := c.Line.Prefill(c.Score.Uncached)
	s.amount.PrefillTokens, s.amount.PrefillTime = int64(c.Score.Uncached), time.Duration(float64(takes)*c.Facts.Pace)
	return won, pick.Booking{
		Rank: c.Rank, Amount: s.amount, Last: d.Last, Source: d.Source, At: d.At,
		Prompt: int32(d.PromptTokens), Cached: int32(d.PromptTokens - c.Score.Uncached), Estimated: takes,
	}
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
