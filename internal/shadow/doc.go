// Package shadow makes the report of a shadow: a router that decides about copies of requests while another picker decides where they go.
//
// [Read] reads the shadow's decision log. By model, it compares the tokens that the workers which served had in their caches with the
// tokens that the shadow's picks had. [Model.Predict] plays the same arrivals in virtual time: with the placements that really happened,
// and with the router's own. Both have the same simulated engines, with caches as large as the log shows, so they differ by the
// router alone.
//
// A log is untrusted: its sizes are bounded, and a log that contradicts itself is an error. The package does no I/O. Values belong to one
// goroutine.
package shadow
