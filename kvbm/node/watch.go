package node

import (
	"context"
	"time"

	"github.com/stator-project/stator/internal/backoff"
)

// watchEvery is the time between two looks at the tiers.
const watchEvery = time.Second

// watch logs when the disk or the bucket does not work, or has errors, and when that is over: one line for each episode.
func (n *Node) watch(ctx context.Context) {
	last := map[string]Health{}
	for ctx.Err() == nil {
		n.mu.Lock()
		all := n.tiers()
		n.mu.Unlock()
		for i := range all {
			t := &all[i]
			if t.Tier != peerTier && t.Health != Starting { // each peer is logged by package peers
				n.logHealth(t, last[t.Tier])
				last[t.Tier] = t.Health
			}
		}
		_ = backoff.Sleep(ctx, watchEvery) // the loop ends with ctx
	}
}

// logHealth logs the health of a tier if it differs from the health before; empty is the first.
func (n *Node) logHealth(t *TierStatus, before Health) {
	log := n.cfg.Log.With("model", n.cfg.Model, "tier", t.Tier)
	switch {
	case t.Health == before:
	case t.Health == Failing:
		log.Warn("a tier of the KV store does not work; the others do", "err", t.Reason)
	case t.Health == Degraded && before != Failing:
		log.Warn("a tier of the KV store has errors", "err", t.Reason)
	case t.Health == Healthy && before != "":
		log.Info("a tier of the KV store works again")
	}
}
