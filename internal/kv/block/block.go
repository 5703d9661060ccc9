// Package block names KV blocks and describes how their bytes are laid out.
//
// A [Key] covers everything that two blocks must have in common before one can replace the other: the model and its weights, the layout of
// the bytes, and the tokens from the beginning of the prompt. So equal keys mean exchangeable bytes, on every tier and every node.
//
// The package is pure.
package block

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
)

// Key names a block: the first half of the SHA-256 of a space and of the engine's hash of the block's content.
type Key [16]byte

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads what String returns.
func ParseKey(text string) (k Key, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(k) {
		return k, fmt.Errorf("%q is not the key of a block: 32 hexadecimal digits are", text)
	}
	return Key(b), nil
}

// Space is the digest of a layout. Blocks of different spaces have no keys in common.
type Space [sha256.Size]byte

// Key returns the key of the block with a content hash of an engine, which must cover all tokens before the block too.
func (s Space) Key(content []byte) (k Key) {
	h := sha256.New()
	h.Write(s[:])
	h.Write(content)
	var sum [sha256.Size]byte
	copy(k[:], h.Sum(sum[:0]))
	return k
}

// KeyOfHash returns the key of the block with a content hash of 64 bits, as engines have it in KV events: its 8 bytes are little-endian.
func (s Space) KeyOfHash(hash uint64) Key { return s.Key(binary.LittleEndian.AppendUint64(nil, hash)) }

// Layout has the parameters on which the bytes of a block depend. The bytes are layers, each with Outer parts (keys and values), each
// with PageTokens tokens of Inner numbers of type DType, without gaps.
type Layout struct {
	// Model is the name that engines have to share.
	Model string `json:"model"`
	// Weights distinguishes weights of one name: a fingerprint of their files, or a revision. Simulated engines have none.
	Weights string `json:"weights"`
	// Layers is the number of attention layers.
	Layers int `json:"layers"`
	// PageTokens is the number of tokens of a block.
	PageTokens int `json:"pageTokens"`
	// Outer is 2 for keys and values, and 1 for latent attention.
	Outer int `json:"outer"`
	// Inner is the numbers of a token in a layer's part: KV heads of a rank, times the dimension of a head.
	Inner int `json:"inner"`
	// DType is the type of the numbers: float32, float16, bfloat16, fp8 or int8.
	DType string `json:"dtype"`
	// TPSize and TPRank are the number of tensor-parallel ranks, and which of them has these bytes, from 0.
	TPSize int `json:"tpSize"`
	TPRank int `json:"tpRank"`
	// Hashing has the parameters that distinguish content hashes of different engines: algorithm and seed.
	Hashing string `json:"hashing"`
}

// The bounds of a layout. They are far above the values of today's models.
const (
	maxText  = 1024
	maxCount = 1 << 20
	maxBytes = 1 << 30 // of a block
)

var dtypeBytes = map[string]int{"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}

// Validate returns an error that names the field that is wrong.
func (l *Layout) Validate() error {
	if l.Model == "" || len(l.Model) > maxText || len(l.Weights) > maxText || len(l.Hashing) > maxText {
		return fmt.Errorf("model, weights and hashing need at most %d bytes, and model at least one", maxText)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"layers", l.Layers}, {"pageTokens", l.PageTokens}, {"outer", l.Outer}, {"inner", l.Inner}, {"tpSize", l.TPSize}} {
		if f.value < 1 || f.value > maxCount {
			return fmt.Errorf("%s is %d, and must be from 1 to %d", f.name, f.value, maxCount)
		}
	}
	if l.TPRank < 0 || l.TPRank >= l.TPSize {
		return fmt.Errorf("tpRank is %d of %d ranks", l.TPRank, l.TPSize)
	}
	if dtypeBytes[l.DType] == 0 {
		return fmt.Errorf("dtype %q is unknown: use float32, float16, bfloat16, fp8 or int8", l.DType)
	}

	size := dtypeBytes[l.DType]
	for _, n := range []int{l.Layers, l.PageTokens, l.Outer, l.Inner} {
		size *= n // below 2^61 here, because both factors are bounded
		if size > maxBytes {
			return fmt.Errorf("a block has more than %d bytes", maxBytes)
		}
	}
	return nil
}

// Bytes returns the size of a block of a valid layout.
func (l *Layout) Bytes() int {
	return l.Layers * l.Outer * l.PageTokens * l.Inner * dtypeBytes[l.DType]
}

// Space returns the digest of a layout.
func (l *Layout) Space() (s Space) {
	h := sha256.New()
	text := func(t string) {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(t))))
		h.Write([]byte(t))
	}
	h.Write([]byte("stator kv space 2\n"))
	text(l.Model)
	text(l.Weights)
	text(l.DType)
	text(l.Hashing)
	for _, n := range []int{l.Layers, l.PageTokens, l.Outer, l.Inner, l.TPSize, l.TPRank} {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(n)))
	}
	copy(s[:], h.Sum(nil))
	return s
}

// ErrLayout is the error of two sides whose layouts do not fit together.
var ErrLayout = errors.New("the layouts differ")

// Fits returns an error that wraps [ErrLayout] and names the first field in which the layouts differ.
func (l *Layout) Fits(other *Layout) error {
	if l.Model != other.Model || l.DType != other.DType || l.Hashing != other.Hashing {
		return fmt.Errorf("%w: model %q, dtype %q, hashing %q here, and %q, %q, %q there", ErrLayout, l.Model, l.DType, l.Hashing,
			other.Model, other.DType, other.Hashing)
	}
	if l.Weights != other.Weights {
		return fmt.Errorf("%w: weights %q of model %q here, and %q there: a store has blocks of one set of weights", ErrLayout, l.Weights,
			l.Model, other.Weights)
	}
	for _, f := range []struct {
		name        string
		here, there int
	}{
		{"layers", l.Layers, other.Layers}, {"pageTokens", l.PageTokens, other.PageTokens}, {"outer", l.Outer, other.Outer},
		{"inner", l.Inner, other.Inner}, {"tpSize", l.TPSize, other.TPSize}, {"tpRank", l.TPRank, other.TPRank},
	} {
		if f.here != f.there {
			return fmt.Errorf("%w: %s is %d here and %d there", ErrLayout, f.name, f.here, f.there)
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum returns the CRC32C of a block's bytes, by which every tier and every transfer recognizes damage.
func Sum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }
