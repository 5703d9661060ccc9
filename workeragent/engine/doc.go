// Package engine launches and probes each kind of engine.
//
// A [Launch] describes an engine to start. [Launch.Build] turns it into a command line and the addresses
// that the engine will serve on, and a [Probe] reads the health and load of a running engine over HTTP.
// The package starts no process: package workeragent does, and keeps it alive.
package engine
