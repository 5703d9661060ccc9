package extproc

// The spans of requests: see package spans. A span begins in package exchange, and ends with the entry of the access log, which may come
// from another router, or with the response of an Envoy without an access log. Both end bookings, too, so a span has the end that its
// booking has.

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/extproc/spans"
)

// newTracer returns the exporter of spans; nil if none is configured. A shadow exports none: its requests are copies of requests that
// another router decides about.
func newTracer(cfg *Config, replica string) (*spans.Tracer, error) {
	t := &cfg.Settings.Tracing
	if t.Endpoint == "" || cfg.Shadow {
		return nil, nil
	}
	// The file was checked when it was read, so an error here is a mistake of the program.
	return spans.New(spans.Config{
		Endpoint: t.Endpoint, Ratio: t.Ratio, SlowerThan: time.Duration(t.SlowerThan), Instance: replica,
		Log: cfg.Log, Metrics: cfg.Metrics,
	})
}

// A booking that ends because its Envoy or its worker is gone ends no span: the span then is exported without an answer, if it was sampled,
// when it loses its place to later ones or when the process ends.

// answerOf returns the end of a request for its span. An Envoy that reports no first byte of the body has its first byte instead.
func answerOf(e *messages.Entry, outcome string) *spans.Answer {
	return &spans.Answer{
		FirstToken: cmp.Or(e.FirstToken, e.FirstByte), LastByte: e.LastByte, Status: int(e.Status), OutputTokens: int(e.AnswerTokens),
		Outcome: outcome, Served: e.Served,
	}
}
