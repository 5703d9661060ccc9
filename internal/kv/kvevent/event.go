package kvevent

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Kind is the change to the blocks of an event.
type Kind uint8

// The kinds.
const (
	Stored  Kind = iota // blocks were added to a tier
	Removed             // blocks were evicted from a tier
	Cleared             // the rank's cache was emptied, on all tiers
)

var kindNames = [...]string{"stored", "removed", "cleared"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// EngineHash is an engine's own hash of a block in its chain. Equal hashes mean equal blocks only
// within one rank and epoch. Of a 32-byte hash these are the last 8 bytes, big endian, as vLLM shortens it.
type EngineHash uint64

// Event is one change of one rank's cache. Hashes and Blocks belong to the batch's buffers:
// they are valid until the batch is decoded into again.
type Event struct {
	Kind Kind
	Tier fleet.Tier
	// Hashes name the blocks, in chain order for Stored. Empty for Cleared.
	Hashes []EngineHash
	// Parent is the engine's hash of the block before the first; only for Stored, and only
	// where HasParent is true. Without a parent the first block begins a prompt.
	Parent    EngineHash
	HasParent bool
	// Blocks are the content hashes of Hashes, one each. They are empty if the engine did not report the
	// tokens. Then a block's content is known only if an earlier event had the same hash.
	Blocks []blockhash.Block
	// BlockSize is the engine's, in tokens; 0 if it did not report it.
	BlockSize int
	// Window is the number of tokens that the attention group of these blocks looks back; 0 is full
	// attention. One hash names a block in each group, and the engine reports each change once for each
	// group. A prompt can use a block only while all groups hold it.
	Window int
	// Group is the engine's number of the attention group, if Window is not 0. It distinguishes groups with
	// the same window. An engine that does not number its groups, like TensorRT-LLM, has one group for each
	// window, whose number is the window.
	Group int
}

// Batch is one message: the events of one rank that were published together. Decode all messages of a rank,
// in order, into one batch. It keeps what engines report only once from one message to the next: see the
// package comment.
type Batch struct {
	// Only selects the events of one rank from a message of several ranks (TensorRT-LLM) or workers (Dynamo).
	// If it is nil, such a message is an error.
	Only func(worker uint64, rank int) bool
	// BlockSize is the engine's, in tokens. TensorRT-LLM reports partial blocks like complete ones, and only
	// their size distinguishes them. 0 means unknown: then it is the size of the largest block so far.
	BlockSize int
	// Split is the size of blocks that the reader wants, in tokens; 0 keeps the sizes of the events. With it, a block of n times that size
	// is n blocks: all of them are stored and removed together. Only dialects of vLLM's shape do this.
	Split int

	// Rank is the data-parallel rank; 0 if the engine has one. Worker is the number that Dynamo gave the
	// worker.
	Rank   int
	Worker uint64
	// Seconds is the engine's clock when it published, in seconds since 1970; 0 is unknown.
	Seconds float64
	// First and Last are the numbers of the first and last event, if Numbered is true: from engines that
	// number events and not messages (TensorRT-LLM, Dynamo).
	First, Last uint64
	Numbered    bool
	Events      []Event
	// Unknown counts events of kinds that the decoder does not support.
	Unknown int
	// Skipped counts events that were read and left out, because an index of this rank's prompts cannot use
	// them: blocks on another host, on an unknown medium, or of an attention group whose blocks do not
	// correspond to a prompt's (Mamba).
	Skipped int
	// Others counts events that Only has refused.
	Others int

	owned  bool // Rank and Worker are set, by the first event that has them
	hashes []EngineHash
	blocks []blockhash.Block
	tokens []uint32
	memory memory
}

// Reset empties the batch. It keeps the settings, the buffers, and the memory of earlier messages.
func (b *Batch) Reset() {
	b.owned = false
	b.Rank, b.Worker = 0, 0
	b.Seconds = 0
	b.Numbered = false
	b.First, b.Last = 0, 0
	b.Unknown = 0
	b.Skipped = 0
	b.Others = 0

	b.Events = b.Events[:0]
	b.hashes = b.hashes[:0]
	b.blocks = b.blocks[:0]
	b.tokens = b.tokens[:0]
}

// accepts reports whether an event of a worker's rank belongs to the batch. The first one that does sets the
// batch's worker and rank.
func (b *Batch) accepts(worker uint64, rank int) (bool, error) {
	switch {
	case b.Only != nil && !b.Only(worker, rank):
		b.Others++
		return false, nil
	case !b.owned:
		b.Worker, b.Rank = worker, rank
		b.owned = true
	case worker != b.Worker || rank != b.Rank:
		return false, fmt.Errorf("events of worker %d rank %d and of worker %d rank %d in one message: take them one by one, with Only",
			b.Worker, b.Rank, worker, rank)
	}
	return true, nil
}

// addNumber widens First and Last to the number of an event.
func (b *Batch) addNumber(id uint64) {
	if !b.Numbered {
		b.First, b.Numbered = id, true
	}
	b.Last = id
}

// Limits bound one message. The zero value means [DefaultLimits].
type Limits struct {
	Bytes  int // of the message
	Events int // in the message
	Blocks int // in the message, over all events
	Tokens int // in the message, over all events
}

// DefaultLimits have room for the largest messages seen from real engines (179 events), and for one that
// reports a prompt of a million tokens.
var DefaultLimits = Limits{Bytes: 64 << 20, Events: 1 << 16, Blocks: 1 << 20, Tokens: 1 << 22}
