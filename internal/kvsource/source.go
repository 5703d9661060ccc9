package kvsource

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Source reads the events of one rank. Create it with [New].
type Source struct {
	cfg  Config
	live chan liveMessage
	// waiting is the size of the messages in live, in bytes. freed gets an element when it falls.
	waiting atomic.Int64
	freed   chan struct{}

	mu    sync.Mutex
	stats Stats // guarded by mu
	// lostLines, failedLines and restartLines bound the log lines; guarded by mu.
	lostLines, failedLines, restartLines lineLimit

	// All fields below belong to the goroutine of Run.
	consumer Consumer
	batch    kvevent.Batch
	// last is the message that the consumer accepted last from the present engine process.
	last lastMessage
	// keepLast means that last is a message of an earlier connection, and that the engine behind the present one
	// has not answered yet. It may be another process, so its messages must not replace last.
	keepLast bool
	// connection is the number of the connection that Run reads messages of, as Stats.Connects
	// counts them. The subscriber may be on a later one already.
	connection uint64
	// progress is the progress of that connection.
	progress progress
	// identified means that the engine behind the connection has answered a replay, so that its
	// process is known to be the one of last.
	identified bool
	// Replays that did not close a gap are spaced: none begins before retryAt.
	retry   backoff.Backoff
	retryAt time.Time
}

// lastMessage identifies one message of one engine process. Two processes never publish the same
// bytes, because each message contains its time.
type lastMessage struct {
	known bool
	seq   uint64
	sum   uint64 // hash of the payload
	// seconds is the message's time, by which a message of an earlier source is known; 0 if sum is set.
	seconds float64
}

// progress holds the next number of the live messages and of the replayed ones; 0 before the first.
type progress struct {
	live, replayed uint64
}

// New returns a source that does nothing until it is run.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure event source: %w", err)
	}

	cfg = cfg.withDefaults()
	s := &Source{cfg: cfg, live: make(chan liveMessage, cfg.Buffer), freed: make(chan struct{}, 1), retry: cfg.backoff()}
	s.batch.BlockSize, s.batch.Split = cfg.BlockSize, cfg.Split
	if cfg.After != nil {
		s.last = lastMessage{known: true, seq: cfg.After.Seq, seconds: cfg.After.Seconds}
	}
	if cfg.Dialect == kvevent.Dynamo { // one endpoint carries the messages of several ranks
		s.batch.Only = func(_ uint64, rank int) bool { return rank == cfg.Rank }
	}
	return s, nil
}

// Run reports events to c until ctx ends, and returns nil then. It must be called once.
func (s *Source) Run(ctx context.Context, c Consumer) error {
	s.consumer = c
	if overHTTP(s.cfg.Endpoint) {
		return s.poll(ctx)
	}

	ctx, cancel := context.WithCancel(ctx)
	var subscriber sync.WaitGroup
	defer subscriber.Wait()
	defer cancel()
	subscriber.Go(func() { s.subscribe(ctx) })

	probe := time.NewTicker(s.probeInterval())
	defer probe.Stop()

	for silent := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case m := <-s.live:
			s.taken(m)
			silent = false
			if m.connection != 0 {
				s.onConnection(ctx, m.connection)
			} else {
				s.onLive(ctx, m)
			}
		case <-probe.C:
			if silent && s.connected() {
				_ = s.catchUp(ctx) // logged; the next probe tries again
			}
			silent = true
		}
	}
}

// probeInterval is infinite without probes: a ticker cannot be off.
func (s *Source) probeInterval() time.Duration {
	if s.cfg.Probe < 0 || s.cfg.Replay == "" {
		return 1 << 62
	}
	return s.cfg.Probe
}

func (s *Source) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.stats.Connected
}

// onConnection reports a connection and catches up, while live messages wait. An engine opens its
// two sockets one after the other, so a replay without an answer is tried again for Config.Timeout.
// Then live messages continue, and each tries again after a pause.
func (s *Source) onConnection(ctx context.Context, number uint64) {
	s.connection = number
	s.progress = progress{}
	s.identified = false
	s.keepLast = s.last.known && s.cfg.Replay != ""
	s.reportConnection()

	if s.cfg.Replay != "" {
		_ = s.persist(ctx, func() error { return s.catchUp(ctx) }) // logged by each attempt
	}
}

// reportConnection reports the connection, unless it was lost since. The mutex is held during the
// report: a loss of the connection also needs it, so it is reported after this.
func (s *Source) reportConnection() {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.stats.Connected && s.stats.Connects == s.connection {
		s.consumer.Connected(true)
	}
}

// persist calls try until it succeeds, with growing pauses, for at most Config.Timeout.
func (s *Source) persist(ctx context.Context, try func() error) error {
	pauses := s.cfg.backoff()
	deadline := time.Now().Add(s.cfg.Timeout)
	for {
		err := try()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		_ = pauses.Wait(ctx)
	}
}

// catchUp delivers every message that the engine has and reports that nothing is missing. A consumer
// may have dropped messages that it had accepted: then they are replayed too.
func (s *Source) catchUp(ctx context.Context) error {
	if err := s.resync(ctx); err != nil {
		return err
	}
	resume, gap := s.reportCaughtUp()
	if !gap {
		return nil
	}

	if err := s.replay(ctx, resume); err != nil {
		return err
	}
	if _, gap := s.reportCaughtUp(); gap {
		return errGapStays
	}
	return nil
}

// resync replays the messages after the last one accepted if the engine is the process that sent
// it, and all messages otherwise.
func (s *Source) resync(ctx context.Context) error {
	if s.last.known {
		same, err := s.replayAfterLast(ctx)
		if err != nil || same {
			s.identified = s.identified || same
			return err
		}
		s.processChanged()
	}

	err := s.replay(ctx, 0)
	s.identified = s.identified || err == nil
	return err
}

// isLast reports whether a message is the last one accepted.
func (s *Source) isLast(seq uint64, payload []byte) bool {
	switch {
	case seq != s.last.seq:
		return false
	case s.last.seconds == 0:
		return xxh3.Hash(payload) == s.last.sum
	}
	return s.cfg.Dialect.Decode(payload, s.cfg.Limits, &s.batch) == nil && s.batch.Seconds == s.last.seconds
}

// reportCaughtUp reports that nothing is missing, unless the connection was lost since. The mutex is
// held during the report: a loss of the connection also needs it, so the consumer cannot receive
// CaughtUp after the Connected(false) that voids it.
func (s *Source) reportCaughtUp() (resume uint64, gap bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.stats.Connected || s.stats.Connects != s.connection {
		return 0, false
	}
	next := uint64(0) // last is of this connection: the engine has answered
	if s.last.known {
		next = s.last.seq + 1
	}
	return s.consumer.CaughtUp(next)
}

// processChanged reports a new engine process. An engine whose replay buffer no longer contains the
// last message accepted cannot be distinguished from a new one, and is treated as one. The cost is a
// rebuild of the rank, from the oldest message that the engine still has.
func (s *Source) processChanged() {
	s.last = lastMessage{}
	s.keepLast = false
	s.progress.replayed = 0
	s.count(func(st *Stats) { st.Restarts++ })
	if attributes, ok := s.admit(&s.restartLines); ok {
		s.cfg.Logger.Info("engine restarted", attributes...)
	}

	s.consumer.Restarted()
}

// identify asks the engine of a connection whose replay socket has not answered yet, unless the pause after
// the last attempt is not over.
func (s *Source) identify(ctx context.Context) {
	if s.identified || s.cfg.Replay == "" || time.Now().Before(s.retryAt) {
		return
	}

	if err := s.catchUp(ctx); err != nil { // logged
		s.retryAt = time.Now().Add(s.retry.Next())
		return
	}
	s.retry.Reset()
}

// onLive delivers one live message. After a gap it replays, unless the last replay did not help and its pause
// is not over: without the pause every message after an unrecoverable gap would cause a replay.
func (s *Source) onLive(ctx context.Context, m liveMessage) {
	s.identify(ctx)

	switch {
	case m.seq < s.progress.live:
		// Numbers rise on one connection. A proxy may have reconnected to a new process.
		s.processChanged()
	case !s.identified && s.progress.live == 0 && s.last.known && m.seq <= s.last.seq:
		// No process publishes a message twice, so the connection is to a new one.
		s.processChanged()
	case m.seq < s.progress.replayed:
		s.progress.live = m.seq + 1
		return
	}

	s.progress.live = m.seq + 1
	resume, gap := s.deliver(m)
	if !gap {
		return
	}
	if s.cfg.Replay == "" || time.Now().Before(s.retryAt) {
		s.count(func(st *Stats) { st.Unrecovered++ })
		return
	}
	s.closeGap(ctx, m, resume)
}

// closeGap replays from resume until the consumer accepts m, for at most Config.Timeout. The
// engine answers a replay between two messages and may not have stored the newest one yet. So m is
// delivered again if the replay ended before it.
func (s *Source) closeGap(ctx context.Context, m liveMessage, resume uint64) {
	err := s.persist(ctx, func() (err error) {
		if s.identified {
			err = s.replay(ctx, resume)
		} else {
			err = s.resync(ctx)
		}
		if err != nil || s.progress.replayed > m.seq {
			return err
		}

		var gap bool
		resume, gap = s.deliver(m)
		if gap {
			return errGapStays
		}
		return nil
	})
	if err == nil {
		s.retry.Reset()
		s.retryAt = time.Time{}
		return
	}

	s.retryAt = time.Now().Add(s.retry.Next())
	s.count(func(st *Stats) { st.Unrecovered++ })
}

// deliver decodes one message and hands it to the consumer. A message that cannot be decoded is
// delivered as an empty batch with one unknown event, so that the numbers stay without a hole.
func (s *Source) deliver(m liveMessage) (resume uint64, gap bool) {
	if m.other {
		s.batch.Reset()
		s.batch.Seconds = kvevent.DecodeTime(m.payload)
	} else if err := s.cfg.Dialect.Decode(m.payload, s.cfg.Limits, &s.batch); err != nil {
		s.batch.Unknown = 1
		s.failed("decode event message", err, func(st *Stats) { st.Malformed++ })
	}
	s.batch.Rank = s.cfg.Rank

	resume, gap = s.consumer.Batch(m.seq, &s.batch)
	if gap {
		s.count(func(st *Stats) { st.Gaps++ })
		return resume, true
	}
	if !s.keepLast {
		s.last = lastMessage{known: true, seq: m.seq, sum: xxh3.Hash(m.payload)}
	}
	s.count(func(st *Stats) { st.LastSeq = m.seq })
	return 0, false
}
