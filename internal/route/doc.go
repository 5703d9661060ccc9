// Package route decides which rank takes a request.
//
// [Router.Decide] is one sentence: the prompt's tokens become blocks; the blocks overlap with every rank's
// cache; overlap and load make a cost; and the costs make a pick, which is booked in the same step. Three
// values are handed on between the steps: the request as it was asked, the field of ranks that may take
// it, and the judged candidates. The [Decision] carries its reasons and prints them.
//
// The package does not talk to Envoy or engines. It does not log; [Router.Stats] has counters. It never
// waits, and the caller passes the time.
//
// # Outcomes
//
// A request is Picked, Refused with a [Reason], or Queued. A queued request gets its final decision when
// a booking ends, or when its wait does: see [Ticket].
//
// # Stability
//
// The learned speed of a worker changes the routing of requests, and their routing changes the learned speed. This loop must not make equal
// workers unequal. It does not, for these reasons:
//
//   - An observation has the load under which it was made: the tokens of the prompts, the requests that decode beside them, and their
//     contexts. [perfmodel.Learned] explains the time by these. Only the remaining error can be the worker's.
//   - A wait is never observed as work. The time until a prompt is computed shows nothing while requests wait in the engine's
//     queue, nor the time of one prompt while others follow it: then their sum is observed. See [fleet.PrefillPeriod].
//   - The pace of a rank is 1 unless observations differ clearly from its class's observations ([fleet.PaceStats]). So paces of equal ranks
//     are equal, not only nearly equal. When the latest observations differ clearly from older ones, the older ones are forgotten.
//   - All terms of the cost grow with the load of a rank, and none falls with it. A rank that gets more than its share becomes
//     dearer at once, by its bookings, before anything is learned.
//   - A slow worker has larger terms in proportion to its pace, and so gets fewer requests. It is tried again because its pace
//     falls to 1 while nothing is observed.
//
// The tests of package sim that are named Stability play this in virtual time: noise and stalls, one slow worker, a slow spell, late
// events, several routers.
//
// # Races between decisions
//
// Decisions run in parallel and take no common lock. A decision judges a rank by its load, and books only
// if that load is still the same; else it judges again. So two prompts that come at once see each other,
// and the second one is not sent to the rank that the first one has just filled. Of several decisions at
// least one succeeds in each round.
//
// A queue is different: its requests are decided one after the other under the queue's lock, because its
// purpose is the order among them.
//
// # Concurrency
//
// A Router is safe for concurrent use. Models are reloaded by swapping one pointer: a decision uses the models and the fleet that it found
// at its start. Decisions are immutable once returned.
//
// # Predictions
//
// After a pick the index predicts the prompt's blocks on the picked rank, so that a burst with one prefix
// goes to one rank before the engine's first event. [Config.PredictFor] sets how long a prediction lasts:
// by default 5 s on workers that publish events, and 120 s on others. A request that ends on another worker,
// or on none, takes its prediction back: see [Router.Ended].
package route
