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

// Made receives each prediction about a request: the rank, the chain of the prompt, of which the rank has the first known blocks, and when
// it is expected to be computed. It must be quick, and must not keep chain.
type Made func(rank fleet.Rank, chain []blockhash.Sequence, known int, computed time.Time)

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
	known := p.knownBlocks(chain[:min(held, len(chain))], computed, rank.ID, ttl)
	until := p.PredictOn(rank, chain, known, computed)
	if p.made != nil && known < len(chain) {
		p.made(rank, chain, known, computed)
	}
	p.promises.make(id, session, chain, known, until)
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

// PredictOn makes the index expect the blocks of a chain, which is computed at some time, on a rank, except the first known ones. It
// returns until when; the zero time if it predicts nothing.
func (p *Predictor) PredictOn(rank fleet.Rank, chain []blockhash.Sequence, known int, computed time.Time) (until time.Time) {
	ttl, limit := p.lasts(rank), rank.Worker.Blocks
	if ttl <= 0 || known >= len(chain) {
		return time.Time{}
	}
	if ttl <= shortPrediction && (limit == 0 || limit > bridgeBlocks) {
		limit = bridgeBlocks
	}
	until = computed.Add(ttl)
	p.index.Predict(rank.ID, chain, known, until, limit)
	return until
}

// Withdraw takes the prediction of a request back. made is nil for a request without one.
func (p *Predictor) Withdraw(rank fleet.Rank, made *Promise) {
	if made != nil && len(made.Chain) > 0 {
		p.index.Withdraw(rank.ID, made.Chain, made.from, made.until)
	}
}
