package exchange

import (
	"cmp"
	"time"

	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// beginSpan begins the span of a request, if there is a tracer.
func (x *Exchange) beginSpan(header spans.Context, now time.Time) {
	x.span = x.svc.tracer.Begin(header, spans.Parse([]byte(x.origin.Traceparent)), now)
	if x.span.MayBeExported() {
		x.steps = &request.Steps{Now: x.svc.clock.Now}
	}
}

// Traces reports whether there is a tracer.
func (s *Service) Traces() bool { return s.tracer != nil }

// traceparent returns the header of the trace context that engines get: the router's span if it is exported, and otherwise the
// request's own context.
func (x *Exchange) traceparent() string {
	if own := x.span.Own(); own.IsValid() {
		return own.String()
	}
	return x.head.Trace.String()
}

// decideSpan writes the decision into the span of a request, and hands the span over: to the end of a request that is booked, or else to
// the export. It does nothing for pages of this process.
func (x *Exchange) decideSpan(r *Reply, outcome string) {
	s := x.span
	x.span = nil
	if s == nil || x.target.local != nil {
		return
	}
	if r.Answer != nil {
		s.Keep()
	}
	if !s.MayBeExported() {
		return
	}

	now := x.svc.clock.Now()
	operation := x.operation()
	name := cmp.Or(operation, "request")
	if r.Pick != nil {
		name += " " + r.Pick.Model
	}
	s.Decided(name, now)
	s.Text("gen_ai.operation.name", operation)
	s.Text("http.request.method", x.head.Method)
	s.Text("url.path", x.target.path)
	s.Text("stator.envoy", x.origin.Source)
	s.Text("stator.outcome", outcome)
	if steps := x.steps; steps != nil {
		for step, name := range stepNames {
			s.Event(name, steps.At[step])
		}
	}

	d := r.Pick
	if r.Answer != nil {
		d = r.Answer.decision
	}
	if d != nil {
		describe(s, d)
	}
	switch {
	case r.Answer != nil:
		s.Text("error.type", outcome)
		s.Ended(&spans.Answer{Status: r.Answer.Status}, now)
	case r.Pick == nil || x.booking == "" || x.svc.shadow:
		s.Ended(&spans.Answer{}, now)
	default:
		s.Event("stator.decided", now)
		x.svc.spans.add(x.booking, s).Ended(&spans.Answer{}, now)
	}
}

// stepNames are the events of the steps, at their ends.
var stepNames = [request.StepCount]string{
	request.Parsed: "stator.parsed", request.Rendered: "stator.rendered", request.Tokenized: "stator.tokenized",
	request.LookedUp: "stator.looked_up", request.Judged: "stator.judged", request.Booked: "stator.booked",
	request.Prefilled: "stator.prefilled",
}

// describe adds the attributes of a decision.
func describe(s *spans.Span, d *decision.Decision) {
	s.Text("gen_ai.request.model", d.Model)
	s.Text("gen_ai.conversation.id", d.Session)
	s.Text("stator.decision.id", d.ID)
	s.Text("stator.policy", d.Policy)
	s.Text("stator.cost", d.Cost)
	s.Text("stator.tenant", d.Account)
	if d.MaxTokens > 0 {
		s.Number("gen_ai.request.max_tokens", d.MaxTokens)
	}
	if d.PromptTokens > 0 {
		s.Number("gen_ai.usage.input_tokens", d.PromptTokens)
		s.Number("stator.cached_tokens", d.Cached)
	}

	if d.Worker != "" {
		s.Text("stator.worker", d.Worker)
		s.Number("stator.rank", d.Rank)
		s.Text("stator.address", d.Address)
		s.Number("stator.considered", d.Considered)
	}
	s.Text("stator.legs", string(d.Legs.Why))
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Picked {
			s.Amount("stator.cost.total", c.Score.Total)
		}
	}
	if d.Err != nil {
		s.Text("stator.message", d.Err.Message)
	}
	if w := d.Wait; w != nil {
		s.Event("stator.queued", w.Since)
		s.Event("stator.dequeued", w.Since.Add(w.Took))
		s.Text("stator.queue.class", w.Class)
		s.Text("stator.queue.tenant", w.Tenant)
		s.Number("stator.queue.ahead", w.Ahead)
	}
}

// operation returns the operation by the semantic conventions for generative AI; empty for a path whose body is not parsed.
func (x *Exchange) operation() string {
	switch {
	case !x.target.known:
		return ""
	case x.target.endpoint == prompt.Completions:
		return "text_completion"
	case x.target.endpoint == prompt.Embeddings:
		return "embeddings"
	}
	return "chat"
}

// EndSpan ends the span of the request with that booking, if there is one. It returns the id of the trace if the span is exported, and
// otherwise an empty one.
func (s *Service) EndSpan(booking string, a *spans.Answer, now time.Time) (trace string) {
	if s.tracer == nil || booking == "" {
		return ""
	}
	span, _ := s.spans.take(booking)
	return span.Ended(a, now)
}

// EndSpans ends the spans of all requests whose ends have not come, because the process ends.
func (s *Service) EndSpans(now time.Time) {
	for _, span := range s.spans.takeAll() {
		span.Ended(&spans.Answer{}, now)
	}
}
