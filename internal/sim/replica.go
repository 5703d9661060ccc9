package sim

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/internal/route/predict"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/serving"
)

// Model is the name of the only model of every simulated fleet.
const Model = "sim"

// replica is one router with its own fleet, index and feed. Replicas share nothing but the bookings that
// they publish.
type replica struct {
	fleet  *fleet.Fleet // the same workers as in every replica
	index  *kvindex.Index
	feed   *feed.Feed
	router *route.Router
	share  *peers.Publisher
	peers  *peers.Receiver
	byName map[string]int
	tokens []uint32       // of the request that is being decided; see Prepare
	parsed prompt.Request // the same for all requests: only tokens differ
}

func newReplica(number int, cfg Config, workers []*worker) (*replica, error) {
	p := &replica{byName: map[string]int{}, parsed: prompt.Request{Model: Model, Endpoint: prompt.Completions}}
	// The index is large enough never to evict: a router with a small index is not simulated.
	p.index = kvindex.New(kvindex.Config{MaxBytes: 4 << 30})
	p.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) {
		p.router.RankGone(id)
		p.feed.RankGone(id)
	}})
	name := fmt.Sprintf("replica-%d", number)
	outbox := &peers.Outbox{}
	p.share = peers.NewPublisher(name, p.fleet, outbox)
	p.peers = peers.NewReceiver(name, p.fleet, func(q predict.Prediction) { p.router.Expect(q) })
	var predicted predict.Made
	if cfg.sharesBookings() {
		predicted = outbox.Add
	}
	p.feed = feed.New(feed.Config{}, p.fleet, p.index)
	p.router = route.New(route.Config{
		// Each replica breaks ties differently. Decisions are not explained, so one is kept.
		Seed: cfg.Seed ^ uint64(number+1)<<48, Decisions: 1, Candidates: 1,
		PredictFor: func(fleet.Rank) time.Duration { return cfg.PredictFor }, Predicted: predicted, Others: p.peers.Live,
	}, p.fleet, p.index)

	for _, w := range workers {
		if err := p.add(w, cfg.Pull); err != nil {
			return nil, err
		}
	}

	size := cfg.Engine.BlockSize
	roles := map[fleet.Role]serving.Choice{}
	if cfg.Chooser != nil {
		chooser := cfg.Chooser(number)
		for _, role := range []fleet.Role{fleet.Aggregated, fleet.Decode, fleet.Prefill} {
			roles[role] = serving.Choice{Chooser: chooser, Cost: cfg.Cost}
		}
	} else if cfg.DecodePolicy != "" {
		roles[fleet.Decode] = serving.Choice{Policy: cfg.DecodePolicy, Temperature: cfg.Temperature, Cost: cfg.Cost}
	}
	err := p.router.SetModels(map[string]*serving.Config{Model: {
		Prompt: p, BlockSize: size, Prefill: serving.Prefill(cfg.PrefillAt),
		Policy: cfg.Policy, Temperature: cfg.Temperature, Cost: cfg.Cost, Roles: roles,
		Busy: cfg.Busy, Queue: cfg.Queue, MaxWait: cfg.MaxWait, Programs: cfg.Programs,
	}})
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	return p, nil
}

// add lists a worker that is new in the fleet. With pulls it can be asked for parts of its cache.
func (p *replica) add(w *worker, pulls bool) error {
	m := w.member()
	if pulls {
		m.Transfer, m.TransferAt = fleet.TransferP2P, "10.255.0.1:25710" // no one connects to it
	}
	p.byName[w.name] = w.number
	_, err := p.fleet.Put(m)
	return err
}

// hasPrefills reports whether a prompt is booked whose end the router has not seen.
func (p *replica) hasPrefills() bool {
	for _, rank := range p.fleet.Snapshot().Ranks {
		if rank.Load.Own().PrefillTokens != 0 {
			return true
		}
	}
	return false
}

// Prepare returns the tokens of the request that is being decided. A trace has tokens, so nothing is rendered
// or tokenized. With this method the replica is the model of its router.
func (p *replica) Prepare(_ *prompt.Request, dst *prompt.Prompt) error {
	dst.Tokens = append(dst.Tokens[:0], p.tokens...)
	dst.Total, dst.Prompts = len(p.tokens), 1
	return nil
}

// decide chooses a rank for a job. If the job must wait in the queue, it has a ticket, and ready is called with the final
// decision.
func (p *replica) decide(j *job, ready func(*decision.Decision), now time.Time) (*decision.Decision, request.Ticket) {
	p.tokens = j.engine.Prompt // Prepare returns them during Decide
	req := &request.Request{Endpoint: prompt.Completions, Known: true, Parsed: &p.parsed, Session: j.session, Ready: ready}
	d := p.router.Decide(req, now)
	return d, req.Ticket
}

// decidePrefill chooses a prefill worker for a job whose worker is picked, as stator extproc does. It does not wait.
func (p *replica) decidePrefill(j *job, now time.Time) *decision.Decision {
	p.tokens = j.engine.Prompt
	return p.router.Decide(&request.Request{
		ID: j.decision.PrefillID(len(j.handoff.tried)), Endpoint: prompt.Completions, Known: true, Parsed: &p.parsed,
		Workers:         request.Workers{Role: fleet.Prefill, Except: j.handoff.tried, DecodeID: j.decision.ID},
		IgnoreBodyHints: true, Session: j.session,
	}, now)
}

// number returns the number of the worker of that name.
func (p *replica) number(worker string) int { return p.byName[worker] }
