// Package extproc is the router process, which `stator extproc` runs, and `stator up` beside other parts.
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
//	engines' load            sockets           the same, for workers without an agent
//	bus: bookings            route/peers       fleet (loads that other replicas have booked)
//	bus: plan, planners      discovery         fleet (weights, drains), route (whether a worker starts for requests that wait)
//	bus: used tokens         quota             exchange (budgets of tenants), and back to the bus
//	bus: KV events           cachesync         feed, index
//	engines' sockets         sockets           feed, index
//	engines' health          discovery         fleet (states of workers without an agent)
//	engines' max_model_len   sockets, bus      fleet, then the context lengths of models
//	Envoy: requests          stream            route
//	Envoy: access log        accesslog         route (bookings end), decisionlog
//
// # Failures
//
// Without a bus connection the last known fleet and the indexed blocks stay in use; cache states are
// stale. A router that has just started does not listen until it has received the workers on the bus:
// without any it would refuse requests that Envoy, without a router, would serve.
//
// # Models that are idle
//
// A model with idleAfter has no worker while no request comes. A router publishes its demand at once when requests begin to wait for
// it, beside the reports of each second, and the planner starts a worker. The plan has the time of a start, and the presence of a
// planner on the bus shows whether anything starts at all. A router is ready although such a model has no worker: its requests are to
// come.
//
// # Reload
//
//	part of the configuration     effect of Router.Reload
//	----------------------------  ----------------------------------------------------------------
//	models, aliases, block sizes  used by the next decision; bookings and cache states stay
//	busy limits, queues, policies used by the next decision; queued requests are checked again
//	gateway: bodies, hints        used by the next request
//	expected numbers of parts     compared at once
//	listed workers                gone ones leave at once, and new ones join after 3 s; the others go on undisturbed
//	index, prompts, decision log  none: their memory and file are set up once
//
// A configuration that is wrong in one model changes nothing.
//
// # Drift
//
// Engines report how many prompt tokens they found in their caches. Package drift compares these counts with the promises of
// decisions. If the two differ by too much, the cause may be a bug here or in the engine, or a block size that does not match. The
// router then empties the worker's part of the index, and cachesync rebuilds it from the worker's agent. That is cheap compared
// with decisions on a wrong index.
//
// Two signs empty a worker's part of the index without a rebuild, because its agent and its replay would bring the same blocks again.
// An engine that reports to sleep has dropped its cache. An engine that found none of the promised tokens was reset while it was idle, and
// has not reported that: the rank is stale until an event shows that its cache was empty once.
//
// # Concurrency
//
// [Router.Run] owns every goroutine. [New] and [Router.Reload] must not be called at the same time. All
// other methods are safe for concurrent use.
//
// # Absent workers and parts
//
// [Router.Expected] compares the fleet with the engines that the configuration has agents launch, by model, role and node. Where
// launches have room for more or fewer engines the plan has the numbers, without nodes. Workers that the file lists are
// not compared: whether they serve is a matter of their health.
//
//	kind of part                                  expected number                  those that are there
//	--------------------------------------------  -------------------------------  --------------------------
//	workers of launches                           launch[].count, on each node     the fleet
//	workers of launches with min and max          the plan, on all nodes together  the fleet
//	routers, control planes, planners, KV stores  expected of the configuration    their messages on the bus
//
// Parts are counted when a lifetime of leases has passed since the router began to read their messages. An absent part changes no
// decision: /readyz names the kinds, metrics have both numbers, and the doctor has the remedy.
package extproc
