// Package sim is a fleet in virtual time: simulated engines, and before them the real router.
//
// It is the judge of routing. [Run] plays arrivals against engines (package sim/engine) whose
// passes take the time that a model of timing says; what engines say of their caches goes
// through the real event decoding, feed and index, as late as [Config] wants, and every request
// is decided by the real route.Router with its bookings and predictions. So a change of cost
// function, policy or index is measured by running it, and the figures are of the fleet: time
// to first token, time between tokens, how much of the prompts was reused, how evenly the load
// lay. The package does no I/O, starts no goroutine and draws from no randomness but the seed's:
// the same configuration and arrivals give the same result, to the byte.
//
// It does not simulate the network, Envoy, tokenization or HTTP: those cost the same whatever
// is decided, and are measured by running them.
//
// # What happens when
//
// Events are worked off in the order of their times, and of their making where times are equal.
// A request arrives, is decided at once by one of the router's replicas and joins its engine's
// queue; an engine with work begins a pass, once all else of that moment has happened, and ends it
// when the model of timing says. At the end of a pass tokens are emitted and the engine's events
// leave for every replica, which has them EventLag later. Every 20 ms in which there was news the
// routers look whose prompts are stored by now, and take their prefill off; a last token ends a
// booking, SignalLag later; what replicas have booked the others hear
// after BookLag. Every ReportEvery each engine's running and waiting counts reach all replicas, as
// a scrape of its metrics would.
//
// Where prefill workers are apart, a request is decided twice: its prompt is computed by one of them,
// leaves when that is done, and TransferBase and TransferToken later is decided anew for a worker
// that decodes.
//
// # Concurrency
//
// A run belongs to one goroutine; runs share nothing.
package sim
