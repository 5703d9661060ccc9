package kvevent

import (
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Kind says what happened to the blocks of an event.
type Kind uint8

// The vocabulary.
const (
	Stored  Kind = iota // blocks were added to a tier
	Removed             // blocks were evicted from a tier
	Cleared             // the rank forgot everything, on all tiers
)

var kindNames = [...]string{"stored", "removed", "cleared"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Engine is an engine's own hash of a block in its chain. It means something only together
// with the rank and epoch that used it. A 32-byte hash is held as its last 8 bytes, big
// endian, as vLLM itself shortens it.
type Engine uint64

// Event is one change of one rank's cache. Hashes and Blocks belong to the batch's buffers:
// they are valid until the batch is decoded into again.
type Event struct {
	Kind Kind
	Tier fleet.Tier
	// Hashes name the blocks, in chain order for Stored. Empty for Cleared.
	Hashes []Engine
	// Parent is the engine's hash of the block before the first; only for Stored, and only
	// where HasParent is true. Without a parent the first block begins a prompt.
	Parent    Engine
	HasParent bool
	// Blocks are the content hashes of Hashes, one each, or empty where the engine did not
	// say the tokens; then the blocks can only be known by joining Hashes.
	Blocks []blockhash.Block
	// BlockSize is the engine's, in tokens; 0 where it did not say.
	BlockSize int
	// Window is how many tokens back the attention group of these blocks looks; 0 is full
	// attention. The same hash names a block in each group, and the engine says every change
	// once for each: a prompt can use a block only while all have it.
	Window int
	// Group is the engine's own number of the attention group, which tells groups of one window
	// apart; only where Window is not 0. An engine that does not number its groups, like
	// TensorRT-LLM, has one of each window: the window is its number.
	Group int
}

// Batch is one message: the events of one rank that were published together. Decode the
// messages of one rank, in order, into one batch: it remembers, from one to the next, what
// engines say only once (see the package comment).
type Batch struct {
	// Only, where it is not nil, says whose events to take out of a message that may speak of
	// several ranks (TensorRT-LLM) or workers (Dynamo). Without it such a message is an error.
	Only func(worker uint64, rank int) bool
	// BlockSize is the engine's, where it is known beforehand: TensorRT-LLM announces partial
	// blocks like whole ones, and nothing else tells them apart. 0: the largest block seen.
	BlockSize int

	// Rank is the data-parallel rank, 0 where the engine has one; Worker is the number that
	// Dynamo has given the worker.
	Rank   int
	Worker uint64
	// Seconds is the engine's clock when it published, in seconds since 1970; 0 is unknown.
	Seconds float64
	// First and Last are the numbers of the first and last event, from engines that number
	// events and not messages (TensorRT-LLM, Dynamo). Numbered says that there are any.
	First, Last uint64
	Numbered    bool
	Events      []Event
	// Unknown counts events of a kind that the decoder does not know.
	Unknown int
	// Skipped counts events that were understood and left out, because no index of this
	// rank's prompts can use them: blocks of another host, of an unknown medium, or of an
	// attention group whose blocks do not tell what a prompt finds (Mamba).
	Skipped int
	// Others counts events that Only has refused.
	Others int

	owned  bool // Rank and Worker are known
	hashes []Engine
	blocks []blockhash.Block
	tokens []uint32
	memory memory
}

// Reset empties the batch and keeps its buffers, and what it remembers of its rank.
func (b *Batch) Reset() {
	b.Rank, b.Worker, b.owned, b.Seconds = 0, 0, false, 0
	b.First, b.Last, b.Numbered = 0, 0, false
	b.Unknown, b.Skipped, b.Others = 0, 0, 0
	b.Events, b.hashes, b.blocks, b.tokens = b.Events[:0], b.hashes[:0], b.blocks[:0], b.tokens[:0]
}

// take says whether to take an event of the worker's rank, which is then the batch's.
func (b *Batch) take(worker uint64, rank int) (bool, error) {
	switch {
	case b.Only != nil && !b.Only(worker, rank):
		b.Others++
		return false, nil
	case !b.owned:
		b.Worker, b.Rank, b.owned = worker, rank, true
	case worker != b.Worker || rank != b.Rank:
		return false, fmt.Errorf("events of worker %d rank %d and of worker %d rank %d in one message: take them one by one, with Only",
			b.Worker, b.Rank, worker, rank)
	}
	return true, nil
}

// number keeps the number of an event.
func (b *Batch) number(id uint64) {
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

// DefaultLimits leave room for the largest messages seen from real engines (179 events) and
// for one that announces a prompt of a million tokens.
var DefaultLimits = Limits{Bytes: 64 << 20, Events: 1 << 16, Blocks: 1 << 20, Tokens: 1 << 22}
