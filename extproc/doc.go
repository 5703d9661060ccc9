// Package extproc is the router process: what `stator extproc` runs, and `stator up` beside other parts.
//
// A [Router] answers Envoy's external processor and receives its access log, both on one listener. It
// decides with package route, from an index of the workers' caches. The index is kept up to date by
// package cachesync, from the bus, or by package sockets, from the engines of configured workers.
//
//	from                     package           to
//	-----------------------  ----------------  --------------------------------------------------
//	configuration            config            models, workers, settings
//	bus: leases              discovery         fleet
//	bus: load                -                 route (bookings, speeds), drift
//	bus: bookings            route/peers       fleet (loads that other replicas have booked)
//	bus: KV events           cachesync         feed, index
//	engines' sockets         sockets           feed, index
//	Envoy: requests          stream            route
//	Envoy: access log        accesslog         route (bookings end), decisionlog
//
// # Failures
//
// Without a bus connection the last known fleet and the indexed blocks stay in use; cache states are
// stale. A router that has just started does not listen until it has received the workers on the bus:
// without any it would refuse requests that Envoy, without a router, would serve.
//
// # Concurrency
//
// [Router.Run] owns every goroutine. All other methods are safe for concurrent use.
package extproc
