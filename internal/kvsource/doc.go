// Package kvsource listens to one rank's KV event socket and hands its messages on in order.
//
// Engines publish over ZMQ and forget: a subscriber that was away asks the engine's replay
// socket for what it missed. A [Source] does both. It subscribes first, replays second and
// lets live messages wait meanwhile, so that nothing falls between. What the messages mean,
// and whether one is missing, is the business of the apply function it is given: where that
// reports a gap, the source replays from where it says.
//
// # Restarts
//
// An engine that starts anew counts from 0 again and says nothing of it. A new process means
// a new connection, so after each the source asks for the last message it handed on: only
// the same process can answer with the same bytes. If the answer differs, or there is none,
// everything is replayed from 0, and apply sees the sequence number jump back. Counting
// alone would not do: an engine that restarts quickly may be past the old number when we
// are back, and its messages would look like the old one's.
//
// TensorRT-LLM has no socket; a source polls it over HTTP instead, see [DialectOf].
//
// # Finding the sockets
//
// [Discover] asks vLLM for the sockets of all its ranks. An engine whose endpoint names a host
// connects to it instead of binding; Config.Bind is for those.
//
// # Bounds
//
// A message is refused above Config.MaxMessage before any memory is set aside for it. Live
// messages that wait are bounded by Config.Buffer; beyond that the connection is not read, the
// engine's own queue fills, and what it then drops is found as a gap. Nothing is retried
// without a pause. While the stream is silent, the source asks every Config.Probe whether it
// missed something: a publisher does not tell a slow subscriber that it dropped the tail.
//
// # Concurrency
//
// [Source.Run] owns two goroutines, three where it binds, and is called once. apply is called from one goroutine.
package kvsource
