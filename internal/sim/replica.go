package sim

import (
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/peers"
)

// model is the one that is served.
const model = "sim"

// replica is one router with what it knows.
type replica struct {
	fleet  *fleet.Fleet
	index  *kvindex.Index
	feed   *feed.Feed
	router *route.Router
	share  *peers.Publisher
	peers  *peers.Receiver
	names  []string
	byName map[string]int
	tokens []uint32 // of the request that is decided
	parsed prompt.Request
}

func newReplica(number int, cfg Config, workers []*worker) (*replica, error) {
	p := &replica{byName: map[string]int{}, parsed: prompt.Request{Model: model, Endpoint: prompt.Completions}}
	p.index = kvindex.New(kvindex.Config{MaxBytes: 4 << 30})
	p.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) {
		p.router.RankGone(id)
		p.feed.RankGone(id)
	}})
	name := fmt.Sprintf("replica-%d", number)
	p.share, p.peers = peers.NewPublisher(name, p.fleet), peers.NewReceiver(name, p.fleet)
	p.feed = feed.New(feed.Config{}, p.fleet, p.index)
	p.router = route.New(route.Config{
		Seed: cfg.Seed ^ uint64(number+1)<<48, Decisions: 1, Candidates: 1,
		PredictFor: func(fleet.Rank) time.Duration { return cfg.PredictFor },
	}, p.fleet, p.index)
	for _, w := range workers {
		m := w.member()
		p.names = append(p.names, m.Name)
		p.byName[m.Name] = w.number
		if _, err := p.fleet.Put(m); err != nil {
			return nil, err
		}
	}
	size := cfg.Engine.BlockSize
	roles := map[fleet.Role]route.Choice{}
	if cfg.DecodePolicy != "" {
		roles[fleet.Decode] = route.Choice{Policy: cfg.DecodePolicy, Temperature: cfg.Temperature, Cost: cfg.Cost}
	}
	err := p.router.SetModels(map[string]*route.ModelConfig{model: {
		Prompt: p, BlockSize: size, Policy: cfg.Policy, Temperature: cfg.Temperature, Cost: cfg.Cost, Roles: roles,
		Busy: cfg.Busy, Queue: cfg.Queue, MaxWait: cfg.MaxWait,
	}})
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	return p, nil
}

// Prepare gives the router the tokens of the request that is decided: those of an arrival are
// known, and nothing is rendered.
func (p *replica) Prepare(_ *prompt.Request, dst *prompt.Prompt) error {
	dst.Tokens = append(dst.Tokens[:0], p.tokens...)
	dst.Total, dst.Prompts = len(p.tokens), 1
	return nil
}

// decide decides for a job; ready is told the final decision where it has to wait.
func (p *replica) decide(j *job, ready func(*route.Decision), now time.Time) *route.Decision {
	p.tokens = j.engine.Prompt
	return p.router.Decide(&route.Request{
		Endpoint: prompt.Completions, Known: true, Parsed: &p.parsed, Session: j.session, Role: j.role, Ready: ready,
	}, now)
}

func (p *replica) number(worker string) int { return p.byName[worker] }
