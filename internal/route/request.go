package route

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
)

// Request is what is asked of the router. Body and strings are only read during Decide.
type Request struct {
	// ID becomes the decision's id; where it is empty the router makes one. It must be
	// unique among requests in flight and must never come from a client.
	ID       string
	Endpoint prompt.Endpoint
	// Known is false for a path whose body we do not parse: such a request is routed by load.
	Known bool
	Body  []byte
	// Parsed is the body's content, where the caller has read it already; nil lets
	// Config.Parse read Body.
	Parsed *prompt.Request
	// Role is whom the request is for: workers that do all of it, or one part. To a decode worker the
	// prompt comes computed.
	Role fleet.Role
	// Model is for paths that are not parsed; empty means any model.
	Model string
	// Session is the client's session, where it names one.
	Session string
	// Source names the Envoy that carries the request: see Router.EndBefore.
	Source string

	// Deaf has the hints of the body ignored: its sender is not trusted with them.
	Deaf bool
	// Hints are those of trusted headers; they go before the body's. Nil for none.
	Hints *prompt.Hints
	// Tenant is who shares a fair class of the queue with others; empty means the body's user.
	Tenant string
	// Ready is told the final decision of a request that had to wait: where Decide returned Queued,
	// once, unless the request left before. It must be quick and must not call the router. Nil: the
	// request cannot wait, and is refused where it would have to.
	Ready func(*Decision)
}

// Outcome says what Decide decided.
type Outcome uint8

// The outcomes. Queued is not final: Request.Ready will be told what becomes of it.
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

// Decision is where a request goes, and why. It is immutable.
type Decision struct {
	ID      string
	At      time.Time
	Outcome Outcome
	// Err is what to answer, for Refused; RetryAfter is the wait to advise, 0 for none.
	Err        *prompt.Error
	RetryAfter time.Duration
	// Reason names why, for Refused.
	Reason Reason `json:",omitempty"`
	// Ticket is the place in the queue, for Queued.
	Ticket *Ticket `json:"-"`
	// Wait is about the time in the queue; nil for a request that did not wait.
	Wait *Wait `json:",omitempty"`

	// Cost names the function that judged the candidates.
	Model, Policy, Cost string
	// Worker and Rank take the request at Address. Ranks is how many the worker has: where
	// there is more than one, the pick must be pinned to Rank.
	Worker      string
	Rank, Ranks int
	Address     string
	// Others are the addresses to try next, best first: ready, and of other workers.
	Others []string

	PromptTokens int
	// Blocks is the prompt's complete blocks; Overlap how many of them the picked rank
	// holds on any tier; Cached the tokens it need not compute.
	Blocks, Overlap, Cached int
	BlockSize               int
	// First and Last are the sequence hashes of the first and the last complete block: they
	// say which prompts were alike without saying what they were.
	First, Last uint64
	// Stream and IncludeUsage are the client's, and MaxTokens its bound of the answer, 0 for none.
	Stream, IncludeUsage bool
	MaxTokens            int `json:",omitempty"`
	Session, Source      string

	// Candidates are the best that were considered, best first by cost, the picked one always
	// among them; Considered is how many there were.
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
	Load    fleet.Amount
	Foreign int64 // requests there that no router has booked
	Score   cost.Score
}
