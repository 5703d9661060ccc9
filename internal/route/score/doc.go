// Package score computes the cost of a request on each eligible rank: by its cached prefix there, by the requests that wait and run
// there, and by the learned speed of the rank's worker.
package score
