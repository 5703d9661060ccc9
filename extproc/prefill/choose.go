package prefill

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
)

// choose books a prefill worker; nil if there is none.
func (s *Sender) choose(r *Request, now time.Time) *decision.Decision {
	d := r.Decision
	if !handoff.Supports(d.Transfer, r.Endpoint) {
		return nil
	}
	ask := r.Ask
	ask.ID, ask.Role = d.PrefillID(len(r.Tried)), fleet.Prefill
	ask.Session, ask.Source = d.Session, d.Source
	ask.Revision, ask.DecodeID = d.Revision, d.ID
	ask.Except = slices.Concat(r.Tried, s.standings.paused(now), s.pairs.paused(d.Worker, now))
	ask.IgnoreBodyHints = true
	p := s.router.Decide(&ask, now)
	if p.Outcome != decision.Picked && d.Transfer == fleet.TransferBootstrap && len(ask.Except) > len(r.Tried) {
		ask.Except = r.Tried // SGLang's decode workers compute no prompts
		p = s.router.Decide(&ask, now)
	}
	if p.Outcome != decision.Picked {
		return nil
	}
	s.pairs.chosen(pair{p.Worker, d.Worker}, now)
	return p
}

// pick chooses a prefill worker, and makes its request. Without one it returns the outcome.
func (s *Sender) pick(r *Request) (*Leg, Outcome) {
	d, now := r.Decision, time.Now()
	p := s.choose(r, now)
	if p == nil {
		return nil, NoWorker
	}

	leg := &Leg{
		sender: s, worker: p, decodeID: d.ID, decodeWorker: d.Worker, cached: -1,
		path: r.Path, requestID: r.RequestID, authorization: r.Authorization, traceparent: r.Traceparent,
	}
	leg.tokens = tokensBefore(p) + tokensOf(p, len(r.Body))
	leg.wait = s.timeout
	if d.Transfer != fleet.TransferBootstrap { // SGLang's prefill workers answer when the decode worker has the cache
		leg.wait = min(s.timeout, s.standings.wait(p.Pool, leg.tokens))
	}
	leg.transfer = handoff.Transfer{
		Kind: d.Transfer, Endpoint: r.Endpoint, ID: NewTransferID(), At: p.TransferAt,
		PrefillRank: rankOf(p), DecodeRank: rankOf(d),
	}
	body, err := leg.transfer.Prefill(nil, r.Body)
	if err != nil || p.Transfer != d.Transfer { // the configuration is checked, and the body was parsed
		leg.outcome = Cancelled
		leg.endBooking()
		return nil, NoWorker
	}
	leg.body = NewBody(body)
	s.standings.sent(p.Worker, leg.wait, now)
	return leg, ""
}

// tokensOf returns the number of tokens of its prompt that a picked worker computes. If the router has not read the prompt, the number is
// estimated by the bytes of the body.
func tokensOf(p *decision.Decision, bytes int) int {
	if p.PromptTokens == 0 {
		return bytes / bytesPerToken
	}
	return max(0, p.PromptTokens-p.Cached)
}

// bytesPerToken is the least number of bytes of a prompt's text to a token, as a rule.
const bytesPerToken = 2

// tokensBefore returns the number of tokens that a picked worker computes before the request's tokens.
func tokensBefore(p *decision.Decision) int {
	for i := range p.Candidates {
		if p.Candidates[i].Picked {
			return int(max(0, p.Candidates[i].Load.PrefillTokens))
		}
	}
	return 0
}

// NewTransferID returns an id that no other transfer has, but by chance.
func NewTransferID() int64 { return handoff.MinID + rand.Int64N(1<<61) }

// rankOf returns the rank of a decision; -1 for a worker with one rank.
func rankOf(d *decision.Decision) int {
	if d.Ranks <= 1 {
		return -1
	}
	return d.Rank
}
