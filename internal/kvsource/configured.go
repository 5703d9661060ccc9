package kvsource

import (
	"fmt"
	"strings"
)

// The forms of a worker's kvEvents in the configuration, besides an endpoint to connect to.
const (
	// auto asks the engine for its sockets.
	auto = "auto"
	// bindPrefix begins an endpoint that the source binds, and that the engine connects to. It is
	// explicit because an engine's own tcp://*:port is easily copied by mistake.
	bindPrefix = "bind:"
)

// Discovered reports whether a worker's kvEvents means that its engine is asked with [Discover].
func Discovered(kvEvents string) bool { return kvEvents == auto }

// Bound reports whether a worker's kvEvents means that the engine connects to the source.
func Bound(kvEvents string) bool { return strings.HasPrefix(kvEvents, bindPrefix) }

// ConfiguredSocket returns the socket of one rank of a worker with these kvEvents and kvReplay, which
// belong to rank 0: ports are raised by the rank, and paths of Unix sockets end in _dp and the rank.
func ConfiguredSocket(kvEvents, kvReplay string, rank int) (Socket, error) {
	f := Socket{Rank: rank, Bind: Bound(kvEvents)}
	var err error
	f.Endpoint, err = rankEndpoint(strings.TrimPrefix(kvEvents, bindPrefix), rank)
	if err != nil {
		return Socket{}, fmt.Errorf("kvEvents: %w", err)
	}
	f.Replay, err = rankEndpoint(kvReplay, rank)
	if err != nil {
		return Socket{}, fmt.Errorf("kvReplay: %w", err)
	}
	return f, nil
}
