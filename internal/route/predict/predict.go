package predict

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvindex"
)

// Predictions of at most shortPrediction only bridge the time until the engine's events. They need few
// blocks: bridgeBlocks are 260,000 tokens of 16 to a block. A longer prediction stands for the rank's
// whole cache, and may have as many blocks as that.
const (
	shortPrediction = 10 * time.Second
	bridgeBlocks    = 1 << 14
)

// Predictor makes predictions of blocks, and takes them back. It is safe for concurrent use.
type Predictor struct {
	index    *kvindex.Index
	lasts    func(fleet.Rank) time.Duration // how long a prediction lasts; 0 predicts nothing
	made     Made
	promises promises
}

// Prediction is the expectation that a rank will have the blocks of a prompt.
type Prediction struct {
	Rank fleet.Rank
	// Chain are the blocks, of the engine's size. The rank has the first Known of them already.
	Chain []blockhash.Sequence
	Known int
	// Computed is when the prompt is expected to be computed. The time of the prediction begins then.
	Computed time.Time
	// Withdrawn means that the prediction is taken back, because the request did not reach the rank.
	Withdrawn bool
}

// Made receives each prediction about a request of this router, and each one that is taken back. It must be quick, and must not keep
// its chain.
type Made func(p Prediction)

// New returns a predictor that writes to an index. lasts returns how long a prediction on a rank lasts; 0 predicts nothing there. made may
// be nil.
func New(x *kvindex.Index, lasts func(fleet.Rank) time.Duration, made Made) *Predictor {
	p := &Predictor{index: x, lasts: lasts, made: made}
	p.promises.init()
	return p
}

// Take removes a request's promise and returns it; nil for none. The caller must call Recycle with it.
func (p *Predictor) Take(id string) *Promise { return p.promises.take(id) }

// Recycle keeps the memory of a promise for later requests. It accepts nil.
func (p *Predictor) Recycle(id string, made *Promise) { p.promises.recycle(id, made) }

// Forget forgets a request's promise.
func (p *Predictor) Forget(id string) { p.promises.drop(id) }

// Promised returns the number of predictions that can be taken back, and lost the number of all requests that found no room.
func (p *Predictor) Promised() (n int, lost uint64) { return p.promises.len(), p.promises.lost.Load() }

// StandForCache reports whether predictions stand for a rank's cache, because it publishes no events.
func (p *Predictor) StandForCache(rank fleet.Rank) bool { return p.lasts(rank) > shortPrediction }

// Predict makes the index expect the prompt's blocks on the picked rank, whose device has the first held of them, until its events report
// them. The time of the prediction begins when the prompt is expected to be computed, because it may wait for long. Predict remembers the
// blocks, so that the prediction can be taken back if the request does not reach the rank. Without a prediction it remembers the session
// alone.
func (p *Predictor) Predict(id string, session uint64, chain []blockhash.Sequence, held int, rank fleet.Rank, computed time.Time) {
	ttl := p.lasts(rank)
	if ttl <= 0 || len(chain) == 0 {
		if session != 0 {
			p.promises.make(id, session, nil, 0, time.Time{})
		}
		return
	}
	made := Prediction{Rank: rank, Chain: chain, Computed: computed}
	made.Known = p.knownBlocks(chain[:min(held, len(chain))], computed, rank.ID, ttl)
	p.tell(made)
	p.promises.make(id, session, chain, made.Known, computed)
}

// knownBlocks counts the held blocks that need no new prediction, because the rank reports them, or because their prediction lasts for
// nearly as long as a new one would. So a turn of a conversation that soon follows another pays for its new blocks alone. The predictions
// of a rank without events are dropped in the order in which they end, so an early end would make its cache forget what is in use.
func (p *Predictor) knownBlocks(held []blockhash.Sequence, computed time.Time, rank fleet.RankID, ttl time.Duration) int {
	if len(held) == 0 {
		return 0
	}
	until, predicted := p.index.PredictedUntil(rank, held[len(held)-1])
	if predicted && until.Sub(computed) < ttl*9/10 {
		return 0
	}
	return len(held)
}

// tell applies a prediction about a request of this router, and hands it on.
func (p *Predictor) tell(made Prediction) {
	p.apply(made, 0)
	if p.made != nil && made.Known < len(made.Chain) {
		p.made(made)
	}
}

// Move predicts the blocks of a request on the rank that has served it in place of the picked one.
func (p *Predictor) Move(made *Promise, served fleet.Rank, now time.Time) {
	if made != nil {
		p.tell(Prediction{Rank: served, Chain: made.Chain, Computed: now})
	}
}

// Withdraw takes the prediction of a request back. made is nil for a request without one.
func (p *Predictor) Withdraw(rank fleet.Rank, made *Promise) {
	if made != nil {
		p.tell(Prediction{Rank: rank, Chain: made.Chain, Known: made.known, Computed: made.computed, Withdrawn: true})
	}
}

// onTheWay bounds by how much the ways of two messages between routers differ, of a prediction and its withdrawal.
const onTheWay = time.Second

// Expect applies a prediction of another router. If it is a withdrawal, predictions of other requests that end within a second after it are
// taken back, too: the two messages were on their way for different times.
func (p *Predictor) Expect(made Prediction) { p.apply(made, onTheWay) }

// apply writes a prediction to the index. A withdrawal leaves predictions that end by more than slack later.
func (p *Predictor) apply(made Prediction, slack time.Duration) {
	rank := made.Rank
	ttl, limit := p.lasts(rank), rank.Worker.Blocks
	if ttl <= 0 {
		return
	}
	until := made.Computed.Add(ttl)
	if made.Withdrawn {
		p.index.Withdraw(rank.ID, made.Chain, made.Known, until.Add(slack))
		return
	}
	if ttl <= shortPrediction && (limit == 0 || limit > bridgeBlocks) {
		limit = bridgeBlocks
	}
	p.index.Predict(rank.ID, made.Chain, made.Known, until, limit)
}
