// Package xds turns the fleet into Envoy's configuration and serves it.
//
// [Build] is the only builder: pure, from a fleet snapshot and the gateway's settings to
// one listener, one route table, and a cluster with its endpoints for each model.
// [Server] pushes what Build returns over delta ADS, at most once a second. The package
// does not decide where a request goes; it makes it possible to say so, and says what
// Envoy does when nobody is there to decide: affinity first, weights else.
//
// # What changes and what does not
//
// Clusters stay byte-identical while a model exists; everything volatile lies in the
// endpoints, because Envoy warms a changed cluster for as long as its initial fetch
// timeout. Where a cluster does change, its endpoints are pushed with changed content.
//
// # Concurrency
//
// Build is pure. Server.Run owns its one goroutine and the caches' only writer.
package xds
