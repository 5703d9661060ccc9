package kvevent

import (
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
	// attention. The same hash names a block in each group, and an engine with several groups
	// of one window says every change once for each: a prompt can use a block only while all
	// have it, so the first removal ends it.
	Window int
}

// Batch is one message: the events of one rank that were published together. Decode the
// messages of one rank, in order, into one batch: it remembers, from one to the next, what
// engines say only once (see the package comment).
type Batch struct {
	// Rank is the data-parallel rank, 0 where the engine has one.
	Rank int
	// Seconds is the engine's clock when it published, in seconds since 1970; 0 is unknown.
	Seconds float64
	Events  []Event
	// Unknown counts events of a kind that the decoder does not know.
	Unknown int
	// Skipped counts events that were understood and left out, because no index of this
	// rank's prompts can use them: blocks of another host, of an unknown medium, or of an
	// attention group whose blocks do not tell what a prompt finds (Mamba).
	Skipped int

	hashes []Engine
	blocks []blockhash.Block
	tokens []uint32
	memory memory
}

// Reset empties the batch and keeps its buffers, and what it remembers of its rank.
func (b *Batch) Reset() {
	b.Rank, b.Seconds, b.Unknown, b.Skipped = 0, 0, 0, 0
	b.Events, b.hashes, b.blocks, b.tokens = b.Events[:0], b.hashes[:0], b.blocks[:0], b.tokens[:0]
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
