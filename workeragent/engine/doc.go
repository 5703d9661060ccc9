// Package engine launches each kind of engine.
//
// A [Launch] describes an engine to start. [Launch.Build] turns it into a command line and the addresses
// that the engine will serve on.
// The package starts no process: package workeragent does, and keeps it alive.
package engine
