// Package sim simulates a fleet in virtual time: simulated engines, and in front of them the real router.
//
// It measures routing. [Run] plays the arrivals of a trace against engines (package sim/engine), whose passes
// take the time that a model of timing gives. The KV events of the engines go through the real decoding, feed
// and index, with the delay that [Config] sets. Every request is decided by the real route.Router, with its
// bookings and predictions. So a change of the cost function, the policy or the index is measured by running
// it. The figures describe the fleet: time to first token, time between tokens, reuse of prompts, balance of
// load.
//
// The package does no I/O and starts no goroutine. Its only randomness comes from the seed: equal
// configurations and arrivals have equal results, to the byte. The network, Envoy, tokenization and HTTP are
// not simulated, because their cost does not depend on decisions.
//
// # A request
//
// A request arrives, and one of the replicas decides at once. The request joins the queue of the picked engine,
// or the queue of the router if all engines are busy. At the end of every pass the engine emits tokens and
// publishes the changes of its cache. The last token ends the request.
//
// With separate roles a request is decided twice, as by stator extproc: for a worker that decodes, and if that
// decision is split, for a worker that prefills. The second one computes the prompt. Then the KV cache is transferred,
// as far as the first one does not have it, and the request joins the queue of the first one.
//
// # Events
//
// Events are handled in order of time, and at equal times in order of creation. An idle engine begins its pass
// after all other events of its time.
//
//	event         its effect                                        the next events
//	arrival       a replica decides; the request joins a queue      arrival of the next request, passBegins
//	passBegins    an idle engine plans a pass                       passEnds, after the pass's duration
//	passEnds      tokens and cache events                           eventsCome, firstToken, lastToken, transferBegins, passBegins
//	eventsCome    every replica applies the cache events            settles
//	firstToken    the router books the prefill as done              bookingsCome
//	lastToken     the router ends the booking                       bookingsCome
//	settles       routers infer which prompts are computed          bookingsCome
//	transferBegins data flow; transfers of a worker share its bandwidth  transferEnds
//	transferEnds  a prompt joins the queue of its decode worker     passBegins, transferEnds
//	wakes         the longest wait in the router's queue is over
//	reports       every replica receives the engines' own load      reports, after ReportEvery
//	bookingsCome  the other replicas apply the bookings
//	workerDies    an engine fails all its requests                  workerStarts
//	workerStarts  an engine starts with an empty cache
//	plans         engines are started and drained                   workerReady, plans, after Planning.Every
//	workerReady   a new engine accepts requests
//
// # Transfers
//
// A transfer begins [Transfer].Base after the prefill. Its rate is the smaller one of its equal shares of its prefill
// worker's sending rate and its decode worker's receiving rate. Until it ends, its blocks stay in use on the prefill
// worker. On the decode worker it takes none: blocks for the prompt are allocated when the engine admits the request,
// after the transfer. Real engines allocate them before.
//
// # Pulls
//
// With [Config].Pull an engine may fetch the beginning of a prompt from another engine's cache, if the router expects that
// to be quicker than to compute it. The transfer has the bandwidth of the two workers, as the transfer of a computed prompt
// has. The request joins the queue of its engine when the blocks have come; the engine computes the rest. If the source
// dies in between, the engine computes all of it, as vLLM does. The router learns nothing from pulls: its estimate of their
// time is the estimate for transfers in general, without the other pulls from the same source.
//
// # Planning
//
// With [Config].Planning the number of engines changes during the run, as [Planning].Next decides. A new engine is starting
// for [Planning].StartUp, and then ready with an empty cache. An engine that is no longer wanted drains: routers send nothing
// more to it, it finishes its requests and the transfers that read its blocks, and leaves the fleet.
//
//	starting -> ready -> draining -> left       numbers and names of engines are never used again
//	      \       ^__________/ wanted again       an engine that is still starting, or is down, leaves at once
//
// If there are too many engines, those leave first that the plan drains by name. Then come starting engines, newest first,
// engines that are down, and engines with the fewest requests, queued tokens and tokens found in the cache. If there are too few,
// draining engines are taken back before new ones start. The last ready engine that takes requests never drains, so scaling loses
// no request.
//
// An observation has the demand of the time since the one before, and the engines' own figures without delay. The plan takes
// effect at once. The delays between a planner and its engines in a cluster are in [Planning].StartUp.
//
// GPU time counts from the beginning of an engine's start-up until it leaves, because its GPUs are taken for that long.
//
// # Concurrency
//
// A run belongs to one goroutine. Runs share nothing.
package sim
