package exchange

import (
	"net/http"
	"time"

	"github.com/stator-project/stator/extproc/migrate"
	"github.com/stator-project/stator/extproc/prefill"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
)

// A stream goes to the relay if its model has migration: it is the picked address. The plan has the limit, because Envoy removes the
// client's header. The relay ends the booking of each worker that breaks, and has the continuation decided like a completion of its own,
// at other workers. A worker that breaks before it has added a token counts as broken by the body, so a text that ends engines reaches
// two of them without an effect.

// Migration is how streams of a model are continued at other workers.
type Migration struct {
	// Limit is how often one stream is continued. With 0 streams go to their workers directly.
	Limit int
	// Sampled continues streams with any temperature, not only with 0.
	Sampled bool
}

// migration returns how the stream of a picked request is continued; Limit is 0 if it is no stream that is. Clients can lower the limit.
func (x *Exchange) migration(d *decision.Decision) Migration {
	isStream := d.Stream && x.target.known && (x.target.endpoint == prompt.Chat || x.target.endpoint == prompt.Completions)
	if !isStream || !x.usesRelay() {
		return Migration{}
	}
	m := x.svc.Settings().Migrations[d.Pool]
	if x.migrations.Set {
		m.Limit = min(m.Limit, int(x.migrations.Value))
	}
	return m
}

// readPromise reads whether the stream may be continued.
func (r *Relayed) readPromise() {
	m := r.plan.migration
	if m.Limit == 0 {
		return
	}
	r.left = m.Limit
	r.stream, r.promise = migrate.Read(r.exchange.target.endpoint, r.body, m.Sampled)
	if r.stream != nil && !engines.Of(r.plan.decision.Engine).TokenIDs {
		r.stream, r.promise = nil, migrate.NoIDs
	}
}

// Promise returns whether the stream of the answer may be continued, or why not; empty for a request that is no stream of a model with
// migration.
func (r *Relayed) Promise() migrate.Promise { return r.promise }

// MayContinue reports whether the stream may be continued once more.
func (a *Attempt) MayContinue() bool { return a.relayed.left > 0 }

// Worker reports whether the attempt's worker is down, and whether it has left the fleet or is another process now. Changed is closed at
// the next change of the fleet.
func (a *Attempt) Worker() (down, gone bool, changed <-chan struct{}) {
	state, present, changed := a.relayed.svc.router.RankState(a.decision.Worker, a.decision.Rank, a.Address)
	return present && state == fleet.Down, !present, changed
}

// Doubt records that the attempt's worker has sent nothing for long, so that its engine is asked for its health.
func (a *Attempt) Doubt(now time.Time) {
	a.relayed.svc.router.Doubt(a.decision.Worker, a.decision.Rank, a.Address, now)
}

// Continue returns the attempt that continues the stream of this one, which has broken off, with a body for /v1/completions; nil if there
// is no worker for it. progress means that the worker had added tokens.
func (a *Attempt) Continue(body []byte, progress bool, now time.Time) *Attempt {
	r := a.relayed
	r.left--
	r.tried = append(r.tried, a.decision.Worker)
	if progress {
		r.broke = nil // the text that those workers had has ended no other one
	} else {
		r.hasBroken(a.decision.Worker)
	}
	if len(r.broke) >= prefill.MaxBroken {
		return nil
	}

	x := &r.exchange
	ask := x.prefillRequest(body)
	ask.Endpoint, ask.Reading = prompt.Completions, nil
	ask.Local, ask.IgnoreBodyHints = true, true
	ask.Session, ask.Source = r.first.Session, r.first.Source
	ask.Tenant = r.first.Account
	// Workers that have failed earlier may be back, and the last one may not.
	for _, except := range [][]string{r.tried, r.tried[len(r.tried)-1:]} {
		ask.ID, ask.Except = r.svc.router.NewID(), except
		d := r.svc.router.Decide(&ask, now)
		if d.Outcome != decision.Picked {
			continue
		}
		if !engines.Of(d.Engine).TokenIDs {
			r.svc.router.End(d.ID, now)
			return nil
		}
		next := r.newAttempt(d)
		next.Body = prefill.NewBody(body)
		return next
	}
	return nil
}

// BrokenOff returns the event that ends a stream which has broken off, in the form of its API.
func (r *Relayed) BrokenOff() []byte {
	e := &openai.Error{Status: http.StatusBadGateway, Type: openai.ServerError, Code: "stream_broken",
		Message: "The worker has failed during the answer, and the gateway could not continue it. Send the request again."}
	switch r.exchange.target.shape {
	case handoff.Messages:
		return append(append([]byte("event: error\ndata: "), e.AnthropicJSON()...), "\n\n"...)
	case handoff.Responses:
		b := []byte("event: error\ndata: {\"type\":\"error\",\"code\":\"stream_broken\",\"param\":null,\"message\":")
		return append(openai.AppendString(b, e.Message), "}\n\n"...)
	}
	return append(append([]byte("data: "), e.JSON()...), "\n\n"...)
}
