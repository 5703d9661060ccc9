// Package workeragent is the node agent. It starts engines, keeps them running, and publishes their
// state, load and KV events on the bus.
//
// Each engine has a supervisor: it starts the process, holds the worker's lease, probes health and load,
// and starts the engine again when it ends, after growing pauses. A relay reads the engine's KV events
// and publishes them with the epoch and a sequence number. A mirror applies the same events to an index, so
// that a router that starts late can pull a snapshot. The package does not decide how many engines there
// should be, and it does not route.
//
// # What routers get
//
//	lease, every third of its lifetime      the worker's address, state and epoch
//	load, twice a second                    running and waiting requests, use of the KV cache
//	batch, when the engine publishes one    its events, numbered
//	mark, at regular intervals              the number of the next batch
//	replay, on request                      the newest batches, up to Config.PastBatches
//	snapshot, on request                    a rank's cache at one position
//
// # Engines that survive
//
// An engine of a launch with Survive is started detached, see child.StartDetached, and recorded in the
// agent's [State]. An agent that finds the record of a running process with the command line that it would
// use itself adopts the process, in the same epoch. Its mirror begins with the cache that the agent before has saved, because the
// engine remembers the newest events only.
//
// # Engines that a plan starts and stops
//
// With Config.Scaled each launch is a slot, whose engine runs or not. The agent publishes its slots and follows the assignment
// of its node. Without an assignment the engines run that are not spare.
//
//	event                               effect
//	an assignment names a slot          its engine is started, and restarted when it ends
//	an assignment does not name it      its engine drains, ends, and its lease is removed
//	it is named again while it drains   it is ready again, as the same process
//	the planner or the bus is away      the last assignment stays
//
// # Launches that change
//
// Agent.Reload adds the engines of new launches, and drains and ends those whose launch has gone. An engine whose launch has other
// settings stays as it is until the agent's next start.
//
// # Concurrency
//
// Agent.Run owns every goroutine and every child process, and returns when all have ended, apart from engines
// that survive. A mutex
// guards the worker of each supervisor, because the holder of its lease reads it.
package workeragent
