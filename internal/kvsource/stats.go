package kvsource

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Stats are a source's figures since it started.
type Stats struct {
	Connected bool
	// LastSeq is the last message handed on and accepted, LastAt when; zero LastAt means none.
	LastSeq uint64
	LastAt  time.Time
	// Waiting is how many live messages wait now.
	Waiting int
	// Received are live messages, Bytes their size; Replayed those that a replay brought.
	Received, Bytes, Replayed uint64
	// Duplicates are live messages that a replay had brought before.
	Duplicates uint64
	// Malformed are messages that could not be decoded. They are handed on as empty batches
	// with one unknown event, so that the order goes on.
	Malformed uint64
	// Gaps are those that apply reported; Unrecovered are live messages behind a gap that was
	// not closed.
	Gaps, Unrecovered uint64
	// Replays were asked for; ReplayErrors did not end well.
	Replays, ReplayErrors uint64
	// Connects counts connections, the first included; Restarts the engine's, as far as seen.
	Connects, Restarts uint64
	// LastError is the last thing that went wrong, for people to read.
	LastError string
}

func (s Stats) String() string {
	return fmt.Sprintf("connected %v, seq %d, received %d, replayed %d, duplicates %d, malformed %d, gaps %d (unrecovered %d), connects %d, restarts %d",
		s.Connected, s.LastSeq, s.Received, s.Replayed, s.Duplicates, s.Malformed, s.Gaps, s.Unrecovered, s.Connects, s.Restarts)
}

// Stats returns the figures now. It is safe for concurrent use.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Waiting = len(s.live)
	return stats
}

// count changes the figures.
func (s *Source) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

// lost keeps and logs why there is no connection: loudly once, quietly while it stays so.
func (s *Source) lost(err error, quiet bool) {
	level := slog.LevelWarn
	if quiet {
		level = slog.LevelDebug
	}
	s.cfg.Logger.Log(context.Background(), level, "event connection lost", "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank, "err", err)
	s.count(func(st *Stats) {
		st.Connected = false
		st.LastError = fmt.Sprintf("connect to events: %v", err)
	})
}

// failed keeps and logs what went wrong.
func (s *Source) failed(what string, err error, change func(*Stats)) {
	s.cfg.Logger.Warn("event source in trouble", "what", what, "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank, "err", err)
	s.count(func(st *Stats) {
		change(st)
		st.LastError = fmt.Sprintf("%s: %v", what, err)
	})
}
