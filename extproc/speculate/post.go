package speculate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// compute sends a speculative prefill, ends its booking, and returns the result.
func (s *Sender) compute(ctx context.Context, stop context.CancelFunc, t *Turn, d *decision.Decision, ask *request.Request) string {
	// Requests that other routers have picked for the rank are known by its bookings alone, and no call announces them.
	go backoff.Every(ctx, lookEvery, func(time.Time) {
		if s.router.IsDisturbed(d.ID) {
			stop()
		}
	})
	status, err := s.post(ctx, t, d, ask.Parsed)

	// How it ended is evidence of the worker's health, unless it was stopped. A time that is over is none: others may have gone first.
	e := route.Ending{ID: d.ID, Speculative: true}
	result := failed
	switch {
	case err == nil && status == http.StatusOK:
		result = done
		e.Served = d.Address
		s.tokens.WithLabelValues(t.request.Model).Add(float64(max(0, d.PromptTokens-d.Cached)))
	case errors.Is(ctx.Err(), context.Canceled):
		result = cancelled
		e.Left = true
	case err != nil && ctx.Err() == nil:
		e.Tried, e.Failed = d.Address, true
	case err != nil:
		e.Left = true
	default:
		e.Served = d.Address
		e.Failed = status >= http.StatusInternalServerError
		e.Refused = !e.Failed
	}
	s.router.Ended(e, time.Now())
	if result == failed {
		s.log.Debug("a speculative prefill has failed", "worker", d.Worker, "status", status, "err", err)
	}
	return result
}

// post sends the completion, and reads its answer. It has two headers of the client: the key, which the engine may check, and the session,
// by which a store may keep blocks. Others are about an answer that no client gets.
func (s *Sender) post(ctx context.Context, t *Turn, d *decision.Decision, next *prompt.Request) (status int, err error) {
	r, err := prefill.NewBody(appendBody(nil, next)).NewRequest(ctx, "http://"+d.Address+"/v1/completions")
	if err != nil {
		return 0, err
	}
	r.Header = http.Header{"Content-Type": {"application/json"}}
	r.Header.Set(prefill.HeaderRequestID, d.ID)
	if t.request.Authorization != "" {
		r.Header.Set("Authorization", t.request.Authorization)
	}
	if session := sessionid.HeaderValue(t.request.Session); session != "" {
		r.Header.Set(envoynames.HeaderSession, session)
	}
	if d.Ranks > 1 { // the cache is the rank's
		r.Header.Set(prefill.HeaderRank, strconv.Itoa(d.Rank))
	}

	response, err := s.transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	// The answer is read to its end, so that the connection can be used again.
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxRead))
	return response.StatusCode, err
}

// appendBody appends the body of the completion. It is an ordinary request for one token, which all engines have: one of no tokens is
// refused by some, and a priority by a vLLM without --scheduling-policy priority.
func appendBody(b []byte, next *prompt.Request) []byte {
	b = openai.AppendString(append(b, `{"model":`...), next.Model)
	b = append(b, `,"max_tokens":1,"temperature":0,"prompt":`...)
	b = openai.AppendNumbers(b, next.Prompts[0].Tokens)
	if next.CacheSalt != "" {
		b = openai.AppendString(append(b, `,"cache_salt":`...), next.CacheSalt)
	}
	return append(b, '}')
}
