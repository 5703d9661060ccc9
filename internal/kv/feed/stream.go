package feed

import (
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Stream applies the events of one engine process's rank to a feed, as a source reads them from the
// engine. Its methods implement kvsource.Consumer.
type Stream struct {
	Feed   *Feed
	Worker string
	Epoch  uint64 // 0 without an agent
	Rank   int
	// Now returns the time at which a message arrives.
	Now func() time.Time
}

// Apply applies one batch.
func (s *Stream) Apply(seq uint64, b *kvevent.Batch) Result {
	return s.Feed.Apply(&Message{Worker: s.Worker, Epoch: s.Epoch, Rank: s.Rank, Seq: seq, Batch: b}, s.Now())
}

// Batch applies one batch. If an earlier batch is missing it returns gap true, and the source
// has to replay from resume, this batch included.
func (s *Stream) Batch(seq uint64, b *kvevent.Batch) (resume uint64, gap bool) {
	result := s.Apply(seq, b)
	return result.Resume, result.Verdict == Missing
}

// CaughtUp reports that the engine is still the same process and that everything before number next has
// been delivered. It makes the rank exact, unless its index may differ from the cache. If a batch before next is
// missing it returns gap true, and the source has to replay from resume.
func (s *Stream) CaughtUp(next uint64) (resume uint64, gap bool) {
	mark := Message{Worker: s.Worker, Epoch: s.Epoch, Rank: s.Rank, Seq: next, Mark: true, State: Exact}
	result := s.Feed.Apply(&mark, s.Now())
	return result.Resume, result.Verdict == Missing
}

// Restarted reports that the engine is a new process: the rank is emptied.
func (s *Stream) Restarted() { s.Feed.Restarted(s.Worker, s.Rank) }

// Connected reports whether the engine's socket is connected. An exact rank becomes stale, until CaughtUp.
func (s *Stream) Connected(up bool) { s.Feed.Connected(s.Worker, s.Rank, up) }
