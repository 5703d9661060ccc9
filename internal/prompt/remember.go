package prompt

import (
	"slices"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// WithMemory returns a model that remembers in mem what its prompts became; nil remembers
// nothing.
func (m *Model) WithMemory(mem *Memory) *Model {
	with := *m
	with.memory = mem
	if mem != nil {
		with.id = mem.models.Add(1)
	}
	return &with
}

// mark is a place in a prompt up to which segments go.
type mark struct {
	chain  key
	tokens int // before it
}

// encode appends the ids of text to dst, what is remembered of them from memory, and leaves in
// marks where the segments end. What stands in dst already is the same for every text.
func (m *Model) encode(dst []uint32, text string, marks *[]mark) []uint32 {
	*marks = (*marks)[:0]
	if m.memory == nil {
		return m.tokenizer.Encode(dst, text)
	}

	chain := key{Hi: m.id, Lo: uint64(len(dst))}
	for len(text) > 0 {
		n := m.tokenizer.Segment(text, segmentAtLeast)
		k := m.memory.segment(text[:n], m.id)
		known := false
		dst, known = m.memory.appendIDs(dst, k, n)
		if !known {
			from := len(dst)
			dst = m.tokenizer.Encode(dst, text[:n])
			m.memory.putIDs(k, dst[from:])
		}
		chain = chain.then(k)
		*marks = append(*marks, mark{chain, len(dst)})
		text = text[n:]
	}

	return dst
}

// AppendBlocks appends the hashes of the complete blocks of p.Tokens to dst, as
// [blockhash.Append] does, those that are remembered from memory. Between Prepare and
// AppendBlocks Tokens must not change.
func (p *Prompt) AppendBlocks(dst []blockhash.Block, size int, seed uint64) []blockhash.Block {
	done := 0
	for _, at := range p.marks {
		n := at.tokens / size
		if n-done < blocksAtLeast {
			continue
		}
		k := at.chain.blocks(size, seed)
		known := false
		dst, known = p.memory.appendBlocks(dst, k, n-done)
		if !known {
			from := len(dst)
			dst = blockhash.Append(dst, p.Tokens[done*size:n*size], size, seed)
			p.memory.putBlocks(k, dst[from:])
		}
		done = n
	}

	return blockhash.Append(dst, p.Tokens[done*size:], size, seed)
}

// appendIDs appends the ids of the segment k, whose text has so many bytes.
func (m *Memory) appendIDs(dst []uint32, k key, text int) ([]uint32, bool) {
	s := m.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()

	ids, known := s.findLocked(k)
	if !known {
		s.misses++
		s.missText += uint64(text)
		return dst, false
	}

	s.hits++
	s.hitText += uint64(text)
	return append(dst, ids...), true
}

func (m *Memory) putIDs(k key, ids []uint32) {
	s := m.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(k, ids)
}

// appendBlocks appends n blocks. A hash is two words in memory.
func (m *Memory) appendBlocks(dst []blockhash.Block, k key, n int) ([]blockhash.Block, bool) {
	s := m.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	words, known := s.findLocked(k)
	if !known || len(words) != 2*n {
		return dst, false
	}

	from := len(dst)
	dst = slices.Grow(dst, n)[:from+n]
	copy(wordsOf(dst[from:]), words)
	return dst, true
}

func (m *Memory) putBlocks(k key, blocks []blockhash.Block) {
	s := m.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(k, wordsOf(blocks))
}

// wordsOf views blocks as words, in the order of this machine.
func wordsOf(blocks []blockhash.Block) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(blocks))), 2*len(blocks))
}
