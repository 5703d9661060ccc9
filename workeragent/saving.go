package workeragent

import (
	"context"
	"errors"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kvsource"
)

// An agent saves the caches of engines that survive it, so that the next agent needs only the events after that, of which the engine's
// replay buffer has the newest.
//
//	event                                      effect
//	-----------------------------------------  ------------------------------------------------------------
//	a tenth of Config.PastBatches was          saved, if the rank is exact: looked at every saveEvery
//	  published since it was saved
//	it cannot be saved, as the disk is full    the file before stays; tried again after as many batches
//	the engine has ended, or is started        removed
//	an agent adopts the engine                 the mirror begins with the file, and is not exact yet
//	  the engine can replay what follows       exact after it
//	  it cannot, or its numbers are others     the mirror is emptied, as without a file
//	  the file cannot be used                  logged, and as without a file

// The results of cache files in metrics.
const (
	cacheSaved    = "saved"
	cacheNotSaved = "not_saved"
	cacheRestored = "restored"
	cacheRefused  = "refused"
)

var (
	errNotWhole    = errors.New("blocks are missing from it, or its engine does not send the time")
	errOtherBlocks = errors.New("its blocks are of another size")
)

// saveEvery is the interval at which the agent looks for caches to save.
const saveEvery = 5 * time.Second

// saveParts is the part of the batches that a relay remembers, and vLLM too, after which a cache is saved again.
const saveParts = 10

// saveCaches saves the caches of surviving engines until ctx ends.
func (a *Agent) saveCaches(ctx context.Context) {
	for backoff.Sleep(ctx, saveEvery) == nil {
		for _, s := range a.roster.all() {
			for _, r := range s.survivingRelays() {
				r.save()
			}
		}
	}
}

// survivingRelays returns the relays of the running engine, if it survives the agent.
func (s *supervisor) survivingRelays() relays {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.launch.Survive {
		return nil
	}
	return s.relays
}

// save saves the rank's cache if it is exact, and enough was published since the last time. The rank's events wait while its blocks are
// copied, and not while they are written.
func (r *relay) save() {
	if !r.shouldSave() {
		return
	}
	c, ok := r.mirror.feed.Snapshot(r.worker.Name, r.worker.Epoch, r.rank)
	if !ok {
		return
	}
	err := errNotWhole
	if c.Complete && c.Next > 0 && c.Seconds > 0 {
		err = r.cfg.State.saveCache(&c)
	}
	result := cacheSaved
	if err != nil {
		result = cacheNotSaved
	}
	r.metrics.cacheFiles.WithLabelValues(result).Inc()

	r.mu.Lock()
	failedBefore := r.saveFailed
	r.saved, r.saveFailed = c.Next, err != nil
	r.mu.Unlock()
	if err != nil && !failedBefore {
		r.cfg.Log.Warn("cache state not saved; an agent that is started later may not know this cache",
			"worker", r.worker.Name, "rank", r.rank, "err", err)
	}
}

// shouldSave reports whether the rank is exact and enough was published since it was saved.
func (r *relay) shouldSave() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.next < r.saved { // the engine counts from 0 again
		r.saved = 0
	}
	return r.worker.KVReplay != "" && r.next-r.saved >= uint64(max(r.cfg.PastBatches/saveParts, 1)) && r.stateLocked() == feed.Exact
}

// beginWithFile fills the mirror with the cache that an earlier agent has saved of this process, and returns its last batch; nil if
// there is none. The rank is exact only when the engine has replayed what follows.
func (r *relay) beginWithFile() *kvsource.Position {
	if r.cfg.State == nil || r.worker.KVReplay == "" {
		return nil
	}
	c, err := r.cfg.State.readCache(r.worker.Name, r.worker.Epoch, r.rank)
	if c == nil && err == nil {
		return nil
	}
	if err == nil {
		err = r.restore(c)
	}
	if err != nil {
		r.metrics.cacheFiles.WithLabelValues(cacheRefused).Inc()
		r.cfg.Log.Warn("saved cache state not used", "worker", r.worker.Name, "rank", r.rank, "err", err)
		return nil
	}

	r.metrics.cacheFiles.WithLabelValues(cacheRestored).Inc()
	return &kvsource.Position{Seq: c.Next - 1, Seconds: c.Seconds}
}

// restore puts a cache into the empty mirror.
func (r *relay) restore(c *feed.Snapshot) error {
	if c.BlockSize != r.worker.TokensPerBlock() {
		return errOtherBlocks
	}
	if err := r.mirror.feed.Restore(c, r.now()); err != nil {
		return err
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.next, r.saved = c.Next, c.Next
	return nil
}
