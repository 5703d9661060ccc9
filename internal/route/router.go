package route

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/pick"
)

// Config is read by New and not changed later.
type Config struct {
	// Parse reads a request body: openai.Parse with the caller's limits. It may be nil where
	// every Request comes parsed.
	Parse func(ep prompt.Endpoint, body []byte) (*prompt.Request, error)
	// Seed makes decision ids and random choices. It must differ between replicas and
	// starts; the same seed and the same requests, one at a time, give the same decisions.
	Seed uint64
	// Decisions is how many are kept for Explain, and Candidates how many candidates each
	// keeps. Defaults 4096 and 16: together about 13 MiB when full.
	Decisions, Candidates int
	// MaxBookings bounds the bookings that have not ended; default 1,048,576. Requests
	// beyond it are routed but not counted.
	MaxBookings int
	// Grace is how old a booking must be before an engine's word that it is empty can end
	// it: longer than a request's way to the engine. Default 10 s.
	Grace time.Duration
	// PredictFor is how long a picked rank is taken to hold the prompt unless it says so
	// itself; 0 predicts nothing. Nil: 5 s for workers with KVEvents, else 120 s.
	PredictFor func(rank fleet.Rank) time.Duration
	// Speeds are what workers are believed to be at first, by their model: what a profile says. Those
	// of other models are believed to be perfmodel.DefaultSpeed().
	Speeds map[string]perfmodel.Speed
	// Decided is told of each final decision, with the sequence hashes of its prompt's complete
	// blocks. It must be quick, must not call the router, and must keep neither. Nil is not told.
	Decided func(d *Decision, chain []blockhash.Sequence)
	// Served is told of each request that has ended regularly: where it was booked, when it was
	// decided, and its prompt's tokens with those that the decision took for cached. It must be
	// quick and must not call the router. Nil is not told.
	Served func(rank fleet.Rank, decided time.Time, prompt, cached int)
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
		c.PredictFor = predictFor
	}
	return c
}

func predictFor(rank fleet.Rank) time.Duration {
	if rank.Worker.KVEvents != "" {
		return 5 * time.Second
	}
	return 120 * time.Second
}

// Router decides. Create it with [New], then give it models.
type Router struct {
	cfg      Config
	fleet    *fleet.Fleet
	index    *kvindex.Index
	models   atomic.Pointer[map[string]*model]
	bookings *pick.Bookings
	speeds   speeds
	recent   ring
	counts   counts
	ids      atomic.Uint64
	latches  latches

	queues   atomic.Pointer[[]*waiting] // never changed once stored
	queuesMu sync.Mutex                 // held to store it
	queued   atomic.Int64               // who waits, in all of them

	mu   sync.Mutex
	idle []*scratch // guarded by mu; as many as there were decisions at one time
	made uint64     // guarded by mu
}

// New returns a router that serves no model until SetModels.
func New(cfg Config, f *fleet.Fleet, x *kvindex.Index) *Router {
	cfg = cfg.withDefaults()
	r := &Router{cfg: cfg, fleet: f, index: x, bookings: pick.NewBookings(cfg.MaxBookings)}
	r.bookings.Served = cfg.Served
	r.speeds.start, r.bookings.Prefilled = cfg.Speeds, r.speeds.prefilled
	r.recent.slots = make([]slot, cfg.Decisions)
	r.models.Store(&map[string]*model{})
	r.queues.Store(&[]*waiting{})
	return r
}

// take returns buffers and a random source for one decision. A stack, and not a sync.Pool:
// one caller alone always gets the same scratch, so a simulation repeats itself exactly.
func (r *Router) take() *scratch {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.idle); n > 0 {
		s := r.idle[n-1]
		r.idle = r.idle[:n-1]
		return s
	}
	r.made++
	return &scratch{rng: rand.New(rand.NewPCG(r.cfg.Seed, r.made))}
}

func (r *Router) give(s *scratch) {
	s.shed()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, s)
}

// NewID returns a fresh decision id, for a caller that must name the decision before it is made
// (see Request.ID). It has 16 hex digits: a counter that starts at the seed, mixed by a bijection, so
// that ids of one router never repeat and those of two do by chance alone.
func (r *Router) NewID() string {
	x := r.cfg.Seed + r.ids.Add(1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	var raw [8]byte
	var text [16]byte
	binary.BigEndian.PutUint64(raw[:], x^x>>31)
	hex.Encode(text[:], raw[:])
	return string(text[:])
}

// End ends the booking of a decision: its request is over, whatever became of it. False
// means that the booking had ended already or never was.
func (r *Router) End(id string, now time.Time) bool {
	ended := r.bookings.End(id, pick.Finished)
	r.Wake(now)
	return ended
}

// PrefillDone says that the decision's request has begun to answer. False means that this
// was known, or that there is no such booking.
func (r *Router) PrefillDone(id string, now time.Time) bool {
	done := r.bookings.PrefillDone(id, now)
	r.Wake(now)
	return done
}

// SettlePrefills takes the prefill off every booking whose prompt the picked rank's engine
// itself reports to hold by now, and returns how many there were. It is for a ticker: where
// no one watches responses, cache events are what tells prefill from decode. A rank that sends
// none, or sends them late, or none for a prompt that it holds already, is taken to be as fast as it
// was thought to be.
func (r *Router) SettlePrefills(now time.Time) int {
	n := r.bookings.Settle(func(k *pick.Booking) (pick.Progress, time.Time) {
		lag := k.Rank.Load.Lag()
		switch {
		case k.Last != 0 && r.index.Reported(k.Rank.ID, blockhash.Sequence(k.Last)):
			return pick.Computed, now.Add(-lag)
		case now.Sub(k.At) >= k.FirstToken && (k.Last == 0 || lag > late || r.silent(k.Rank)):
			return pick.Supposed, now
		}
		return pick.Pending, now
	}, now)
	r.Wake(now)
	return n
}

// late is how old events may be to be waited for.
const late = 50 * time.Millisecond

// silent says whether a rank tells nothing of its cache, so that predictions stand for it.
func (r *Router) silent(rank fleet.Rank) bool { return r.cfg.PredictFor(rank) > bridge }

// EndBefore ends the bookings of one Envoy that began before t, and returns how many: for
// an Envoy whose access-log stream has stayed closed.
func (r *Router) EndBefore(source string, t time.Time) int {
	return r.bookings.EndBefore(func(k *pick.Booking) bool { return k.Source == source }, t)
}

// Reported is told what an engine says of itself. It ends the bookings that an empty engine proves to
// be over, and returns how many.
func (r *Router) Reported(rank fleet.Rank, report fleet.Report) (ended int) {
	gaps, took := rank.Load.SetReport(report)
	r.speeds.decoded(rank.Worker, &report, gaps, took)
	ended = r.bookings.Reconcile(rank.ID, report.Running+report.Waiting, report.At, r.cfg.Grace)
	r.Wake(report.At)
	return ended
}

// RankGone ends all bookings on a rank whose epoch is over. It is safe to call from the
// fleet's hook of that name.
func (r *Router) RankGone(rank fleet.RankID) int {
	r.latches.gone(rank)
	return r.bookings.EndIf(pick.RankGone, func(_ string, k *pick.Booking) bool { return k.Rank.ID == rank })
}

// Bookings is how many requests are booked and have not ended.
func (r *Router) Bookings() int { return r.bookings.Len() }

// Explain returns a recent decision by its id.
func (r *Router) Explain(id string) (*Decision, bool) { return r.recent.find(id) }

// Recent returns up to n decisions, newest first.
func (r *Router) Recent(n int) []*Decision { return r.recent.newest(n) }
