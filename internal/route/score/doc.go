// Package score computes what a request would cost on each eligible rank: by its cached prefix there, by what waits and runs there, and
// by the learned speed of the rank's worker.
package score
