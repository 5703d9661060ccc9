package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
)

// followSockets reads the event sockets that the configuration names, until ctx ends: that is
// how a router works that has no bus. The engine's replay is then the only memory there is.
func (d *decider) followSockets(ctx context.Context, workers []fleet.Worker) error {
	var all sync.WaitGroup
	defer all.Wait()
	for _, w := range workers {
		switch w.KVEvents {
		case "":
			continue
		case autoEvents:
			all.Go(func() { d.followDiscovered(ctx, w) })
			continue
		}
		for rank := range w.Ranks {
			at, bind, err := rankEndpoint(w, rank)
			if err != nil {
				return err
			}
			s, err := d.openSocket(w, at, bind)
			if err != nil {
				return err
			}
			s.run(ctx, &all)
		}
	}
	return nil
}

// socket is one rank's event socket, read without an agent.
type socket struct {
	*decider
	worker fleet.Worker
	rank   int
	src    *kvsource.Source

	mu       sync.Mutex
	next     uint64 // guarded by mu; the number after the last batch that was applied
	restarts uint64 // guarded by mu; of the engine, that the feed was told
	proof    proof  // guarded by mu
}

// proof is what a source's figures must have passed for its silence to mean that there is
// nothing to say.
type proof struct {
	replays, errors uint64
	up              bool
}

const (
	// socketProbe is how soon a silent engine is asked whether its socket dropped something.
	socketProbe = time.Second
	// socketWatch is how often a source's figures are looked at.
	socketWatch = 250 * time.Millisecond
)

// openSocket is the socket of one rank, in its engine's dialect.
func (d *decider) openSocket(w fleet.Worker, at kvsource.Found, bind bool) (s *socket, err error) {
	s = &socket{decider: d, worker: w, rank: at.Rank}
	s.src, err = kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Topic: at.Topic, Bind: bind, Rank: at.Rank,
		Dialect: kvsource.DialectOf(w.Engine, at.Endpoint), BlockSize: w.BlockSize,
		Logger: d.log, Probe: socketProbe, Connected: s.connected,
	})
	if err != nil {
		return nil, fmt.Errorf("worker %s: %w", w.Name, err)
	}
	return s, nil
}

// run reads it until ctx ends, as two of all.
func (s *socket) run(ctx context.Context, all *sync.WaitGroup) {
	all.Go(func() { logEnd(s.log, "events of "+s.worker.Name, s.src.Run(ctx, s.apply)) })
	all.Go(func() { s.watch(ctx) })
}

func (s *socket) connected(up bool) {
	if !up {
		s.feed.Lost(s.worker.Name, s.rank)
	}
	stats := s.src.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proof = proof{stats.Replays, stats.ReplayErrors, up}
}

// apply hands a batch to the feed. A restart that the source has seen comes first: the new
// process may have counted past the old one.
func (s *socket) apply(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteRestarts(s.src.Stats())
	result := s.feed.Apply(&feed.Message{Worker: s.worker.Name, Epoch: s.worker.Epoch, Rank: s.rank, Seq: seq, Batch: b}, time.Now())
	if gap = result.Verdict == feed.Missing; !gap {
		s.next = seq + 1
	}
	return result.Resume, gap
}

// watch tells the feed what the source knows though no batch says it, until ctx ends: that the
// engine is a new process, or that it is the old one and has nothing more to say.
func (s *socket) watch(ctx context.Context) {
	tick := time.NewTicker(socketWatch)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look(s.src.Stats())
		case <-ctx.Done():
			return
		}
	}
}

func (s *socket) look(stats kvsource.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteRestarts(stats)
	switch p := &s.proof; {
	case !stats.Connected || stats.ReplayErrors != p.errors || !p.up:
		*p = proof{stats.Replays, stats.ReplayErrors, stats.Connected}
	case stats.Replays >= p.replays+2 && stats.Waiting == 0:
		// The source asks one after the other. A second request means that a first, of this
		// connection, was answered to its end.
		s.feed.Apply(&feed.Message{Worker: s.worker.Name, Epoch: s.worker.Epoch, Rank: s.rank, Seq: s.next, Mark: true}, time.Now())
		*p = proof{stats.Replays, stats.ReplayErrors, true}
	}
}

// noteRestarts drops what a process said that is no more. The source counts a restart before it
// hands on anything of the new process. s.mu is held.
func (s *socket) noteRestarts(stats kvsource.Stats) {
	if stats.Restarts != s.restarts {
		s.restarts, s.next = stats.Restarts, 0
		s.proof = proof{stats.Replays, stats.ReplayErrors, stats.Connected} // the new one's answer is still to come
		s.feed.Restarted(s.worker.Name, s.rank)
	}
}
