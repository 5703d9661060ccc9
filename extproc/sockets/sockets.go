package sockets

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kvsource"
)

// probe is how soon a silent engine is asked for messages that its socket dropped.
const probe = time.Second

// Config says where events go.
type Config struct {
	Feed *feed.Feed
	Log  *slog.Logger
}

// Run reads the event sockets of the workers until ctx ends. Workers without kvEvents are left out.
// It returns an error, before it reads anything, if a socket's address is wrong.
func Run(ctx context.Context, cfg Config, workers []fleet.Worker) error {
	var sources []*source
	var discovered []fleet.Worker
	for _, w := range workers {
		if kvsource.Discovered(w.KVEvents) {
			discovered = append(discovered, w)
			continue
		}
		configured, err := cfg.configured(w)
		if err != nil {
			return fmt.Errorf("worker %s: %w", w.Name, err)
		}
		sources = append(sources, configured...)
	}

	var all sync.WaitGroup
	for _, s := range sources {
		all.Go(func() { s.run(ctx) })
	}
	for _, w := range discovered {
		all.Go(func() { cfg.discover(ctx, w) })
	}
	all.Wait()
	return nil
}

// configured returns the sources of a worker whose kvEvents is an endpoint, one per rank.
func (c Config) configured(w fleet.Worker) ([]*source, error) {
	if w.KVEvents == "" {
		return nil, nil
	}

	var sources []*source
	for rank := range w.Ranks {
		at, err := kvsource.ConfiguredSocket(w.KVEvents, w.KVReplay, rank)
		if err != nil {
			return nil, err
		}
		s, err := c.source(w, at)
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// source reads one rank's socket and applies its events to the feed.
type source struct {
	*kvsource.Source
	stream feed.Stream
	log    *slog.Logger
}

func (c Config) source(w fleet.Worker, at kvsource.Found) (*source, error) {
	src, err := kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Topic: at.Topic, Bind: at.Bind, Rank: at.Rank,
		Dialect: kvsource.DialectOf(w.Engine, at.Endpoint), BlockSize: w.BlockSize,
		Logger: c.Log, Probe: probe,
	})
	if err != nil {
		return nil, err
	}
	return &source{src, feed.Stream{Feed: c.Feed, Worker: w.Name, Epoch: w.Epoch, Rank: at.Rank, Now: time.Now}, c.Log}, nil
}

func (s *source) run(ctx context.Context) {
	if err := s.Run(ctx, &s.stream); err != nil {
		s.log.Error("event socket closed", "worker", s.stream.Worker, "rank", s.stream.Rank, "err", err)
	}
}
