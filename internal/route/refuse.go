package route

import (
	"time"

	"github.com/stator-project/stator/internal/prompt"
)

// Reason names why a request was refused: a closed set, for logs and metrics.
type Reason string

// The reasons, in the order in which they are looked for.
const (
	BadRequest      Reason = "bad_request"
	ModelNotFound   Reason = "model_not_found"
	Internal        Reason = "internal"
	WorkerRequired  Reason = "worker_required"   // policy direct, and no worker is named
	NoAllowedWorker Reason = "no_allowed_worker" // none of the allowed workers is in the pool
	WorkerNotFound  Reason = "worker_not_found"  // the named worker is not in the pool, or not allowed
	RankNotFound    Reason = "rank_not_found"    // the named worker has no such rank
	NoTaintedWorker Reason = "no_tainted_worker" // none of them has the required taints
	NoReadyWorker   Reason = "no_ready_worker"
	Overloaded      Reason = "busy"        // all ranks that may take it are busy, and it cannot wait
	PinnedBusy      Reason = "pinned_busy" // the worker it must go to is
	QueueFull       Reason = "queue_full"  // a limit of what may wait is reached
	DeadlineMissed  Reason = "deadline"    // its first token would come too late
	WaitedTooLong   Reason = "waited_too_long"
)

// Reasons lists them.
func Reasons() []Reason {
	return []Reason{BadRequest, ModelNotFound, Internal, WorkerRequired, NoAllowedWorker, WorkerNotFound, RankNotFound,
		NoTaintedWorker, NoReadyWorker, Overloaded, PinnedBusy, QueueFull, DeadlineMissed, WaitedTooLong}
}

// refuse makes d a refusal. What was found out by others has no reason yet: its status tells.
func (d *Decision) refuse(err *prompt.Error) {
	d.Outcome, d.Err = Refused, err
	if d.Reason != "" {
		return
	}
	if d.Reason = BadRequest; err.Status >= 500 {
		d.Reason = Internal
	}
}

// no refuses for a reason, which is the error's code too.
func (d *Decision) no(why Reason, status int, param, message string) *prompt.Error {
	d.Reason = why
	kind := "invalid_request_error"
	if status >= 429 {
		kind = "overloaded_error"
	}
	return &prompt.Error{Status: status, Type: kind, Param: param, Code: string(why), Message: message}
}

// retryIn advises when to come again: whole seconds, at least one, and not so many that a client
// which believes them is lost.
func retryIn(d time.Duration) time.Duration {
	return min(max((d+time.Second-1).Truncate(time.Second), time.Second), time.Minute)
}
