package engine

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/perfmodel"
)

// Config configures an engine. Zero fields have their defaults. Only [New] reads it.
type Config struct {
	// Blocks is the size of the KV cache in blocks; default 16,384. With more blocks, more requests run at
	// once and more prefixes stay cached.
	Blocks int
	// BlockSize is the number of tokens of a block; default 16.
	BlockSize int
	// MaxNumSeqs bounds the requests that run at once, as vLLM's max_num_seqs; default 256.
	MaxNumSeqs int
	// MaxNumBatchedTokens bounds the tokens of one pass, as vLLM's max_num_batched_tokens; default 8,192. With
	// more tokens, long prompts are computed sooner, and requests that decode in the same passes are slower.
	MaxNumBatchedTokens int
	// MaxModelLen bounds prompt and answer together, in tokens; default 131,072. The KV cache bounds them,
	// too.
	MaxModelLen int
	// MaxWaiting bounds the queue of waiting requests; default 16,384. Real engines have no bound, but a
	// simulated engine shares its machine with the measured processes.
	MaxWaiting int
	// HashSeed is the seed of the engine's block hashes. Engines with different seeds have different hashes
	// of the same block, as real ones may.
	HashSeed uint64
	// Timing gives the duration of passes; default perfmodel.Polynomial{}.
	Timing perfmodel.Timing
	// Overlap makes a pass as long as the longer one of its parts, prefill and decode, as if they shared no hardware. By
	// default a pass lasts as long as both together, as with Dynamo's engines. Real engines are in between.
	Overlap bool
	// Shared is a cache that other engines have too; nil means none. Blocks that it holds need not be computed.
	Shared *SharedCache
	// Tiers are caches behind the engine's, the fastest first; none by default. See tiers.go.
	Tiers []Tier
	// LoadAll has the engine load whatever its tiers have, also where computing is faster, as other block managers do.
	LoadAll bool
	// Noise changes the duration of passes; the zero Noise does not.
	Noise Noise
}

// DefaultBlocks is the default of Config.Blocks.
const DefaultBlocks = 16384

func (c Config) withDefaults() Config {
	c.Blocks = cmp.Or(c.Blocks, DefaultBlocks)
	c.BlockSize = cmp.Or(c.BlockSize, 16)
	c.MaxNumSeqs = cmp.Or(c.MaxNumSeqs, 256)
	c.MaxNumBatchedTokens = cmp.Or(c.MaxNumBatchedTokens, 8192)
	c.MaxModelLen = cmp.Or(c.MaxModelLen, 131072)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 16384)
	if c.Timing == nil {
		c.Timing = perfmodel.Polynomial{}
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	for _, f := range []struct {
		name     string
		value    int
		from, to int
	}{
		{"blocks", c.Blocks, 2, 1 << 26},
		{"block size", c.BlockSize, 1, 1 << 16},
		{"max num seqs", c.MaxNumSeqs, 1, 1 << 20},
		{"max num batched tokens", c.MaxNumBatchedTokens, 1, 1 << 30},
		{"max model len", c.MaxModelLen, 2, 1 << 30},
		{"max waiting", c.MaxWaiting, 1, 1 << 30},
	} {
		if f.value < f.from || f.value > f.to {
			errs = append(errs, fmt.Errorf("%s is %d: it must be between %d and %d", f.name, f.value, f.from, f.to))
		}
	}

	if c.MaxNumBatchedTokens < c.MaxNumSeqs {
		errs = append(errs, fmt.Errorf("max num batched tokens is %d: it must be at least max num seqs, %d", c.MaxNumBatchedTokens,
			c.MaxNumSeqs))
	}
	for i := range c.Tiers {
		errs = append(errs, c.Tiers[i].validate())
	}
	return errors.Join(append(errs, c.Noise.Validate())...)
}
