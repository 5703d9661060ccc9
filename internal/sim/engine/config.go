package engine

import (
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/perfmodel"
)

// Config is what an engine is started with. It is read only by [New].
type Config struct {
	// Blocks is the size of the KV cache in blocks; default 16,384. Raising it lets more
	// requests run at once and keeps more prefixes.
	Blocks int
	// BlockSize is tokens per block; default 16.
	BlockSize int
	// MaxNumSeqs bounds the requests that run at once; default 256.
	MaxNumSeqs int
	// MaxNumBatchedTokens bounds the tokens of one pass; default 8,192. Raising it shortens the
	// prefill of long prompts and makes those who decode beside them wait longer.
	MaxNumBatchedTokens int
	// MaxModelLen bounds prompt and answer together, in tokens; default 131,072. The KV cache
	// bounds them too.
	MaxModelLen int
	// MaxWaiting bounds the queue of requests not yet running; default 16,384. Real engines
	// have no bound; a simulated one shares its machine with what is measured.
	MaxWaiting int
	// WholePrompts turns chunked prefill off: a prompt is computed in one pass or waits for
	// one with room. MaxNumBatchedTokens then bounds prompt and answer together.
	WholePrompts bool
	// NoPrefixCache turns the prefix cache off, and with it all events.
	NoPrefixCache bool
	// PreemptOldest makes the longest running request the victim when the cache is full. The
	// default victim is the newest, as in vLLM.
	PreemptOldest bool
	// HashSeed is where the engine's own block hashes start. Engines with different seeds
	// give the same block different hashes, as real ones may.
	HashSeed uint64
	// Timing says how long passes take; default perfmodel.Polynomial{}.
	Timing perfmodel.Timing
}

func (c Config) withDefaults() Config {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.Blocks, 16384)
	set(&c.BlockSize, 16)
	set(&c.MaxNumSeqs, 256)
	set(&c.MaxNumBatchedTokens, 8192)
	set(&c.MaxModelLen, 131072)
	set(&c.MaxWaiting, 16384)
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
		{"max seqs", c.MaxNumSeqs, 1, 1 << 20},
		{"max batched tokens", c.MaxNumBatchedTokens, 1, 1 << 30},
		{"max model len", c.MaxModelLen, 2, 1 << 30},
		{"max waiting", c.MaxWaiting, 1, 1 << 30},
	} {
		if f.value < f.from || f.value > f.to {
			errs = append(errs, fmt.Errorf("%s is %d: it must lie between %d and %d", f.name, f.value, f.from, f.to))
		}
	}
	if c.MaxNumBatchedTokens < c.MaxNumSeqs {
		errs = append(errs, fmt.Errorf("max batched tokens is %d: it must be at least max seqs, %d", c.MaxNumBatchedTokens, c.MaxNumSeqs))
	}
	return errors.Join(errs...)
}
