package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kvsource"
)

const (
	// autoEvents as a worker's kvEvents has its engine asked where it publishes.
	autoEvents = "auto"
	// bindEvents begins a kvEvents at which we wait for the engine to connect. The engine's own
	// tcp://*:port, copied by mistake, is not taken for it.
	bindEvents = "bind:"
)

// rankEndpoint is where a rank publishes: at the ports of rank 0 raised by its number.
func rankEndpoint(w fleet.Worker, rank int) (at kvsource.Found, bind bool, err error) {
	endpoint, bind := strings.CutPrefix(w.KVEvents, bindEvents)
	at.Rank = rank
	if at.Endpoint, err = kvsource.RaisePort(endpoint, rank); err != nil {
		return at, bind, fmt.Errorf("worker %s: kvEvents: %w", w.Name, err)
	}
	if at.Replay, err = kvsource.RaisePort(w.KVReplay, rank); err != nil {
		return at, bind, fmt.Errorf("worker %s: kvReplay: %w", w.Name, err)
	}
	return at, bind, nil
}

const (
	// discoverSoon spaces questions to an engine that has not answered, discoverAgain those to
	// one that has: after a restart its ports may be others.
	discoverSoon  = 2 * time.Second
	discoverAgain = 30 * time.Second
)

// followDiscovered reads the sockets that the worker's engine tells of, until ctx ends.
func (d *decider) followDiscovered(ctx context.Context, w fleet.Worker) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	var running sync.WaitGroup
	defer running.Wait()
	var last []kvsource.Found
	said := ""
	stop := func() {}
	defer func() { stop() }()
	for ctx.Err() == nil {
		found, err := kvsource.Discover(ctx, client, "http://"+w.Address)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("the engine publishes no events")
		}
		switch {
		case err != nil && ctx.Err() == nil && said != err.Error():
			said = err.Error()
			d.log.Warn("event sockets not found; its cache is guessed", "worker", w.Name, "err", err)
		case err == nil && !slices.Equal(found, last):
			said = ""
			stop()
			running.Wait()
			stop = d.startSockets(ctx, w, found, &running)
			last = found
		}
		wait := discoverAgain
		if last == nil {
			wait = discoverSoon
		}
		pauseFor(ctx, wait)
	}
}

// startSockets reads the sockets of the worker's ranks until stop is called or ctx ends.
func (d *decider) startSockets(ctx context.Context, w fleet.Worker, found []kvsource.Found, running *sync.WaitGroup) (stop func()) {
	ctx, stop = context.WithCancel(ctx)
	for _, at := range found {
		if at.Rank >= w.Ranks {
			d.log.Warn("the engine has more ranks than the configuration", "worker", w.Name, "rank", at.Rank)
			continue
		}
		s, err := d.openSocket(w, at, false)
		if err != nil {
			d.log.Error("events not read", "worker", w.Name, "rank", at.Rank, "err", err)
			continue
		}
		d.log.Info("event socket found", "worker", w.Name, "rank", at.Rank, "address", at.Endpoint)
		s.run(ctx, running)
	}
	return stop
}
