// Package route decides which rank takes a request.
//
// [Router.Decide] is one sentence: the prompt's tokens become blocks, the blocks an overlap
// with every rank's cache, overlap and load a cost, and the costs a pick that is booked in
// the same step. The [Decision] carries its reasons and prints them. The package does not
// talk to Envoy or engines, does not log or count for Prometheus ([Router.Stats] is for
// those who do), never waits, and is told the time.
//
// # Concurrency
//
// A Router is safe for concurrent use. Models are reloaded by swapping one pointer: a
// decision uses the models and the fleet that it found at its start. Decisions are
// immutable once returned.
//
// # Predictions
//
// After a pick the prompt's blocks are predicted on the picked rank, so that a burst with
// one prefix sticks together before the engine's first event. [Config.PredictFor] says for
// how long; without it, 5 s where the worker's events are read and 120 s where it has none.
package route
