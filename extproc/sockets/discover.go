package sockets

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kvsource"
)

const (
	// discoverSoon is the pause before an engine that has not answered yet is asked again.
	discoverSoon = 2 * time.Second
	// discoverAgain is the pause for an engine that has: after a restart its sockets may be others.
	discoverAgain = 30 * time.Second
	// discoverTimeout bounds one question.
	discoverTimeout = 5 * time.Second
)

var errNoEvents = errors.New("the engine publishes no events")

// discover reads the sockets that a worker's engine reports, until ctx ends. If the engine reports
// others the old ones are closed first.
func (c Config) discover(ctx context.Context, w fleet.Worker) {
	client := &http.Client{Timeout: discoverTimeout, Transport: &http.Transport{
		MaxIdleConnsPerHost: 1, DialContext: c.Engines.Dial(discoverTimeout),
	}}
	defer client.CloseIdleConnections()

	stop := func() {} // closes the sockets that are read now
	defer func() { stop() }()

	var current []kvsource.Socket
	logged := "" // the last error, which is not logged twice
	for ctx.Err() == nil {
		found, err := askSockets(ctx, client, w)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != logged:
			logged = err.Error()
			c.Log.Warn("event sockets not found; the worker's cache is predicted only", "worker", w.Name, "err", err)
		case err == nil && !slices.Equal(found, current):
			logged = ""
			stop()
			stop = c.start(ctx, w, found)
			current = found
		}

		// The pause is short only before the first answer: a new engine starts to listen soon.
		pause := discoverAgain
		if current == nil {
			pause = discoverSoon
		}
		_ = backoff.Sleep(ctx, pause)
	}
}

// askSockets returns the sockets of the engine's ranks, at least one. An engine without a page of them may publish all the same, at
// the default port of vLLM: older releases of it and SGLang have no such page.
func askSockets(ctx context.Context, client *http.Client, w fleet.Worker) ([]kvsource.Socket, error) {
	found, err := kvsource.Discover(ctx, client, "http://"+w.Address)
	switch {
	case errors.Is(err, kvsource.ErrNoDiscovery):
		return defaultSockets(w.Address, w.Ranks)
	case err == nil && len(found) == 0:
		err = errNoEvents
	}
	return found, err
}

// defaultPort is the port at which rank 0 of vLLM publishes by default. Rank r has the port raised by r.
const defaultPort = 5557

// defaultSockets returns the sockets of an engine that publishes at the default ports.
func defaultSockets(address string, ranks int) ([]kvsource.Socket, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var all []kvsource.Socket
	for rank := range ranks {
		at := net.JoinHostPort(host, strconv.Itoa(defaultPort+rank))
		all = append(all, kvsource.Socket{Rank: rank, Endpoint: "tcp://" + at})
	}
	return all, nil
}

// start reads these sockets of a worker until ctx ends or stop is called. stop returns after all of
// them are closed.
func (c Config) start(ctx context.Context, w fleet.Worker, found []kvsource.Socket) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup

	for _, at := range found {
		// Events of a rank that the fleet does not have would be ignored one by one.
		if at.Rank >= w.Ranks {
			c.Log.Warn("the engine has more ranks than the configuration", "worker", w.Name, "rank", at.Rank)
			continue
		}
		s, err := c.source(w, at)
		if err != nil {
			c.Log.Error("events not read", "worker", w.Name, "rank", at.Rank, "err", err)
			continue
		}
		c.Log.Info("event socket found", "worker", w.Name, "rank", at.Rank, "address", at.Endpoint)
		running.Go(func() { s.readSocket(ctx) })
	}

	return func() {
		cancel()
		running.Wait()
	}
}
