// Package score computes the cost of a request on each eligible rank: by its cached prefix there, by the requests that wait and run
// there, and by the learned speed of the rank's worker.
//
// # Transfers
//
// The time of a transfer depends on the narrowest place that both workers share. The other worker of a candidate is
//
//	candidate                               the other worker
//	of which others can fetch prefixes      the source from which fetching saves most time: the best of each place is compared
//	decodes what another one computes       the prefill worker that costs least together with its transfer; it is chosen later
//	computes for a decode worker            that worker, which was chosen before
//
// If no place is known, all transfers are expected to take the same time, and nothing of this is computed for each candidate.
package score
