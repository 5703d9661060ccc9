// Package cachesync keeps a router's cache states exact: it applies the KV events that agents publish,
// and recovers the ranks that miss some.
//
// A [Syncer] compares the state of every rank with Exact a few times a second. It recovers each rank
// that is not exact from the rank's agent: by a replay of the missing batches if the agent remembers
// them, else by a snapshot of the cache and a replay of the batches after it. A lost message, a new
// worker, a bus that was away and a router that has just started all look the same to it: as a rank
// that is not exact. Package feed has the states of a rank; this package decides what to request, when,
// and how much at a time.
//
// # Events and states
//
// Each rank is idle or in recovery.
//
// "No pause any more" includes that a rank is not settled any more.
//
//	event                                   idle                     in recovery
//	--------------------------------------  -----------------------  --------------------------
//	message in order                        applied                  batch queued, mark dropped
//	message after a gap                     recovery starts unless   batch queued, mark dropped
//	                                        the pause is not over;
//	                                        a batch is then dropped
//	the rank is not exact (checked every    recovery starts unless   –
//	  reconcileEvery)                       the pause is not over, or
//	                                        the rank is settled
//	no message for silenceLimit             stale, then recovery     –
//	new epoch                               no pause any more        no pause any more
//	first message after half the silence    no pause any more        no pause any more
//	the bus is back                         no pause any more        no pause any more
//	recovery ended, exact                   –                        idle, short pause
//	a message with the state exact, or of   no pause any more        no pause any more
//	  an agent that has caught up, which
//	  it was not before
//	recovery ended, not exact               –                        idle, pause doubled
//	recovery ended, stale with all that     –                        idle and settled
//	  the agent has
//	recovery ended without an answer        –                        idle, pause of the node too
//	first message of the node after that    no pause of the node     no pause of the node
//
// When a recovery ends the queued batches are applied in order. Messages that the recovery has
// applied already are duplicates.
//
// # One recovery
//
//	the router has     the agent answers the replay       next
//	-----------------  ---------------------------------  ----------------------------------------
//	some batches       with all that is missing           exact
//	some batches       without the oldest missing ones    snapshot
//	some batches       with all, has missed earlier ones  exact
//	                   itself, and has caught up
//	some batches       not, or is not exact itself        failed
//	some batches       with all, but the rank is stale    snapshot, unless the rank is settled
//	no batch           –                                  snapshot
//
//	the snapshot is    next
//	-----------------  ----------------------------------------------------------------------------
//	restored           replay from its position: exact, or failed
//	not available      replay from the router's own position: exact, or failed
//	no better          the same: live batches were faster, or the agent's cache has a doubt too
//	not readable       failed
//
// # Bounds
//
// At most maxRecoveries run at a time, maxNodeRecoveries of one node, and the dumps of their snapshots share maxDumpBytes. Queued
// batches are bounded per rank and in total; a batch beyond the bound is dropped and replayed later.
//
// # Concurrency
//
// [Syncer.Run] owns every goroutine that it starts. All other methods are safe for concurrent use.
package cachesync
