package config

import (
	"cmp"
	"maps"
	"slices"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/serving"
)

// BlockSize is a number of tokens in a KV block, written as a number or "auto".
type BlockSize int

// AutoBlockSize is the BlockSize "auto". It takes no size below MinAutoBlockSize from an engine: an index of single tokens is too large.
const (
	AutoBlockSize    BlockSize = 0
	MinAutoBlockSize int       = 4
)

// LaunchBlockSize returns the tokens in a block of engines that agents start.
func (m *Model) LaunchBlockSize() int {
	if m.BlockSize == AutoBlockSize {
		return serving.DefaultBlockSize
	}
	return int(m.BlockSize)
}

// BlockSizes are the block sizes of a model's engines, in tokens.
//
// Each engine's cache is searched by the hashes of blocks of the engine's size. The engines' loads and costs are compared in blocks of
// one size that divides all of them: Model.
type BlockSizes struct {
	Model   int   // 0 while no engine has reported one
	Engines []int // in rising order
}

// Equal reports whether both are the same sizes.
func (s BlockSizes) Equal(other BlockSizes) bool {
	return s.Model == other.Model && slices.Equal(s.Engines, other.Engines)
}

// Coarse returns the sizes of engines with larger blocks than the model's.
func (s BlockSizes) Coarse() []int {
	if len(s.Engines) > 0 && s.Engines[0] == s.Model {
		return s.Engines[1:]
	}
	return s.Engines
}

// Of returns the size of the blocks by which a worker's cache is searched.
func (s BlockSizes) Of(w *fleet.Worker) int {
	if size := w.TokensPerBlock(); slices.Contains(s.Engines, size) {
		return size
	}
	return s.Model
}

// maxSizes bounds the sizes of one model's engines: each prompt is hashed once for each of them.
const maxSizes = 4

// NewBlockSizes returns the sizes of a model by the configured size, 0 for none, and by the numbers of workers of each reported size. The
// size of most workers counts first. One that has no divisor of at least MinAutoBlockSize tokens with the sizes before it is left out: an
// index of small blocks is too large.
func NewBlockSizes(configured int, reported map[int]int) (s BlockSizes) {
	order := slices.SortedFunc(maps.Keys(reported), func(a, b int) int { return cmp.Or(reported[b]-reported[a], a-b) })
	s.Model = configured
	if configured > 0 {
		s.Engines = append(s.Engines, configured)
	}
	for _, size := range order {
		both := commonDivisor(s.Model, size)
		if len(s.Engines) < maxSizes && both >= min(MinAutoBlockSize, cmp.Or(configured, MinAutoBlockSize)) &&
			!slices.Contains(s.Engines, size) {
			s.Model = both
			s.Engines = append(s.Engines, size)
		}
	}
	slices.Sort(s.Engines)
	return s
}

// commonDivisor returns the greatest common divisor of two numbers; of 0 and another one, the other.
func commonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
