// Package kvsource reads one rank's KV events from its engine and reports them to a [Consumer] in
// order.
//
// Engines publish over ZMQ to all connected subscribers. A subscriber that was away asks the engine's
// replay socket for the messages that it missed. A [Source] does both: it subscribes first and
// replays second, and live messages wait meanwhile, so that none falls between the two. The source
// decodes messages and does not interpret them: whether one is missing is decided by the consumer.
// After a gap the source replays from the number that the consumer asks for.
//
// # Restarts
//
// An engine that restarts counts its messages from 0 again and does not announce it. A new process
// implies a new connection. After each connection the source therefore asks for the last message
// that the consumer accepted: only the same process can answer with the same bytes, because each
// message contains its time. If the answer differs, or there is none, the source reports
// Restarted and replays everything from 0. Comparing numbers alone would not suffice: a restarted
// engine may have counted past the old number before the connection was back.
//
// A consumer that has kept its state over its own restart begins with Config.After, the last message in that state. The same comparison
// then shows whether the engine is still the process that sent it.
//
// TensorRT-LLM has no event socket; a source polls it over HTTP instead, see [DialectOf].
//
// # Events of a source
//
//	what happens                               the consumer's methods are called as follows
//	-----------------------------------------  ---------------------------------------------
//	a connection was made                      Connected(true), in order with the messages
//	  the engine answers with the last         Batch for each later message, CaughtUp
//	    message accepted
//	  the engine answers with other bytes      Restarted, Batch from number 0, CaughtUp
//	  the replay socket does not answer        retried for Config.Timeout, then live messages
//	                                           continue; they and probes try again
//	a live message arrives                     Batch
//	  Batch returns gap                        Batch from the number it returned
//	  its number is not above the one before   Restarted, Batch
//	  it is the first of a connection without  Restarted, Batch
//	    an answer, and not above the last one
//	    accepted
//	nothing arrives for Config.Probe           Batch for missed messages, CaughtUp
//	CaughtUp returns gap                       Batch from the number it returned, CaughtUp
//	the connection was lost                    Connected(false)
//
// Without a replay socket, and over HTTP, nothing can be asked again. CaughtUp is then never
// reported, and a process that restarts while the connection is away may remain unnoticed.
//
// # Finding the sockets
//
// [Discover] asks vLLM for the sockets of all its ranks. [ConfiguredSocket] computes them from a
// worker's configuration. An engine whose endpoint names a host connects to it instead of binding;
// Config.Bind is for those.
//
// # Bounds
//
// A message above Config.MaxMessage is refused before memory is allocated for it. The live messages
// that wait are bounded by Config.Buffer and Config.BufferBytes. Beyond that the source stops reading the connection, the
// engine's queue fills, and the messages that the engine then drops are found as a gap. Every retry
// is preceded by a pause. A publisher does not notify a slow subscriber of dropped messages, and a
// drop at the end of a stream leaves no gap. A source therefore asks the replay socket whenever the
// stream was silent for Config.Probe.
//
// # Concurrency
//
// [Source.Run] owns two goroutines, three if it binds, and is called once. It calls the consumer's
// methods one at a time, except Connected: that may be called during another.
package kvsource
