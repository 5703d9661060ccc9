package kvevent

import (
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// Raw is one event as a simulated engine reports it, with token ids instead of content hashes. Its slices
// belong to the engine and are valid during the call.
type Raw struct {
	Kind Kind
	Tier fleet.Tier
	// Hashes are the engine's own, in chain order for Stored. Empty for Cleared.
	Hashes []EngineHash
	// Parent precedes the first block, where HasParent is true.
	Parent    EngineHash
	HasParent bool
	// Tokens are the tokens of all Hashes, BlockSize each. Only for Stored.
	Tokens    []uint32
	BlockSize int
	// LoRA is the adapter's name, empty for the base model; LoRAID is the engine's number for it.
	LoRA   string
	LoRAID int
	// Salt is the request's cache salt, only with the first block of a prompt.
	Salt string
	// Session echoes the request's session_id.
	Session string
}

// Add appends r to the batch as if it had been published and decoded, without the bytes.
func (b *Batch) Add(r *Raw) {
	from := len(b.hashes)
	b.hashes = append(b.hashes, r.Hashes...)
	switch r.Kind {
	case Stored:
		salt := r.Salt
		if r.HasParent {
			salt = ""
		}
		b.addStored(stored{
			tier: r.Tier, hashes: b.hashes[from:len(b.hashes):len(b.hashes)], parent: r.Parent, hasParent: r.HasParent,
			tokens: r.Tokens, blockSize: r.BlockSize, lora: r.LoRA, salt: salt,
			joined: r.Tier != fleet.Device,
		})
	case Removed:
		b.Events = append(b.Events, Event{Kind: Removed, Tier: r.Tier, Hashes: b.hashes[from:len(b.hashes):len(b.hashes)]})
	case Cleared:
		b.addCleared()
	}
}

// stored is a stored event of any dialect.
type stored struct {
	tier      fleet.Tier
	hashes    []EngineHash
	parent    EngineHash
	hasParent bool
	tokens    []uint32
	blockSize int
	window    int32
	group     int // -1 if it was not reported
	lora      string
	salt      string // empty: the parent's
	// joined means that the content does not follow from the tokens, so that the blocks are known only by
	// their engine hashes.
	joined bool
	// extra are keys that are part of a block's content beside the tokens; nil for most.
	extra *extraKeys
}

// addStored appends a stored event, with content hashes if the tokens fill the blocks.
func (b *Batch) addStored(s stored) {
	seed := blockhash.Seed(s.lora, s.salt)
	salted := s.salt != ""
	if s.hasParent && !salted {
		if inherited, ok := b.memory.inherit(s.parent); ok {
			seed, salted = inherited, true
		}
	}
	if salted {
		b.memory.remember(s.hashes, seed)
	}

	whole := s.blockSize > 0 && len(s.tokens)/s.blockSize == len(s.hashes) && len(s.tokens)%s.blockSize == 0
	if whole || len(s.tokens) == 0 { // a copy on another tier may come without tokens
		b.split(&s)
	}
	e := Event{Kind: Stored, Tier: s.tier, Hashes: s.hashes, Parent: s.parent, HasParent: s.hasParent, BlockSize: s.blockSize,
		Window: int(s.window), Group: groupOf(s.group, s.window)}
	if whole && !s.joined {
		e.Blocks = b.hashContent(s.tokens, s.blockSize, seed, s.extra)
	}
	b.Events = append(b.Events, e)
}

// hashContent appends the content hashes of blocks to the batch's buffer, and returns them.
func (b *Batch) hashContent(tokens []uint32, size int, seed uint64, extra *extraKeys) []blockhash.Block {
	from := len(b.blocks)
	if extra == nil || len(extra.words) == 0 {
		b.blocks = blockhash.Append(b.blocks, tokens, size, seed)
		return b.blocks[from:len(b.blocks):len(b.blocks)]
	}
	for i := 0; len(tokens) >= size; i++ {
		b.blocks = append(b.blocks, blockhash.Hash(extra.content(tokens[:size], extra.first+i), seed))
		tokens = tokens[size:]
	}
	return b.blocks[from:len(b.blocks):len(b.blocks)]
}

// addCleared appends a cleared event. Salts of blocks that are gone are not needed any more.
func (b *Batch) addCleared() {
	b.memory.forgetSalts()
	b.Events = append(b.Events, Event{Kind: Cleared})
}
