// Package engine knows how each kind of engine is launched, probed and read.
//
// A [Launch] says which engine is wanted; [Launch.Build] turns it into a command line with
// the addresses it will serve on, and a [Probe] reads its health and load over HTTP. The
// package does not keep anything alive: package workeragent does.
//
// All values are safe for concurrent use once made.
package engine
