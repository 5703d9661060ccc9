// Package feed keeps an index of block hashes equal to the KV caches of a fleet's engines, by
// applying their events in order.
//
// The batches of one rank carry sequence numbers. The package drops duplicates and never applies a
// batch over a gap: [Feed.Apply] then returns the number from which the caller has to replay. A
// [State] per rank shows how far its part of the index can be trusted. The package reads no
// sockets, buffers no events and reads no clock: callers pass the time.
//
// # Exact
//
// A rank is Exact only if two things are known:
//
//   - Its index equals the engine's cache after the last batch applied. The exception is the index's own
//     bound: blocks that the router evicted are missing from it, which lowers the hit rate and no more.
//   - Every later batch of the engine is on its way. One that is lost will show as a gap.
//
// Each observer knows a part of that:
//
//	observer              knows                                       cannot know
//	--------------------  ------------------------------------------  -------------------------------------
//	a batch's number      whether a batch before it is missing        whether one after it is missing; which
//	                                                                  process sent it
//	batch 0               nothing was published before it             -
//	a "cleared" event     the cache is empty after it                 -
//	CaughtUp of a source  the process is the same, and has            -
//	                      published nothing else
//	a source without a    the numbers of one connection               whether the next connection is to the
//	replay socket                                                     same process
//	a mark of an agent    the agent's number, and whether the agent   what the agent missed itself
//	                      is exact, or has caught up
//	a snapshot            the cache at one number, if it is complete  what came after it
//
// So the feed keeps two facts of each rank. Its doubt is why the index may differ from the cache; a doubt
// ends only when the cache has been empty once, or with a complete snapshot. Its tail is whether batches may
// be missing after the last one; a message with its agent's exact state proves the tail, and so does CaughtUp.
// An open gap makes the rank Syncing, else a doubt makes it Stale, else the tail decides.
//
// # Events and states
//
// A rank is in one of the states None, Syncing, Exact and Stale. "Emptied" means that the rank's
// blocks leave the index and that its count starts again at 0.
//
//	event                                 effect                          doubt      tail
//	------------------------------------  ------------------------------  ---------  -----------
//	batch 0 of a process                  applied                         ends       proved
//	next batch in order                   applied                         -          -
//	  its agent is exact                                                  -          proved
//	  its agent is not exact                                              -          interrupted
//	  its agent has caught up only                                        -          -
//	  with an event that was not readable                                 begins     -
//	  with blocks of another size         those are skipped               begins     -
//	  with a "cleared" event              emptied on all tiers            ends       proved
//	batch after a gap                     refused with Missing            -          -
//	batch after a gap that stayed open    emptied, then applied           begins     -
//	  for Config.Patience
//	batch below the next number           Ignored as a duplicate          -          -
//	the same, but of a later process      emptied, Restarts counted,      ends       unproved
//	                                      then as a first batch
//	batch of another epoch                Ignored                         -          -
//	mark at the next number               -                               -          proved
//	  its agent is not exact              -                               -          interrupted
//	  its agent has caught up only        -                               -          -
//	    it ends a replay that began with  -                               -          proved
//	    the last batch applied
//	  in a gap                            Ignored                         -          -
//	mark above the next number            Missing: batches were lost      -          -
//	mark below the next number            Ignored: the mark was           -          -
//	                                      published before those batches
//	Lost: the bus is away, or silent      -                               -          interrupted
//	Connected: the source's connection    Stale while it is lost          -          interrupted
//	  was made or lost
//	Restarted: the source saw a new       emptied                         ends       unknown
//	  engine process
//	Forget: the rank's blocks are wrong   emptied                         ends       unproved
//	Emptied: the engine sleeps            its blocks leave the index      ends       -
//	Missed: the engine found none of the  the same; ignored if blocks     begins     -
//	  promised blocks                       were removed since
//	Restore: a snapshot                   replaces all in one step        see below  unproved
//	RankGone: the fleet ended the epoch   the record is deleted           -          -
//
//	tail         state without gap and doubt
//	-----------  ---------------------------
//	unknown      None
//	unproved     Syncing
//	interrupted  Stale
//	proved       Exact
//
// A tail that was unknown stays so when it is interrupted. A restored rank has a doubt if the snapshot is
// incomplete or of another block size. [Reason] lists the doubts.
//
// An engine without a replay socket is Exact from batch 0 on while one connection lasts. After a new connection
// it is Stale until its cache is cleared or it restarts from 0. Its socket may drop the last batches of a stream
// without a trace until the next batch: a replay socket is needed to find those.
//
// # Restarts
//
// An agent gives each engine process an epoch, and a new epoch is a new rank. An engine that is
// read without an agent has no epoch: after a restart it counts from 0 again. A batch below the
// next number with a later timestamp is therefore a restart and not a duplicate. In a known epoch only batch 0
// can be one, because clocks step back.
//
// A restarted engine may also have counted past the next number, and then looks like a gap. A
// replay therefore begins at the last batch that was applied, and not at the one after it: the
// timestamp of that batch differs if the engine is a new process.
//
// # Numbers beyond the end
//
// A message with a wrong number, such as 2^62, opens a gap that no replay fills. Or it is applied when the gap is given up, and every
// later batch is then below the next number. An agent's answer to a replay states the end of the rank's events, and corrects both: the
// gap ends there, and a rank whose next number lies beyond it is emptied. A mark far below the next number makes the rank Stale, so
// that its agent is asked.
//
// # Agents that missed batches
//
// An agent that was started again may have missed batches that its engine cannot replay any more. Its own rank then has
// a doubt. But if it has caught up with its engine, it has each batch from some number on, and so has a router that knew
// the cache at such a number. The router has to be sure that both count the batches of one process: the agent must have
// replayed the last batch that the router has applied, with the same time.
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
// [Feed.Lifetime] is the life of such a prediction: short for ranks whose events confirm it, long
// for the others.
//
// # Concurrency
//
// All methods are safe for concurrent use. Ranks are applied in parallel, the batches of one rank
// one at a time. Install [Feed.RankGone] as the fleet's hook of that name: then no batch of an
// ended epoch can reach the next owner of its rank ID.
package feed
