package kvsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// TensorRT-LLM has no event socket: POST /kv_cache_events answers, once, with what has
// happened since the last call. Whoever else asks takes events away from us, and there is no
// replay; a hole shows in the events' own numbers.

// DialectOf is what an engine of that kind says at an endpoint. TensorRT-LLM speaks its own
// over HTTP; what is published for it over ZMQ is made like vLLM's.
func DialectOf(engine, endpoint string) kvevent.Dialect {
	d, err := kvevent.ParseDialect(engine)
	if err != nil || d == kvevent.TRTLLM && !overHTTP(endpoint) {
		return kvevent.VLLM
	}
	return d
}

func overHTTP(endpoint string) bool {
	return strings.HasPrefix(endpoint, "http://") || strings.HasPrefix(endpoint, "https://")
}

const (
	drainMin = 5 * time.Millisecond
	drainMax = 100 * time.Millisecond
)

// drain polls until ctx ends, soon again while there is something to hear.
func (s *Source) drain(ctx context.Context) error {
	client := &http.Client{Timeout: s.cfg.Timeout, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	idle := pause{min: drainMin, max: drainMax}
	broken := pause{min: s.cfg.RetryMin, max: s.cfg.RetryMax}
	order := numbering{}
	for ctx.Err() == nil {
		payload, err := s.poll(ctx, client)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			s.drainLost(err)
			broken.wait(ctx)
			continue
		}
		broken.reset()
		s.drainUp()
		if !s.take(ctx, payload, &order) {
			idle.wait(ctx)
			continue
		}
		idle.reset()
	}
	return nil
}

func (s *Source) poll(ctx context.Context, client *http.Client) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.Endpoint, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	payload, err := io.ReadAll(io.LimitReader(resp.Body, int64(s.cfg.MaxMessage)+1))
	if err == nil && len(payload) > s.cfg.MaxMessage {
		err = fmt.Errorf("an answer of more than %d bytes: it is refused", s.cfg.MaxMessage)
	}
	return payload, err
}

// take hands one answer on and says whether there was anything in it. While apply misses what
// came before, the engine is not asked for more.
func (s *Source) take(ctx context.Context, payload []byte, order *numbering) bool {
	if err := s.cfg.Dialect.Decode(payload, s.cfg.Limits, &s.batch); err != nil {
		s.failed("events not understood", err, func(st *Stats) { st.Malformed++ })
		order.hole = true
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
		st.Bytes += uint64(len(payload))
		if restarted {
			st.Restarts++
		}
	})
	err := s.persist(ctx, func() error {
		if _, gap := s.apply(seq, b); gap {
			return errGapStays
		}
		return nil
	})
	s.count(func(st *Stats) {
		if errors.Is(err, errGapStays) {
			st.Gaps++
			st.Unrecovered++
		} else {
			st.LastSeq, st.LastAt = seq, time.Now()
		}
	})
	return true
}

func (s *Source) drainUp() {
	if s.connected() {
		return
	}
	s.count(func(st *Stats) { st.Connected = true; st.Connects++ })
	s.cfg.Connected(true)
}

func (s *Source) drainLost(err error) {
	up := s.connected()
	s.lost(err, !up && s.Stats().LastError != "")
	if up {
		s.cfg.Connected(false)
	}
}

// numbering gives answers sequence numbers that rise by one where the numbers of their events
// are without a hole, and by two where something is missing before. An engine that starts
// anew begins at 0 again.
type numbering struct {
	begun bool
	seq   uint64 // of the next answer
	event uint64 // the number that is due
	hole  bool   // an answer could not be read
}

func (n *numbering) next(b *kvevent.Batch) (seq uint64, restarted bool) {
	switch {
	case !b.Numbered:
	case !n.begun || b.First < n.event:
		restarted = n.begun
		n.begun, n.seq, n.hole = true, 0, b.First != 0
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
