// Package learned has the values that a router learns from its own requests about classes of workers: how long passes and transfers
// take, how long answers become, and how often computed tokens are found in a cache again.
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
package learned
