package request

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
)

// Request is a request to route. Body and strings are only read during Decide, except Session and Source.
type Request struct {
	// ID becomes the decision's id; if it is empty, the router makes one. It must be unique among requests in flight and
	// must never come from a client.
	ID       string
	Endpoint prompt.Endpoint
	// Known is false for a path whose body is not parsed. Such a request is routed by session, or by load.
	Known bool
	Body  []byte
	// Parsed is the body's content, if the caller has parsed it already. If it is nil and Known
	// is true, Decide parses Body.
	Parsed *prompt.Request
	// Reading is memory for the content of the prompt: a decision that is Split fills it, and one for a prefill worker uses it and does not
	// read Body, unless it is empty. Both must be for the same prompt. Nil for none.
	Reading *Reading
	// Steps receives the times of the steps of the decision. A request that waits in the queue has those until then. Nil for none.
	Steps *Steps
	Workers
	// Splits means that engines can compute the prompt on one worker and decode on another one, although it is not read.
	Splits bool
	// Model is for paths that are not parsed; empty means any model.
	Model string
	// Session is the client's session, if it names one. The session policy compares all of it. Decisions
	// keep a session of at most 128 bytes as it is, so it must not be a part of a larger string; of a
	// longer one they keep a hash.
	Session string
	// Source names the Envoy that carries the request: see Router.EndBefore. It is kept as Session is.
	Source string

	// Dry means that the decision only shows what would happen: see Router.DryRun, which sets it.
	Dry bool

	// Done ends the decision early when it is closed, because the client has gone: the request is then refused
	// with ReasonCancelled and not booked. Nil never ends it. A request that waits is ended by Router.Cancel.
	Done <-chan struct{}

	// IgnoreBodyHints ignores routing hints in the body, because the client is not trusted.
	IgnoreBodyHints bool
	// Hints are the hints of trusted headers. They take precedence over the body's. Nil for none.
	Hints *prompt.Hints
	// Tenant is the client's tenant, which a fair class of the queue serves as much as each other one.
	// Empty means the body's user.
	Tenant string
	Salting
	// Ready receives the final decision of a request for which Decide returned Queued. It is called once,
	// unless Cancel or Expire came first, from whichever goroutine ends the wait. It must be quick and
	// must not call the router. Nil means that the request cannot wait, and is refused instead.
	Ready func(*decision.Decision)
	// Ticket is the place in the queue of a request for which Decide returned Queued: Decide sets it, to nil for others.
	Ticket Ticket
}

// Workers limits the workers that may take a request. Its caller sets them; [Hints] has the limits that its client sets.
type Workers struct {
	// Role is the role of the workers that may take the request. To a decode worker the prompt comes computed. Aggregated, the default,
	// means a decode worker if the pool has any.
	Role fleet.Role
	// Local means that the worker that answers computes the prompt, too.
	Local bool
	// Except are workers that must not take the request, because it has failed there.
	Except []string
	// Revision is the revision of the worker that will decode, for a prefill worker: it must have the same, or none. Empty is any.
	Revision string
	// DecodeID is the id of the decision about the worker that will decode, for a prefill worker: the time of the transfer depends on the
	// places of both. Empty if it is not known.
	DecodeID string
	// Only are the endpoints, ip:port or ip, that may take the request, sorted. Nil means every endpoint, and an empty list none.
	Only []string
}

// Ticket is a request's place in the queue. A ticket leaves the queue exactly once:
//
//	event                       state before   state after   final decision
//	Decide returns Queued       -              waiting       -
//	its turn comes (Wake, End)  waiting        decided       goes to Request.Ready
//	Wake after Until            waiting        decided       goes to Request.Ready, refused
//	Expire                      waiting        decided       is returned, refused
//	Cancel                      waiting        cancelled     none
//	Expire, Cancel              decided        decided       has gone to Request.Ready
//
// While Decide is still at work, the final decision is not passed to Request.Ready but returned by
// Decide.
type Ticket interface {
	// Until is the latest end of the wait: see Expire.
	Until() time.Time
}

// isDone reports whether the client has gone.
func (req *Request) isDone() bool {
	select {
	case <-req.Done:
		return true
	default:
		return false
	}
}
