// Package sockets reads the KV events of workers that have no agent, directly from their engines.
//
// The router uses it for the workers of its configuration. Without an agent the engine's own replay
// buffer is the only copy of past events, and a restarted engine has no new epoch: the source finds
// the restart by the engine's answers, see package kvsource.
//
// A worker's kvEvents is an endpoint, "bind:" and an endpoint, or "auto". With "auto" the package
// asks the engine for its sockets, and asks again regularly: after a restart they may have moved. Of an engine that has no page of them,
// the default ports of vLLM are read: 5557 and up.
//
// Batches that are missing, and that the engine cannot replay, are taken from another reader of the same sockets, if there is one: as a
// snapshot of the whole rank.
//
// It also asks the engine of each ready worker for its context length (max_model_len), the capacity of its cache and its load,
// as an agent would. The worker keeps its bookings and its cache.
//
// # Concurrency
//
// [Reader.Run] owns every goroutine that it starts, and returns after all of them.
package sockets
