package decisionlog

import (
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/decision"
)

// Decision is a route.Decision as JSON. Its keys do not depend on the names of Go fields.
type Decision struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"` // picked, refused and so on

	Refusal

	// Queue is set for requests that waited in the queue.
	Queue *Queue `json:"queue,omitempty"`

	Model  string `json:"model"`
	Policy string `json:"policy"`
	Cost   string `json:"cost"` // the cost function of the candidates

	Pick
	// Role is the role of the candidates, unless they were aggregated workers. Split means that a prefill worker was to compute the
	// prompt first: ID with "-prefill0" behind it is the decision about that one.
	Role  string `json:"role,omitempty"`
	Split bool   `json:"split,omitempty"`
	Legs  *Legs  `json:"legs,omitempty"`
	// Pull is the worker from whose cache the picked one was to fetch the beginning of the prompt.
	Pull *Pull `json:"pull,omitempty"`

	Prompt
	Asked

	// Candidates are the best ranks that were considered, best first, the picked one always among them.
	// Considered is the number of ranks that the model had.
	Candidates []Candidate `json:"candidates"`
	Considered int         `json:"considered"`
}

// Refusal is the kind of refusal of a refused request, the answer, and the advised wait.
type Refusal struct {
	Reason            string  `json:"reason,omitempty"`
	Error             *Error  `json:"error,omitempty"`
	RetryAfterSeconds float64 `json:"retry_after_seconds,omitempty"`
}

// Pick is the picked rank. Ranks is the number of the worker's ranks. Others are the addresses of other workers, in the order in which
// Envoy tries them.
type Pick struct {
	Worker  string   `json:"worker"`
	Rank    int      `json:"rank"`
	Ranks   int      `json:"ranks"`
	Address string   `json:"address"`
	AnyRank bool     `json:"any_rank,omitempty"` // the engine of the worker chooses the rank by itself
	Others  []string `json:"others,omitempty"`
}

// Prompt is the prompt of a request. Blocks is the number of its complete blocks, OverlapBlocks how many of them the picked rank has on any
// tier, and CachedTokens how many tokens it need not compute.
type Prompt struct {
	PromptTokens  int `json:"prompt_tokens"`
	Blocks        int `json:"blocks"`
	OverlapBlocks int `json:"overlap_blocks"`
	CachedTokens  int `json:"cached_tokens"`
	BlockSize     int `json:"block_size"`

	// FirstHash and LastHash are the sequence hashes of the first and the last complete block.
	FirstHash *Hash `json:"first_hash,omitempty"`
	LastHash  *Hash `json:"last_hash,omitempty"`
}

// Asked are the settings of the client. MaxTokens is 0 if the client set no bound.
type Asked struct {
	Stream       bool   `json:"stream"`
	IncludeUsage bool   `json:"include_usage"`
	MaxTokens    int    `json:"max_tokens,omitempty"`
	Session      string `json:"session,omitempty"`
	// PinSeconds is how long the prompt's blocks are to stay in the store of KV blocks.
	PinSeconds float64 `json:"pin_seconds,omitempty"`
	// Account is the client's tenant by Envoy's authentication.
	Account string `json:"account,omitempty"`
	Source  string `json:"source,omitempty"`
}

// OfPrefill reports whether the decision is about the prefill worker of a request: the one about its decode worker is another line.
func (d *Decision) OfPrefill() bool { return d.Role == fleet.Prefill.String() }

// Error is the answer to a refused request.
type Error struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param,omitempty"`
	Code    string `json:"code,omitempty"`
}

// Queue is a request's time in the queue.
type Queue struct {
	Since         time.Time `json:"since"` // when the request arrived
	WaitedSeconds float64   `json:"waited_seconds"`
	Class         string    `json:"class,omitempty"`
	Tenant        string    `json:"tenant,omitempty"`
	// Ahead is the number of requests that were queued on arrival. BusyRanks is the number of ranks
	// that were busy; 0 with FreeRanks set, where ranks were free and other requests were first.
	Ahead     int  `json:"ahead"`
	BusyRanks int  `json:"busy_ranks"`
	FreeRanks bool `json:"free_ranks"`
}

// Candidate is one rank that was considered.
type Candidate struct {
	Worker  string `json:"worker"`
	Rank    int    `json:"rank"`
	Address string `json:"address"`
	Picked  bool   `json:"picked"`
	// CapacityBlocks is the number of blocks that the rank's cache holds; 0 if it is not known.
	CapacityBlocks int `json:"capacity_blocks,omitempty"`

	// Overlap counts blocks of the prompt: on the device from the first one, and on each slower tier
	// beyond the blocks of the faster ones.
	Overlap Overlap `json:"overlap_blocks"`
	// EvictingBlocks are further blocks on the device. The prompts that wait there will evict them before this one is computed.
	EvictingBlocks int `json:"evicting_blocks,omitempty"`
	// NodeBlocks and PeerBlocks follow the blocks of Overlap in host memory from which the rank can load: NodeBlocks are in the memory
	// of its node, if other engines have reported them, and PeerBlocks in the memory of other nodes.
	NodeBlocks int `json:"node_blocks,omitempty"`
	PeerBlocks int `json:"peer_blocks,omitempty"`
	// OutsideBlocks follow the blocks of Overlap in caches outside engines from which the rank can load.
	OutsideBlocks int `json:"outside_blocks,omitempty"`

	// Booked by all routers, and the requests on the engine that no router booked.
	BookedRequests      int64 `json:"booked_requests"`
	BookedPrefillTokens int64 `json:"booked_prefill_tokens"`
	BookedDecodeBlocks  int64 `json:"booked_decode_blocks"`
	UntrackedRequests   int64 `json:"untracked_requests"`

	Score Score `json:"score"`
}

// Overlap is blocks by tier.
type Overlap struct {
	Device   int `json:"device"`
	Host     int `json:"host"`
	Disk     int `json:"disk"`
	External int `json:"external"`
}

// Legs are the costs of both ways to serve a request of a model with prefill and decode workers, and why it has one leg or two:
// "cost", "asked", "policy", "no_prefill_worker", "no_partner" or "no_transfer". Without "cost" the costs are 0.
type Legs struct {
	Local   float64 `json:"local"`   // one worker
	Prefill float64 `json:"prefill"` // the prefill worker's part
	Decode  float64 `json:"decode"`  // the decode worker's part, with the transfer
	Why     string  `json:"why"`
}

// Pull is a worker with a part of the prompt in its cache, in tokens.
type Pull struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	Tokens int    `json:"tokens"`
}

// Score is the cost of a candidate and its terms: milliseconds with the cost function delay, and blocks
// with dynamo. Terms that a function does not have are 0.
type Score struct {
	Total          float64 `json:"total"`
	Wait           float64 `json:"wait"`
	Prefill        float64 `json:"prefill"`
	Slot           float64 `json:"slot,omitempty"`
	Others         float64 `json:"others,omitempty"`
	Evict          float64 `json:"evict,omitempty"`
	Room           float64 `json:"room,omitempty"`
	Decode         float64 `json:"decode"`
	Requests       float64 `json:"requests"`
	Own            float64 `json:"own"`
	Credit         float64 `json:"credit"`
	Ahead          float64 `json:"ahead"`
	Transfer       float64 `json:"transfer,omitempty"`
	LoadedTokens   int     `json:"loaded_tokens,omitempty"`
	PulledTokens   int     `json:"pulled_tokens,omitempty"`
	UncachedTokens int     `json:"uncached_tokens"`
	Preference     float64 `json:"preference,omitempty"`
}

// View returns a decision as it is written. It does not keep d.
func View(d *decision.Decision) Decision {
	v := Decision{
		ID: d.ID, At: d.At, Outcome: d.Outcome.String(), Model: d.Model, Policy: d.Policy, Cost: d.Cost, Considered: d.Considered,
		Refusal: Refusal{Reason: string(d.Reason), RetryAfterSeconds: d.RetryAfter.Seconds()},
		Pick: Pick{
			Worker: d.Worker, Rank: d.Rank, Ranks: d.Ranks, Address: d.Address, AnyRank: d.AnyRank,
			Others: append([]string(nil), d.Others...),
		},
		Role: roleOf(d), Split: d.Split,
		Prompt: Prompt{
			PromptTokens: d.PromptTokens, Blocks: d.Blocks, OverlapBlocks: d.Overlap, CachedTokens: d.Cached, BlockSize: d.BlockSize,
		},
		Asked: Asked{
			Stream: d.Stream, IncludeUsage: d.IncludeUsage, MaxTokens: d.MaxTokens, Session: d.Session, PinSeconds: d.Pin.Seconds(),
			Account: d.Account, Source: d.Source,
		},
	}
	if d.Err != nil {
		v.Error = &Error{Status: d.Err.Status, Message: d.Err.Message, Type: d.Err.Type, Param: d.Err.Param, Code: d.Err.Code}
	}
	if w := d.Wait; w != nil {
		v.Queue = &Queue{
			Since: w.Since, WaitedSeconds: w.Took.Seconds(), Class: w.Class, Tenant: w.Tenant,
			Ahead: w.Ahead, BusyRanks: w.Busy, FreeRanks: w.Free,
		}
	}
	if l := d.Legs; l.Why != "" {
		v.Legs = &Legs{Local: l.Local, Prefill: l.Prefill, Decode: l.Decode, Why: string(l.Why)}
	}
	if d.Pull.Tokens > 0 {
		v.Pull = &Pull{Worker: d.Pull.Worker, Rank: d.Pull.Rank, Tokens: d.Pull.Tokens}
	}
	if d.Blocks > 0 {
		first, last := Hash(d.First), Hash(d.Last)
		v.FirstHash, v.LastHash = &first, &last
	}

	v.Candidates = make([]Candidate, len(d.Candidates))
	for i := range d.Candidates {
		v.Candidates[i] = viewCandidate(&d.Candidates[i])
	}
	return v
}

func viewCandidate(c *decision.Candidate) Candidate {
	s := &c.Score
	return Candidate{
		Worker: c.Worker, Rank: c.Rank, Address: c.Address, Picked: c.Picked, CapacityBlocks: c.Capacity,
		Overlap: Overlap{
			Device: c.Overlap[fleet.Device], Host: c.Overlap[fleet.Host], Disk: c.Overlap[fleet.Disk], External: c.Overlap[fleet.External],
		},
		EvictingBlocks: c.Evicting, NodeBlocks: c.OnNode, PeerBlocks: c.OnPeers,
		OutsideBlocks:  cost.HeldBlocks(&c.Outside),
		BookedRequests: c.Load.Requests, BookedPrefillTokens: c.Load.PrefillTokens, BookedDecodeBlocks: c.Load.DecodeBlocks,
		UntrackedRequests: c.Untracked,
		Score: Score{
			Total: s.Total, Wait: s.Wait, Prefill: s.Prefill, Decode: s.Decode, Requests: s.Requests, Own: s.Own,
			Slot: s.Slot, Others: s.Others, Evict: s.Evict, Room: s.Room,
			Credit: s.Credit, Ahead: s.Ahead, Transfer: s.Transfer, LoadedTokens: int(s.Loaded), PulledTokens: int(s.Pulled),
			UncachedTokens: s.Uncached, Preference: s.Preference,
		},
	}
}

// roleOf returns the role of the candidates; empty for aggregated workers.
func roleOf(d *decision.Decision) string {
	if d.Role == fleet.Aggregated {
		return ""
	}
	return d.Role.String()
}
