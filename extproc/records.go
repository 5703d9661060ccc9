package extproc

import (
	"time"

	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/answers"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/extproc/spans"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/pick"
)

// records are the parts that record requests: counts for planners and metrics, lines of logs, and spans.
type records struct {
	demand  *demand          // the requests of clients to this replica
	answers *answers.Metrics // by model, worker and tenant
	lines   *answers.Lines   // of answered requests; nil for none
	picks   *answers.Lines   // of decisions; nil for none

	tracer      *spans.Tracer // nil without tracing
	decisionLog *decisionLog  // nil without a decision log
}

// newRecords makes all of them. It opens the decision log.
func newRecords(cfg *Config, replica string) (r records, err error) {
	decisions := &cfg.Settings.Decisions
	r = records{demand: newDemand(), answers: answers.New(cfg.Metrics)}
	if cfg.LogRequests {
		r.lines = &answers.Lines{Log: cfg.Log, PerSecond: answers.LinesPerSecond}
	}
	if n := decisions.LinesPerSecond; n > 0 {
		r.picks = &answers.Lines{Log: cfg.Log, PerSecond: n}
	}

	r.decisionLog, err = newDecisionLog(decisions, cfg.Log, cfg.Metrics)
	if err != nil {
		return r, err
	}
	r.tracer, err = newTracer(cfg, replica)
	return r, err
}

// decided counts a final decision about a client's request: as demand for its model, which planners count, and as a refusal if it is
// one. Answers are counted when they have ended. With decisions.linesPerSecond it logs the pick, with the cache state of the rank: a
// prompt that is cached there by an index that is not exact may not be.
func (r *Router) decided(d *decision.Decision) {
	r.demand.decided(d)
	r.answers.Refused(d)
	r.doors.turns.Decided(d)
	if r.picks == nil || d.Outcome != decision.Picked {
		return
	}
	if rank, ok := r.fleet.Snapshot().Rank(d.Worker, d.Rank); ok {
		r.picks.Picked(d, r.feed.State(rank).String(), d.At)
	}
}

// requestEnded counts the end of a request, and writes it to the decision log. Entries without a decision are left out there:
// their requests went past the router.
func (r *Router) requestEnded(e *messages.Entry, outcome string, k *pick.Booking, now time.Time) {
	f := r.fleet.Snapshot()
	if k == nil && e.Booking != "" {
		// The relay has ended the bookings of its attempts.
		if last, ok := r.doors.requests.LastBooking(e.Booking); ok {
			k = &last
		}
	}
	r.demand.ended(e, k, f)
	if isEmpty, regular := e.IsEmptyAnswer(); regular {
		r.doors.requests.Answered(e.Booking, isEmpty, now)
	}
	trace := ""
	if r.tracer != nil {
		trace = r.doors.requests.EndSpan(e.Booking, answerOf(e, outcome), now)
	}
	if k != nil {
		how := answers.How{Retried: outcome == accesslog.Retried, Tokens: r.doors.requests.Settings().AnswerTokens, Trace: trace}
		tokens := r.answers.Ended(k, e, how, f)
		r.doors.requests.ChargeAnswer(k.Caller.Value().Account, tokens, now)
		if r.lines != nil {
			r.lines.Answered(k, e, now)
		}
	}

	if r.decisionLog != nil && e.Decision != "" {
		r.decisionLog.Ended(endOf(e, outcome, now))
	}
}
