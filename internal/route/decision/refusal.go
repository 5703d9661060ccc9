package decision

import (
	"errors"
	"fmt"
	"time"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// Reason names why a request was refused: a closed set, for logs, metrics and the error's code.
type Reason string

// The reasons, in the order in which they are checked.
const (
	ReasonBadRequest      Reason = "bad_request"
	ReasonModelNotFound   Reason = "model_not_found"
	ReasonInternal        Reason = "internal"
	ReasonCancelled       Reason = "cancelled"         // its client went away while it was decided: see Request.Done
	ReasonWorkerRequired  Reason = "worker_required"   // the policy is direct, and the request names no worker
	ReasonNoAllowedWorker Reason = "no_allowed_worker" // no allowed worker is in the pool
	ReasonWorkerNotFound  Reason = "worker_not_found"  // the named worker is not in the pool, or not allowed
	ReasonRankNotFound    Reason = "rank_not_found"    // the named worker has no such rank
	ReasonNoTaintedWorker Reason = "no_tainted_worker" // no worker that remains has the required taints
	ReasonNoReadyWorker   Reason = "no_ready_worker"
	ReasonBusy            Reason = "busy"            // all ranks that may take it are busy, and it cannot wait
	ReasonPinnedBusy      Reason = "pinned_busy"     // the worker that the request names is busy
	ReasonQueueFull       Reason = "queue_full"      // a limit of waiting requests is reached
	ReasonDeadline        Reason = "deadline"        // its first token is expected after its deadline
	ReasonWaitedTooLong   Reason = "waited_too_long" // its time in the queue has run out
)

// Reasons lists the reasons.
func Reasons() []Reason {
	return []Reason{ReasonBadRequest, ReasonModelNotFound, ReasonInternal, ReasonCancelled, ReasonWorkerRequired,
		ReasonNoAllowedWorker, ReasonWorkerNotFound, ReasonRankNotFound, ReasonNoTaintedWorker, ReasonNoReadyWorker, ReasonBusy,
		ReasonPinnedBusy, ReasonQueueFull, ReasonDeadline, ReasonWaitedTooLong}
}

// IsShortage reports whether the request would have been served by more or other workers.
func (r Reason) IsShortage() bool {
	switch r {
	case ReasonNoReadyWorker, ReasonBusy, ReasonPinnedBusy, ReasonQueueFull, ReasonDeadline, ReasonWaitedTooLong:
		return true
	}
	return false
}

// Refusal has the reason why a request is not booked now, and the answer if it stays so.
type Refusal struct {
	Reason     Reason
	err        *prompt.Error
	retryAfter time.Duration // what to advise; 0 for no advice
}

// IsBusy reports whether the request could go if a rank were less busy. Such a request may wait.
func (w *Refusal) IsBusy() bool { return w.Reason == ReasonBusy || w.Reason == ReasonPinnedBusy }

// statusClientClosed is nginx's status for a client that went away. No client receives it.
const statusClientClosed = 499

// busyStatus stands for the status that the model's Busy sets.
const busyStatus = 0

// answers has the answer to each reason that route finds. The text's arguments are the arguments of
// refuse; the last one is the wait to advise, if there is one. Reasons that are not here come with an
// error of their own: see RefuseError.
var answers = map[Reason]struct {
	status            int
	kind, param, text string
}{
	ReasonModelNotFound: {404, openai.InvalidRequest, "model",
		"The model `%s` does not exist%s."},
	ReasonCancelled: {statusClientClosed, openai.InvalidRequest, "",
		"The client closed the request."},
	ReasonWorkerRequired: {400, openai.InvalidRequest, "nvext.router.worker",
		"Requests for this model must name their worker. Set 'nvext.router.worker' to its name."},
	ReasonNoAllowedWorker: {400, openai.InvalidRequest, "nvext.router.allowed_workers",
		"None of the allowed workers (%s) serves the model `%s`. Name others, or leave them out."},
	ReasonWorkerNotFound: {400, openai.InvalidRequest, "nvext.router.worker",
		"The worker `%s` %s the model `%s`. Name another, or %s."},
	ReasonRankNotFound: {400, openai.InvalidRequest, "nvext.router.dp_rank",
		"No worker that may take this request has a rank %d. Ranks count from 0; leave it out for any."},
	ReasonNoTaintedWorker: {503, openai.Overloaded, "nvext.routing_constraints.required_taints",
		"No worker that may take this request has all of the required taints (%s). Require fewer, or prefer them."},
	ReasonNoReadyWorker: {503, openai.Overloaded, "",
		"No worker is ready for the model `%s`: %s. Try again in %s."},
	ReasonBusy: {busyStatus, openai.Overloaded, "",
		"%s busy. Try again in %s."},
	ReasonPinnedBusy: {busyStatus, openai.Overloaded, "nvext.router.worker",
		"The worker `%s` that this request must go to is busy. Try again in %s, or name no worker."},
	ReasonQueueFull: {busyStatus, openai.Overloaded, "",
		"%s, and %s. Try again in %s."},
	ReasonDeadline: {busyStatus, openai.Overloaded, "",
		"The first token is expected after %d ms, and this request allows %d ms. Allow more, or try again in %s."},
	ReasonWaitedTooLong: {busyStatus, openai.Overloaded, "",
		"All ranks that may take this request stayed busy for %.1f s, while it waited. Try again in %s."},
}

// Refuse makes the refusal for a reason of the table. busy is the status if the table has busyStatus; otherwise it may be 0.
func Refuse(reason Reason, busy int, retryAfter time.Duration, args ...any) *Refusal {
	answer := answers[reason]
	status := answer.status
	if status == busyStatus {
		status = busy
	}
	if retryAfter > 0 {
		args = append(args, inSeconds(retryAfter))
	}
	return &Refusal{Reason: reason, retryAfter: retryAfter, err: &prompt.Error{
		Status: status, Type: answer.kind, Param: answer.param, Code: string(reason), Message: fmt.Sprintf(answer.text, args...),
	}}
}

// RefuseError refuses a request that could not be parsed or prepared. An error that is not in the form
// that clients understand is ours.
func RefuseError(err error) *Refusal {
	if errors.Is(err, prompt.ErrStopped) {
		return Refuse(ReasonCancelled, 0, 0)
	}
	var e *prompt.Error
	if !errors.As(err, &e) {
		e = &prompt.Error{Status: 500, Type: openai.ServerError, Message: err.Error()}
	}
	reason := ReasonBadRequest
	if e.Status >= 500 {
		reason = ReasonInternal
	}
	return &Refusal{Reason: reason, err: e}
}

// Refuse makes d a refusal.
func (d *Decision) Refuse(why *Refusal) {
	d.Outcome = Refused
	d.Err, d.Reason = keptError(why.err), why.Reason
	d.RetryAfter = why.retryAfter
}

// WholeSeconds rounds a wait up to advise it: at least a second, and at most a minute, so that a client
// that follows the advice is not lost.
func WholeSeconds(d time.Duration) time.Duration { return min(RoundUp(d), time.Minute) }

// RoundUp rounds a wait up to whole seconds, at least one.
func RoundUp(d time.Duration) time.Duration {
	return max((d + time.Second - 1).Truncate(time.Second), time.Second)
}

// inSeconds prints a wait of whole seconds: "1 second", "10 seconds".
func inSeconds(d time.Duration) string {
	if d == time.Second {
		return "1 second"
	}
	return fmt.Sprintf("%d seconds", int(d.Seconds()))
}
