package kvsource

import (
	"fmt"
	"time"
)

// Stats are a source's counters since it started. An agent's /debug/agent shows them.
type Stats struct {
	Connected bool `json:"connected"`
	// LastSeq is the last message that the consumer accepted.
	LastSeq uint64 `json:"-"`
	// Waiting is the number of live messages that wait now, and WaitingBytes their size. BufferFull
	// counts how often the source stopped reading the connection because of Config.BufferBytes.
	Waiting      int    `json:"waiting"`
	WaitingBytes int64  `json:"waiting_bytes"`
	BufferFull   uint64 `json:"buffer_full"`
	// Received counts live messages, and Replayed counts replayed messages.
	Received uint64 `json:"received"`
	Replayed uint64 `json:"replayed"`
	// Malformed are messages that could not be decoded. They are delivered as empty batches with
	// one unknown event, so that the numbers stay without a hole.
	Malformed uint64 `json:"malformed"`
	// Gaps are batches that the consumer refused. Unrecovered are live messages after a gap that
	// was not closed.
	Gaps        uint64 `json:"gaps"`
	Unrecovered uint64 `json:"unrecovered"`
	// ReplayErrors counts replays that broke off.
	ReplayErrors uint64 `json:"replay_errors"`
	// Connects counts connections, the first included. Restarts counts new engine processes.
	Connects uint64 `json:"connects"`
	Restarts uint64 `json:"restarts"`
	// LastError is the most recent error, for people to read.
	LastError string `json:"last_error"`
}

// Stats returns the counters now. It is safe for concurrent use.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()

	stats := s.stats
	stats.Waiting = len(s.live)
	stats.WaitingBytes = s.waiting.Load()
	return stats
}

// count changes the counters.
func (s *Source) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change(&s.stats)
}

// countConnection counts a new connection and returns its number, which begins at 1.
func (s *Source) countConnection() (number uint64) {
	s.count(func(st *Stats) {
		st.Connected = true
		st.Connects++
		number = st.Connects
	})
	return number
}

// lost logs why there is no connection. quiet is for failures that repeat the one before.
func (s *Source) lost(err error, quiet bool) {
	if quiet {
		s.cfg.Logger.Debug("event connection lost", "err", err, "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank)
	} else if attributes, ok := s.admit(&s.lostLines); ok {
		s.cfg.Logger.Warn("event connection lost", append(attributes, "err", err)...)
	}

	s.count(func(st *Stats) {
		st.Connected = false
		st.LastError = fmt.Sprintf("connect to events: %v", err)
	})
}

// failed logs and counts an operation that went wrong.
func (s *Source) failed(operation string, err error, change func(*Stats)) {
	if attributes, ok := s.admit(&s.failedLines); ok {
		s.cfg.Logger.Warn("event source failed", append(attributes, "operation", operation, "err", err)...)
	}

	s.count(func(st *Stats) {
		change(st)
		st.LastError = fmt.Sprintf("%s: %v", operation, err)
	})
}

// admit reports whether a line of that kind may be logged, and returns the attributes that all lines have.
func (s *Source) admit(kind *lineLimit) (attributes []any, ok bool) {
	s.mu.Lock()
	leftOut, ok := kind.admit(time.Now())
	s.mu.Unlock()

	attributes = []any{"endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank}
	if leftOut > 0 {
		attributes = append(attributes, "left_out", leftOut)
	}
	return attributes, ok
}

// linesPerMinute bounds the lines of one kind that a source logs. A publisher can restart, or break a connection,
// thousands of times a minute.
const linesPerMinute = 4

// lineLimit counts the lines of one kind.
type lineLimit struct {
	begun   time.Time // of the present minute
	written int       // in this minute
	leftOut int       // since the last written line
}

// admit reports whether a line may be written now, and how many were left out before it.
func (l *lineLimit) admit(now time.Time) (leftOut int, ok bool) {
	if now.Sub(l.begun) >= time.Minute {
		l.begun, l.written = now, 0
	}
	if l.written == linesPerMinute {
		l.leftOut++
		return 0, false
	}

	leftOut = l.leftOut
	l.leftOut = 0
	l.written++
	return leftOut, true
}
