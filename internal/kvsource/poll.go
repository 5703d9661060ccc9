package kvsource

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TensorRT-LLM has no event socket. POST /kv_cache_events answers with the events since the last
// call, once: a second client would take events away, and there is no replay. Lost events show as a
// hole in the numbers of the events.

// decoders are the dialects that engines speak. The dialect Dynamo is not among them: the event plane speaks it, whose endpoints
// no configuration names. A socket of an engine without events may belong to a program beside it, which has to speak vLLM's dialect.
var decoders = map[engines.Dialect]kvevent.Dialect{
	engines.NoEvents: kvevent.VLLM, engines.VLLMEvents: kvevent.VLLM, engines.SGLangEvents: kvevent.SGLang,
	engines.TRTLLMEvents: kvevent.TRTLLM,
}

// DialectOf returns the dialect of an engine's messages at an endpoint. TensorRT-LLM has its own over HTTP; its bridges to ZMQ
// publish vLLM's.
func DialectOf(engine, endpoint string) kvevent.Dialect {
	d := decoders[engines.Of(engine).Dialect]
	if d == kvevent.TRTLLM && !overHTTP(endpoint) {
		return kvevent.VLLM
	}
	return d
}

func overHTTP(endpoint string) bool {
	return strings.HasPrefix(endpoint, "http://") || strings.HasPrefix(endpoint, "https://")
}

// The first and the longest pause between two polls.
const (
	pollMin = 5 * time.Millisecond
	pollMax = 100 * time.Millisecond
)

// poll polls until ctx ends. The pauses between polls grow while the answers are empty.
func (s *Source) poll(ctx context.Context) error {
	client := &http.Client{Timeout: s.cfg.Timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1, DialContext: s.cfg.Dial}}
	defer client.CloseIdleConnections()

	idle := backoff.Backoff{Min: pollMin, Max: pollMax}
	broken := s.cfg.backoff()
	order := numbering{}
	for ctx.Err() == nil {
		payload, err := ask(ctx, client, http.MethodPost, s.cfg.Endpoint, s.cfg.MaxMessage) // the events since the last call
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			s.pollFailed(err)
			_ = broken.Wait(ctx)
			continue
		}

		broken.Reset()
		s.pollSucceeded()
		if !s.deliverAnswer(ctx, payload, &order) {
			_ = idle.Wait(ctx)
			continue
		}
		idle.Reset()
	}
	return nil
}

// deliverAnswer delivers one answer and reports whether it contained events. While the consumer
// misses an earlier answer the engine is not polled.
func (s *Source) deliverAnswer(ctx context.Context, payload []byte, order *numbering) bool {
	if err := s.cfg.Dialect.Decode(payload, s.cfg.Limits, &s.batch); err != nil {
		s.failed("decode events", err, func(st *Stats) { st.Malformed++ })
		order.hole = true // the engine does not repeat the lost events
		return true
	}
	b := &s.batch
	if len(b.Events)+b.Unknown+b.Skipped == 0 && !b.Numbered {
		return false
	}
	b.Rank, b.Seconds = s.cfg.Rank, float64(time.Now().UnixMicro())/1e6
	seq, restarted := order.next(b)
	s.count(func(st *Stats) {
		st.Received++
		if restarted {
			st.Restarts++
		}
	})
	if restarted {
		s.consumer.Restarted()
	}

	// The answer cannot be asked for again, so it is offered until the consumer accepts it.
	err := s.persist(ctx, func() error {
		if _, gap := s.consumer.Batch(seq, b); gap {
			return errGapStays
		}
		return nil
	})
	s.count(func(st *Stats) {
		if errors.Is(err, errGapStays) {
			st.Gaps++
			st.Unrecovered++
		} else {
			st.LastSeq = seq
		}
	})
	return true
}

// pollSucceeded reports the connection once. It does not report CaughtUp: an empty answer does not
// prove that no other client took events away.
func (s *Source) pollSucceeded() {
	if s.connected() {
		return
	}
	s.countConnection()
	s.consumer.Connected(true)
}

func (s *Source) pollFailed(err error) {
	wasUp := s.connected()
	s.lost(err, !wasUp && s.Stats().LastError != "")
	if wasUp {
		s.consumer.Connected(false)
	}
}

// numbering gives sequence numbers to answers, from the numbers of their events. The sequence
// number rises by one while the events' numbers have no hole, and by two after a hole, so that the
// consumer sees a gap. Both start at 0 again when the engine restarts.
type numbering struct {
	begun bool
	seq   uint64 // of the next answer
	event uint64 // the number expected of the next event
	hole  bool   // events before the next answer are missing
}

// next returns the sequence number of an answer, and whether the engine restarted before it.
func (n *numbering) next(b *kvevent.Batch) (seq uint64, restarted bool) {
	switch {
	case !b.Numbered:
	case !n.begun || b.First < n.event:
		restarted = n.begun
		n.begun = true
		n.seq = 0
		n.hole = b.First != 0
	case b.First > n.event:
		n.hole = true
	}
	if n.hole {
		n.seq, n.hole = n.seq+1, false
	}
	seq = n.seq
	n.seq++
	if b.Numbered {
		n.event = b.Last + 1
	}
	return seq, restarted
}
