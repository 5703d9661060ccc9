// Package shadow makes the report of a shadow: a router that decides about copies of requests while another picker decides where they go.
//
// [Read] reads the shadow's decision log. It compares, by model, the tokens that the workers which served the requests had in their caches
// with the tokens that the shadow's picks had. [Model.Replay] plays the same arrivals in virtual time twice: with the placements that
// really happened, and with the router's own. Both runs have the same model of engines, so their difference is the effect of the router.
//
// A log is untrusted: its sizes are bounded, and a log that contradicts itself is an error. The package does no I/O. Values belong to one
// goroutine.
package shadow
