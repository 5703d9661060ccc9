package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/predict"
	"github.com/stator-project/stator/internal/route/score"
)

// Config is read by New and must not change later.
type Config struct {
	// Seed makes decision ids and random choices. It must differ between replicas and between starts. The
	// same seed and the same requests, one at a time, give the same decisions.
	Seed uint64
	// Replica is the name of this router among the routers behind the same Envoys; empty if it is the only
	// one. Ids of decisions begin with it and a hyphen, so that a router which receives the end of a
	// foreign request knows whose it is.
	Replica string
	// Decisions is the number of decisions that are kept for Explain, and Candidates the number of candidates that each of them keeps.
	// Defaults 4096 and 16: together about 16 MiB when full, and at most 28 MiB whatever clients send.
	Decisions, Candidates int
	// Grace is the least age of a booking that an empty engine's report ends. It must be longer than a request's way
	// to the engine. Default 10 s.
	Grace time.Duration
	// Others returns the number of other routers that decide for the same fleet at the moment. It must be quick. Nil: none.
	Others func() int
	// PredictFor is the time for which the index predicts a prompt's blocks on the picked rank, unless its events report them first; 0
	// predicts nothing. Nil: 5 s for workers with KVEvents, else 120 s.
	PredictFor func(rank fleet.Rank) time.Duration
	// Predicted receives each prediction that a rank will have the blocks of a prompt, and each one that is taken back, for the other
	// routers: see [Router.Expect]. It must not call the router. May be nil.
	Predicted predict.Made
	// Speeds are the first estimates of workers' speeds, by their model: the values of a measured profile. The estimate for other models
	// is perfmodel.DefaultSpeed().
	Speeds map[string]perfmodel.Speed
	// Shadow means that requests do not go where decisions send them, because another router decides. Nothing is booked or predicted, no
	// request waits in a queue, and a decision changes no estimate. Load is what engines report.
	Shadow bool
	// Relayed means that requests can be sent to a prefill and a decode worker at once: for transfers with an address.
	Relayed bool
	// Decided receives each final decision, with the sequence hashes of its prompt's complete blocks. It
	// must be quick, must not call the router, and must keep neither argument. May be nil.
	Decided func(d *decision.Decision, chain []blockhash.Sequence)
	// Counted receives each final decision about a whole request. It must be quick, must not call the router, and must not keep its
	// argument. May be nil.
	Counted func(d *decision.Decision)
	// Missing receives each loadable adapter of which a request was refused because no ready worker has it. It must be
	// quick and must not call the router. May be nil.
	Missing func(adapter string)
	// Starts returns whether a worker of a pool starts because requests wait for it. It is called for requests that find no ready worker,
	// must be quick, and must not call the router: a queue may be locked. Nil: none does.
	Starts func(pool string) Start
	// Outside has the blocks in caches outside engines; nil for none.
	Outside *score.Outside
	// Waits is called when a request has begun to wait for the start of a worker, and no other one waits for that pool. It must be quick
	// and must not call the router. May be nil.
	Waits func()
	// Served receives each request that has ended regularly: the rank that served it, when it was decided, and its
	// prompt's tokens, of which none count as cached if the decision picked another rank. It must be quick and must not
	// call the router. May be nil.
	Served func(rank fleet.Rank, decided time.Time, t pick.Tokens)
}

func (c Config) withDefaults() Config {
	if c.Decisions <= 0 {
		c.Decisions = 4096
	}
	if c.Candidates <= 0 {
		c.Candidates = 16
	}
	if c.Grace <= 0 {
		c.Grace = 10 * time.Second
	}
	if c.PredictFor == nil {
		c.PredictFor = defaultPredictFor
	}
	return c
}

// defaultPredictFor is short if events will report the blocks soon, and long if predictions are the only
// knowledge of the rank's cache.
func defaultPredictFor(rank fleet.Rank) time.Duration {
	if rank.Worker.KVEvents != "" {
		return 5 * time.Second
	}
	return 120 * time.Second
}

// Start is whether a worker of a pool starts because requests wait for it, and how soon it is ready.
type Start struct {
	// Not is why none starts, as a sentence has it after "and"; empty if one does.
	Not string
	// After is the time of a start, as far as is known.
	After time.Duration
	// Decode means that requests go to decode workers, which are not there yet.
	Decode bool
}

func (s Start) ok() bool { return s.Not == "" }
