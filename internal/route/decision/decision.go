package decision

import (
	"slices"
	"strconv"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/cost"
)

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
	// Alias means that Model is another name of Pool, which engines need not know. The request must carry Pool to the engine.
	Alias bool `json:"-"`
	Placement
	// Role is the role of the workers that could take the request. Split means that a prefill worker should compute the
	// prompt first: the caller decides that by a second request, with Role and Except set, and calls Router.Handed when the
	// prompt is computed. Legs has the reasons.
	Role  fleet.Role `json:",omitempty"`
	Split bool       `json:",omitempty"`
	Legs  Legs       `json:",omitzero"`
	PromptUse
	Client

	// Candidates are the best that were considered, best first by cost, the picked one always among them;
	// Considered is the number of all.
	Candidates []Candidate
	Considered int
}

// Placement is the rank that takes a request, and what takes part beside it.
type Placement struct {
	// Worker and Rank take the request at Address. Ranks is the number of ranks of the worker. If it is more than one, the request
	// must name Rank to the engine.
	Worker      string
	Rank, Ranks int
	Address     string
	// AnyRank means that the engine of Worker chooses the rank by itself, whatever the request names.
	AnyRank bool `json:",omitempty"`
	// Engine is the kind of engine of Worker.
	Engine string `json:"-"`
	// Revision is the revision of the rollout that Worker belongs to. A prefill worker must have the same.
	Revision string `json:",omitempty"`
	// Transfer is the way in which Worker takes part in transfers of KV caches, and TransferAt the address of Rank for them.
	Transfer fleet.Transfer `json:",omitempty"`
	// PullShared is the level of the place that Worker shares with Pull.Worker. It is beside Transfer, where it takes no room.
	PullShared fleet.Level `json:",omitempty"`
	TransferAt string      `json:"-"`
	// Pull is another worker from whose cache the picked one should fetch the beginning of the prompt.
	Pull Pull `json:",omitzero"`
	// Onward is the transfer that follows the work of a picked prefill worker; nil if the place of the decode worker is not known.
	Onward *Onward `json:",omitempty"`
	// Others are the addresses to try next, best first: ready, of other workers, and with a rank of that number.
	Others []string
}

// PromptUse has the sizes of a prompt, and how much of it is cached on the picked rank.
type PromptUse struct {
	PromptTokens int
	// Blocks is the prompt's complete blocks; Overlap how many of them the picked rank
	// holds on any tier; Cached the tokens it need not compute.
	Blocks, Overlap, Cached int
	BlockSize               int
	// First and Last are the sequence hashes of the first and the last complete block. Equal hashes mean
	// equal prompts up to there; the text cannot be read from them.
	First, Last uint64
}

// Client has the client's settings.
type Client struct {
	// Stream, IncludeUsage and MaxTokens are as the client set them; MaxTokens 0 is no bound.
	Stream, IncludeUsage bool
	MaxTokens            int `json:",omitempty"`
	// Pin is how long the prompt's blocks are to stay in the store of KV blocks; 0 for no store. The request must carry it to the engine.
	Pin time.Duration `json:",omitempty"`
	// Speculates means that the client wants the prefix of its conversation's next turn computed after the answer.
	Speculates bool `json:"-"`
	// CacheSalt is the salt by which the prompt was hashed because of Request.SaltKey. The request must carry it to
	// the engine. It is empty for a request without SaltKey.
	CacheSalt string `json:"-"`
	// Session and Source are the request's, or a hash of them: "h:" and 16 hex digits. See Request.Session.
	Session, Source string
	// Account is the client's tenant by Envoy's own authentication; empty if there is none. Wait.Tenant may be a hint of the client.
	Account string `json:",omitempty"`
}

// Candidate is one rank that could have taken the request.
type Candidate struct {
	Worker  string
	Rank    int
	Address string
	Picked  bool
	// Reported means that the rank's engine has reported its load. Else bookings stand for it.
	Reported bool
	// Capacity is the number of blocks that the rank's cache holds; 0 if it is not known.
	Capacity int `json:",omitempty"`
	// Overlap is in blocks: device from the root, each slower tier past the faster ones.
	Overlap [fleet.Tiers]int
	// Evicting is the number of further blocks on the device that the prompts that wait there will evict before this one is computed.
	Evicting int
	// OnNode and OnPeers count the blocks after Overlap that the rank can load from host memory: OnNode from the memory of the rank's node,
	// if other engines have reported the blocks, and OnPeers from the memory of other nodes.
	OnNode, OnPeers int
	// Outside counts the blocks after Overlap that the rank can load from caches outside engines, by tier.
	Outside [fleet.Tiers]int
	Load    fleet.Amount // booked there before this request
	// Untracked is the requests there that no router has booked.
	Untracked int64
	Score     cost.Score
}

// Wait describes the time that a request waited.
type Wait struct {
	// Since is the time at which the request came, and Took the time that it has waited.
	Since time.Time
	Took  time.Duration
	// Class and Tenant are its place in the queue. Ahead is the number of requests that waited in
	// the whole queue when it came.
	Class, Tenant string
	Ahead         int
	// Busy is the number of ranks that could have taken the request if they had been less busy. If Free is true these ranks were free, and
	// the request took its turn behind others.
	Busy int
	Free bool
	// Held means that the caches had no room for the context of the request's program.
	Held bool `json:",omitempty"`
	// Starting means that no worker was ready, and that one starts because requests wait.
	Starting bool `json:",omitempty"`
}

// Pull is a worker from whose cache the picked one should fetch the beginning of the prompt, because that is faster than to
// compute it: vLLM's "remote_kv_source".
type Pull struct {
	Worker string
	Rank   int
	// At is the host and port of that rank for transfers.
	At string
	// Tokens is the number of tokens of the prompt that are there and not on the picked rank.
	Tokens int
}

// Onward is a transfer to a decode worker: the tokens that it does not hold, the level of the place that both workers share, and the
// expected time.
type Onward struct {
	Worker string
	Tokens int
	Shared fleet.Level
	Took   time.Duration
}

// NameBlocks writes the hashes of the prompt's first and last block, and counts its blocks.
func (d *Decision) NameBlocks(chain []blockhash.Sequence) {
	d.Blocks = len(chain)
	if d.Blocks > 0 {
		d.First = uint64(chain[0])
		d.Last = uint64(chain[d.Blocks-1])
	}
}

// PrefillID returns the id of the decision about the nth prefill worker of a request whose decision is Split, counted from 0.
func (d *Decision) PrefillID(n int) string { return d.ID + "-prefill" + strconv.Itoa(n) }

// Clone is a copy that shares no memory that DecideInto overwrites.
func (d *Decision) Clone() *Decision {
	c := *d
	c.Candidates, c.Others = slices.Clone(d.Candidates), slices.Clone(d.Others)
	return &c
}
