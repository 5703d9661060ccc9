// Package feed applies what engines say of their caches to the index, in order.
//
// Each rank's events carry a sequence number. A duplicate is dropped, a gap is never
// guessed over: [Feed.Apply] asks its caller to replay and applies nothing meanwhile. What
// each rank's knowledge is worth is a [State] that anyone can read; there is no silent
// fallback. The package does not read sockets, does not buffer events (the engine's replay
// and the bus do), and is told the time.
//
// # Restarts
//
// A new epoch is a new rank: the fleet says so, and events of any other epoch are dropped.
// Where nobody can tell epochs, an engine that has restarted counts from 0 again: a number
// that was passed already, with a later timestamp, is a restart and not a duplicate. After
// a gap the replay is asked from the last event applied, not the one after it, so that an
// engine which restarted and has counted past us is found out by that event's timestamp.
//
// # Snapshots
//
// [Feed.Snapshot] is what is known of a rank at one place in its order, and [Feed.Restore] swaps
// it in whole: for a replica that starts late, or whose gap no replay can fill. It is followed
// by a replay from Snapshot.Next. Between batches, [Feed.Complete] tells what the rank's own
// count is: that is how the loss of a stream's last batches is found.
//
// # Predictions
//
// Routers predict what a rank will hold; [Feed.Lifetime] says for how long to believe it:
// briefly where events come (they will confirm it), longer where they do not.
//
// # Concurrency
//
// All methods are safe for concurrent use; ranks are applied in parallel. Wire
// [Feed.RankGone] to the fleet's hook of that name: then nothing is ever said of a rank
// whose ID has a new owner.
package feed
