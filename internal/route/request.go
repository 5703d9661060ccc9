package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
)

// Request is a request to route. Body and strings are only read during Decide, except Session and Source.
type Request struct {
	// ID becomes the decision's id; if it is empty, the router makes one. It must be unique among requests in flight and
	// must never come from a client.
	ID       string
	Endpoint prompt.Endpoint
	// Known is false for a path whose body is not parsed. Such a request is routed by load.
	Known bool
	Body  []byte
	// Parsed is the body's content, if the caller has parsed it already. If it is nil and Known
	// is true, Decide parses Body.
	Parsed *prompt.Request
	// Reading is memory for the content of the prompt: a decision that is Split fills it, and one for a prefill worker uses it and does not
	// read Body, unless it is empty. Both must be for the same prompt. Nil for none.
	Reading *Reading
	// Role is the role of the workers that may take the request. To a decode worker the prompt comes computed. Aggregated, the default,
	// means a decode worker if the pool has any.
	Role fleet.Role
	// Splits means that engines can compute the prompt on one worker and decode on another one, although Known is false.
	Splits bool
	// Local means that the worker that answers computes the prompt, too.
	Local bool
	// Except are workers that must not take the request, because it has failed there.
	Except []string
	// Model is for paths that are not parsed; empty means any model.
	Model string
	// Session is the client's session, if it names one. The session policy compares all of it. Decisions
	// keep a session of at most 128 bytes as it is, so it must not be a part of a larger string; of a
	// longer one they keep a hash.
	Session string
	// Source names the Envoy that carries the request: see Router.EndBefore. It is kept as Session is.
	Source string

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
	// SaltKey gives the prompt a cache salt that only this tenant has, by this key: see Decision.CacheSalt. Requests without a
	// tenant are one tenant. Nil means no salts. It must not change during Decide.
	SaltKey []byte
	// Ready receives the final decision of a request for which Decide returned Queued. It is called once,
	// unless Cancel or Expire came first, from whichever goroutine ends the wait. It must be quick and
	// must not call the router. Nil means that the request cannot wait, and is refused instead.
	Ready func(*Decision)
	// Ticket is the place in the queue of a request for which Decide returned Queued: Decide sets it, to nil for others.
	Ticket *Ticket
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

// Outcome is the kind of a decision.
type Outcome uint8

// The outcomes. Queued is not final: the final decision comes through Request.Ready.
const (
	Picked Outcome = iota
	Queued
	Refused
)

var outcomeNames = [...]string{"picked", "queued", "refused"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// MarshalText writes the outcome's name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Decision has the rank that takes a request, and the reasons. It is immutable.
type Decision struct {
	ID      string
	At      time.Time
	Outcome Outcome
	// Err is the answer to a refused request, and Reason names the cause. RetryAfter is the
	// wait to advise; 0 for no advice.
	Err        *prompt.Error
	RetryAfter time.Duration
	Reason     Reason `json:",omitempty"`
	// Wait describes the time in the queue; nil for a request that did not wait.
	Wait *Wait `json:",omitempty"`

	// Cost names the function that judged the candidates.
	Model, Policy, Cost string
	// Pool is the model whose workers may take the request: an adapter's is its base model.
	Pool string `json:"-"`
	// Worker and Rank take the request at Address. Ranks is the number of ranks of the worker. If it is more than one, the request
	// must name Rank to the engine.
	Worker      string
	Rank, Ranks int
	Address     string
	// Role is the role of the workers that could take the request. Split means that a prefill worker should compute the
	// prompt first: the caller decides that by a second request, with Role and Except set, and calls Router.Handed when the
	// prompt is computed. Legs has the reasons.
	Role  fleet.Role `json:",omitempty"`
	Split bool       `json:",omitempty"`
	Legs  Legs       `json:",omitzero"`
	// Transfer is the way in which Worker takes part in transfers of KV caches, and TransferAt the address of Rank for them.
	Transfer   fleet.Transfer `json:",omitempty"`
	TransferAt string         `json:"-"`
	// Pull is another worker from whose cache the picked one should fetch the beginning of the prompt.
	Pull Pull `json:",omitzero"`
	// Others are the addresses to try next, best first: ready, of other workers, and with a rank of that number.
	Others []string

	PromptTokens int
	// Blocks is the prompt's complete blocks; Overlap how many of them the picked rank
	// holds on any tier; Cached the tokens it need not compute.
	Blocks, Overlap, Cached int
	BlockSize               int
	// First and Last are the sequence hashes of the first and the last complete block. Equal hashes mean
	// equal prompts up to there; the text cannot be read from them.
	First, Last uint64
	// Stream, IncludeUsage and MaxTokens are as the client set them; MaxTokens 0 is no bound.
	Stream, IncludeUsage bool
	MaxTokens            int `json:",omitempty"`
	// CacheSalt is the salt by which the prompt was hashed because of Request.SaltKey. The request must carry it to
	// the engine. It is empty for a request without SaltKey.
	CacheSalt string `json:"-"`
	// Session and Source are the request's, or a hash of them: "h:" and 16 hex digits. See Request.Session.
	Session, Source string

	// Candidates are the best that were considered, best first by cost, the picked one always among them;
	// Considered is the number of all.
	Candidates []Candidate
	Considered int
}

// Candidate is one rank that could have taken the request.
type Candidate struct {
	Worker  string
	Rank    int
	Address string
	Picked  bool
	// Overlap is in blocks: device from the root, each slower tier past the faster ones.
	Overlap [fleet.Tiers]int
	// Evicting is the number of further blocks on the device that the prompts that wait there will evict before this one is computed.
	Evicting int
	// OnNode and OnPeers count the blocks after Overlap that the rank can load from host memory: OnNode from the memory of the rank's node,
	// if other engines have reported the blocks, and OnPeers from the memory of other nodes.
	OnNode, OnPeers int
	Load            fleet.Amount // booked there before this request
	// Untracked is the requests there that no router has booked.
	Untracked int64
	// Reported means that the rank's engine has reported its load. Else bookings stand for it.
	Reported bool
	Score    cost.Score
}
