package extproc

import (
	"log/slog"
	"math/rand/v2"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/internal/route/predict"
)

// state has the data for decisions, and the router that makes them.
type state struct {
	log    *slog.Logger
	fleet  *fleet.Fleet
	index  *kvindex.Index
	feed   *feed.Feed
	drift  *drift.Detector
	peers  *peers.Receiver // the bookings and prompts of the other replicas
	outbox peers.Outbox    // the prompts of this one, for them
	memory *prompt.Memory  // of the tokens of recent texts
	routes *route.Router   // set after init
}

// init makes all but routes. blockSize returns the tokens per block of a worker's model; it is not called before there is a worker.
func (s *state) init(settings *config.Config, replica string, blockSize func(*fleet.Worker) int) {
	s.index = kvindex.New(kvindex.Config{MaxBytes: settings.Index.MaxBytes})
	// A rank of an ended epoch must leave bookings, states and index together, before its ID is used
	// again. The fields are set before the first worker is added.
	s.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) {
		s.routes.RankGone(id)
		s.feed.RankGone(id)
	}})
	s.feed = feed.New(feed.Config{BlockSize: blockSize}, s.fleet, s.index)
	s.drift = drift.New(drift.Config{Tokens: int(settings.Index.DriftTokens)})
	s.peers = peers.NewReceiver(replica, s.fleet, func(p predict.Prediction) { s.routes.Expect(p) })
	s.memory = prompt.NewMemory(prompt.MemoryConfig{MaxBytes: settings.Prompts.MemoryBytes, Seed: rand.Uint64()})
}

// sharePrompt adds a prediction about a prompt to the next update for the other replicas, if there are any.
func (s *state) sharePrompt(p predict.Prediction) {
	if s.peers.Live() > 0 {
		s.outbox.Add(p)
	}
}
