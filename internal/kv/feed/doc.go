// Package feed keeps an index of block hashes equal to the KV caches of a fleet's engines, by
// applying their events in order.
//
// The batches of one rank carry sequence numbers. The package drops duplicates and never applies a
// batch over a gap: [Feed.Apply] then returns the number from which the caller has to replay. A
// [State] per rank shows how far its part of the index can be trusted. The package reads no
// sockets, buffers no events and reads no clock: callers pass the time.
//
// # Events and states
//
// A rank is in one of the states None, Syncing, Exact and Stale. "Emptied" means that the rank's
// blocks leave the index and that its count starts again at 0.
//
//	event                                 effect, next state
//	------------------------------------  ------------------------------------------------------
//	batch 0 of an epoch                   applied, Exact
//	next batch in order, None or Syncing  applied, Exact
//	next batch in order, Exact            applied, Exact
//	next batch, Stale after Lost          applied, Exact: its number proves that none was missed
//	next batch, Stale after a given-up    applied, Stale: the lost events are still missing
//	  gap
//	batch after a gap                     refused with Missing, Syncing
//	batch after a gap that stayed open    emptied, then applied, Stale
//	  for Config.Patience
//	batch below the next number           Ignored as a duplicate, state unchanged
//	the same, but published later         emptied, Restarts counted, then as a first batch
//	batch of another epoch                Ignored, state unchanged
//	"cleared" event in a batch            emptied on all tiers, Exact
//	mark at the next number               Exact; unchanged after a given-up gap or in a gap
//	mark above the next number            Missing, Syncing: the last batches were lost
//	mark below the next number            Ignored: the mark was published before those batches
//	Lost: the source or bus is away       Exact becomes Stale, other states stay
//	Restarted: the source saw a new       emptied, None
//	  engine process
//	Forget: the rank's blocks are wrong   emptied, Syncing
//	Restore: a snapshot replaces all      Syncing; Stale where the snapshot is incomplete
//	RankGone: the fleet ended the epoch   the record is deleted
//
// # Restarts
//
// An agent gives each engine process an epoch, and a new epoch is a new rank. An engine that is
// read without an agent has no epoch: after a restart it counts from 0 again. A batch below the
// next number with a later timestamp is therefore a restart and not a duplicate.
//
// A restarted engine may also have counted past the next number, and then looks like a gap. A
// replay therefore begins at the last batch that was applied, and not at the one after it: the
// timestamp of that batch differs if the engine is a new process.
//
// # Snapshots
//
// [Feed.Snapshot] copies one rank's cache at one position in its events. [Feed.Restore] replaces a
// rank's cache by such a copy. It serves replicas of the router that start late, and gaps that no
// replay can fill. A replay from Snapshot.Next must follow.
//
// # Predictions
//
// Routers predict the blocks of a request on its rank before the engine reports them.
// [Feed.Lifetime] is how long such a prediction lasts: short for ranks whose events confirm it,
// long for the others.
//
// # Concurrency
//
// All methods are safe for concurrent use. Ranks are applied in parallel, the batches of one rank
// one at a time. Install [Feed.RankGone] as the fleet's hook of that name: then no batch of an
// ended epoch can reach the next owner of its rank ID.
package feed
