package route

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

// predicts makes predictions of blocks, and takes them back. It is safe for concurrent use.
type predicts struct {
	index    *kvindex.Index
	lasts    func(fleet.Rank) time.Duration // how long a prediction lasts; 0 predicts nothing
	promises promises
}

// standForCache reports whether predictions stand for a rank's cache, because it publishes no events.
func (p *predicts) standForCache(rank fleet.Rank) bool { return p.lasts(rank) > shortPrediction }

// make makes the index expect the prompt's blocks on the picked rank, until its events report them. It
// remembers them, so that the prediction can be taken back if the request does not reach the rank.
func (p *predicts) make(id string, session uint64, chain []blockhash.Sequence, overlap *kvindex.Overlap, rank fleet.Rank, now time.Time) {
	ttl := p.lasts(rank)
	if ttl <= 0 || len(chain) == 0 {
		return
	}
	known := p.knownBlocks(overlap, chain, now, rank.ID, ttl)
	until := p.on(rank, chain, known, now)
	p.promises.make(id, session, chain, known, until)
}

// knownBlocks counts the prompt's blocks that need no new prediction, because the rank reports them,
// or because their prediction lasts for at least half of ttl. So the next turn of a conversation
// pays for its new blocks alone.
func (p *predicts) knownBlocks(overlap *kvindex.Overlap, chain []blockhash.Sequence, now time.Time, rank fleet.RankID, ttl time.Duration) int {
	known := overlap.Of(rank)[fleet.Device]
	if known == 0 {
		return 0
	}
	until, predicted := p.index.PredictedUntil(rank, chain[known-1])
	if predicted && until.Sub(now) < ttl/2 {
		return 0
	}
	return known
}

// on makes the index expect the blocks of a chain on a rank, except the first known ones, and returns
// until when; the zero time if it predicts nothing.
func (p *predicts) on(rank fleet.Rank, chain []blockhash.Sequence, known int, now time.Time) (until time.Time) {
	ttl, limit := p.lasts(rank), rank.Worker.Blocks
	if ttl <= 0 || known >= len(chain) {
		return time.Time{}
	}
	if ttl <= shortPrediction && (limit == 0 || limit > bridgeBlocks) {
		limit = bridgeBlocks
	}
	until = now.Add(ttl)
	p.index.Predict(rank.ID, chain, known, until, limit)
	return until
}

// withdraw takes the prediction of a request back. made is nil for a request without one.
func (p *predicts) withdraw(rank fleet.Rank, made *promise) {
	if made != nil {
		p.index.Withdraw(rank.ID, made.chain, made.from, made.until)
	}
}
