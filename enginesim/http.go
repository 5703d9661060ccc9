package enginesim

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/sim/engine"
)

// handler returns the handlers of the simulated part of vLLM's API.
func (s *Sim) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.serve(openai.Chat))
	mux.HandleFunc("POST /v1/completions", s.serve(openai.Completions))
	mux.HandleFunc("POST /v1/embeddings", s.serve(openai.Embeddings))
	mux.HandleFunc("POST /v1/messages", s.serve(openai.Messages))
	mux.HandleFunc("POST /v1/responses", s.serve(openai.Responses))
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /version", s.version)
	mux.HandleFunc("GET /load", s.serverLoad)
	mux.HandleFunc("GET /kv_event_sources", s.eventSources)
	s.addSleep(mux)
	mux.HandleFunc("POST /lose_answer", func(http.ResponseWriter, *http.Request) { s.loses.Store(true) })
	mux.Handle("GET /metrics", s.metrics.handler())
	if s.cfg.LoadAdapters {
		mux.HandleFunc("POST /v1/load_lora_adapter", s.loadAdapter)
		mux.HandleFunc("POST /v1/unload_lora_adapter", s.unloadAdapter)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		s.writeError(w, &openai.Error{Status: http.StatusNotFound, Message: "The simulated engine has no such path."})
	})

	// While it loads, an engine answers 503 on every path.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.ready.Load() {
			s.writeError(w, &openai.Error{Status: http.StatusServiceUnavailable, Message: "The model is loading: try again later."})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serve returns the handler of requests to an endpoint with prompts.
func (s *Sim) serve(ep openai.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// /load reports handlers, not sequences in the core: vLLM counts server_load so.
		s.active.Add(1)
		defer s.active.Add(-1)

		// A request that is refused here has begun no transfer.
		refuse := s.writeError
		if ep == openai.Messages {
			refuse = writeAnthropicError
		}
		c, err := s.accept(ep, w, r)
		if err != nil {
			refuse(w, s.refusal(err))
			return
		}
		defer s.giveUp(c)
		if err := s.compute(r.Context(), c); err != nil {
			refuse(w, s.refusal(err))
			return
		}

		if c.requests[0].Delivered > 0 && s.loses.Swap(false) {
			return // 200 without a body
		}
		if c.streams() {
			c.stream(w, r)
			return
		}
		c.whole(w)
	}
}

// streams reports whether the answer is a stream.
func (c *completion) streams() bool { return c.req.Stream && c.req.Endpoint != openai.Embeddings }

// compute submits the sequences of a request. Unless the answer can be sent token by token, it waits for the last token, and
// until the transfer allows the answer.
func (s *Sim) compute(ctx context.Context, c *completion) error {
	// Until the core has the sequences, they use no blocks. So a request that waits for another engine delays no other one.
	if err := c.leg.prepare(ctx); err != nil {
		return err
	}
	if s.kv != nil {
		s.kv.load(ctx, c)
	}
	s.loadOutside(c)
	if err := s.submit(c.requests); err != nil {
		return err
	}
	if c.streams() && !c.hold {
		return nil
	}

	// The goroutine of passes wakes this one after each token of any choice.
	for !c.allDone() {
		select {
		case <-c.notify:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := c.leg.complete(ctx); err != nil {
		return err
	}

	// A stream that was held back has all its tokens to write.
	select {
	case c.notify <- struct{}{}:
	default:
	}
	return nil
}

// giveUp ends the rest of a request after its answer, or after its client has left. Sequences that have ended are not affected.
func (s *Sim) giveUp(c *completion) {
	s.pinPrompt(c)
	s.storeOutside(c)
	s.cancel(c.requests)
	c.leg.endLeg()
}

// accept reads, parses and tokenizes a request.
func (s *Sim) accept(ep openai.Endpoint, w http.ResponseWriter, r *http.Request) (*completion, error) {
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}

	req, err := openai.Parse(ep, body, openai.Limits{})
	if err != nil {
		return nil, err
	}
	// A wrong name is an error, as in vLLM. The doctor finds fleets with wrong names.
	if req.Model != s.cfg.ModelName && !slices.Contains(s.cfg.Aliases, req.Model) && s.adapters.id(req.Model) == 0 {
		return nil, &openai.Error{Status: http.StatusNotFound, Param: "model", Message: fmt.Sprintf("The model `%s` does not exist.",
			req.Model)}
	}

	// Envoy's request id becomes the id of the answer, so that logs can be joined.
	id := cmp.Or(r.Header.Get("X-Request-Id"), strconv.FormatUint(rand.Uint64(), 16))
	prefix := [...]string{openai.Chat: "chatcmpl-", openai.Completions: "cmpl-", openai.Embeddings: "embd-", openai.Messages: "chatcmpl-",
		openai.Responses: "resp_"}[ep]
	c, err := s.prepare(req, prefix+id, time.Now())
	if err != nil {
		return nil, err
	}
	if ep == openai.Embeddings {
		c.vectors, err = readVectors(body)
		if err != nil {
			return nil, err
		}
	}
	if s.kv != nil {
		c.pin = readPin(body)
	}
	// The transfer is read last, because some transfers change the prompt, or the bound of the answer.
	return c, s.readTransfer(c, body)
}

// readBody reads at most MaxBody bytes. With a content length it allocates once.
func (s *Sim) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// A body beyond the bound is an error of type http.MaxBytesError; see refusal.
	limited := http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
	if n := r.ContentLength; n > 0 && n <= s.cfg.MaxBody {
		body := make([]byte, n)
		_, err := io.ReadFull(limited, body)
		return body, err
	}
	return io.ReadAll(limited)
}

// whole writes the answer to a request that does not stream.
func (c *completion) whole(w http.ResponseWriter) {
	if c.req.Endpoint == openai.Embeddings {
		writeJSON(w, http.StatusOK, c.appendEmbeddings(nil))
		return
	}

	appendWhole := c.appendWhole
	if c.isAgents() {
		appendWhole = c.appendAgents
	}
	writeJSON(w, http.StatusOK, c.leg.appendTo(appendWhole(nil)))
}

// allDone reports whether every choice has ended.
func (c *completion) allDone() bool {
	for i := range c.choices {
		if _, done := c.choices[i].progress(); done == engine.NotDone {
			return false
		}
	}
	return true
}

// stream writes the headers when the request is queued, as vLLM does, and then an event for each token.
func (c *completion) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if flush() != nil {
		return // the client has left
	}

	// The part of an event that is the same for all of them is built once.
	head := c.appendHead(nil, true)
	var b []byte
	for !c.ended() {
		select {
		case <-c.notify:
		case <-r.Context().Done():
			return
		}

		// All tokens since the last write are one write: a slow client does not delay the passes.
		b = c.appendNews(b[:0], head)
		if c.ended() {
			b = c.appendEnd(b, head)
		}
		if _, err := w.Write(b); err != nil {
			return
		}
		if flush() != nil {
			return
		}
	}
}

// appendNews appends the tokens that were emitted since the last call.
func (c *completion) appendNews(b, head []byte) []byte {
	if c.isAgents() {
		return c.appendAgentsNews(b)
	}
	for i := range c.choices {
		ch := &c.choices[i]
		n, done := ch.progress()
		// A chat begins with an event that has the role and no text.
		if ch.sent == 0 && n > 0 && c.req.Endpoint == openai.Chat {
			b = c.appendRole(b, head, i)
		}
		for ; ch.sent < n; ch.sent++ {
			reason := ""
			if ch.sent == n-1 {
				reason = finishReasons[done]
			}
			b = c.appendChunk(b, head, i, reason)
		}
	}
	return b
}

// appendEnd appends the usage, if the client asked for it, and the end of the stream.
func (c *completion) appendEnd(b, head []byte) []byte {
	if c.isAgents() {
		return c.appendClosing(b)
	}
	if c.req.IncludeUsage {
		b = append(append(b, "data: "...), head...)
		b = append(c.appendUsage(append(b, "],"...)), "}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

// writeJSON writes an answer. Errors of writing mean that the client has left.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
