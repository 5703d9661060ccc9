package prompt

import (
	"slices"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/prompt/tokenizer"
)

// WithMemory returns a copy of m that stores the tokens and block hashes of its prompts in mem. A nil mem
// stores nothing.
func (m *Model) WithMemory(mem *Memory) *Model {
	with := *m
	with.memory = mem
	if mem != nil {
		with.id = mem.models.Add(1)
	}
	return &with
}

// segmentEnd is the place in a prompt at which a segment ends.
type segmentEnd struct {
	chain  key    // of all segments up to this end
	tokens int    // tokens of the prompt before this end
	bytes  uint32 // of the text before this end
	own    uint32 // of the segment's own key
}

// Segment is a part of a prompt's text that is tokenized by itself: often a message.
type Segment struct {
	// Hash is equal for segments of one model with the same text. It differs between memories.
	Hash uint32
	// Bytes and Tokens are the ends of the segment in the text and in the tokens of the prompt.
	Bytes, Tokens int
}

// AppendSegments appends the segments of the first prompt to dst, at most n. Without a memory the prompt has none, and a prompt that was
// truncated has none either.
func (p *Prompt) AppendSegments(dst []Segment, n int) []Segment {
	for i := range p.segmentEnds[:min(n, len(p.segmentEnds))] {
		end := &p.segmentEnds[i]
		dst = append(dst, Segment{end.own, int(end.bytes), end.tokens})
	}
	return dst
}

// encode appends the ids of text to dst and sets ends to the ends of its segments. It copies the ids of
// stored segments from the memory, and encodes and stores the others. The ids that dst holds before the
// call must be the same for every text, because the keys contain only their number. An error comes from
// EncodeWithin.
func (m *Model) encode(dst []uint32, text string, within tokenizer.Bounds, ends *[]segmentEnd) ([]uint32, error) {
	*ends = (*ends)[:0]
	if m.memory == nil {
		return m.tokenizer.EncodeWithin(dst, text, within)
	}

	chain := key{Hi: m.id, Lo: uint64(len(dst))}
	most := len(dst) + within.Tokens
	size := len(text)
	for len(text) > 0 {
		if isClosed(within.Done) {
			return dst, tokenizer.ErrStopped
		}
		n := m.tokenizer.Segment(text, minSegmentBytes)
		k := m.memory.segmentKey(text[:n], m.id)
		found := false
		dst, found = m.memory.appendIDs(dst, k, n)
		if !found {
			from := len(dst)
			var err error
			dst, err = m.tokenizer.EncodeWithin(dst, text[:n], tokenizer.Bounds{Tokens: most - from, Done: within.Done})
			if err != nil {
				return dst, err
			}
			m.memory.storeIDs(k, dst[from:])
		}
		chain = chain.extended(k)
		text = text[n:]
		*ends = append(*ends, segmentEnd{chain: chain, tokens: len(dst), bytes: uint32(size - len(text)), own: uint32(k.Lo)})
		if len(dst) > most {
			return dst, tokenizer.ErrTooLong
		}
	}

	return dst, nil
}

// isClosed reports whether done is closed.
func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// AppendBlocks appends the hashes of the complete blocks of p.Tokens to dst, as [blockhash.Append] does. It
// copies the hashes that the model's memory has. Tokens must not change between Prepare and AppendBlocks.
func (p *Prompt) AppendBlocks(dst []blockhash.Block, size int, seed uint64) []blockhash.Block {
	done := 0
	for _, end := range p.segmentEnds {
		n := end.tokens / size
		if n-done < minEntryBlocks {
			continue
		}
		k := end.chain.blocksKey(size, seed)
		found := false
		dst, found = p.memory.appendBlocks(dst, k, n-done)
		if !found {
			from := len(dst)
			dst = blockhash.Append(dst, p.Tokens[done*size:n*size], size, seed)
			p.memory.storeBlocks(k, dst[from:])
		}
		done = n
	}

	return blockhash.Append(dst, p.Tokens[done*size:], size, seed)
}

// appendIDs appends the stored ids of segment k to dst and reports whether the memory has them. TextBytes is
// the length of the segment's text, for the figures of hits and misses.
func (m *Memory) appendIDs(dst []uint32, k key, textBytes int) ([]uint32, bool) {
	s := m.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()

	ids, found := s.lookUpLocked(k)
	if !found {
		s.misses++
		s.missText += uint64(textBytes)
		return dst, false
	}

	s.hits++
	s.hitText += uint64(textBytes)
	return append(dst, ids...), true
}

// storeIDs stores the ids of segment k.
func (m *Memory) storeIDs(k key, ids []uint32) {
	s := m.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeLocked(k, ids)
}

// appendBlocks appends the n stored block hashes of entry k to dst and reports whether the memory has them.
// An entry of another length begins at another block, so it is not used.
func (m *Memory) appendBlocks(dst []blockhash.Block, k key, n int) ([]blockhash.Block, bool) {
	s := m.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()

	words, found := s.lookUpLocked(k)
	if !found || len(words) != wordsPerBlock*n {
		return dst, false
	}

	from := len(dst)
	dst = slices.Grow(dst, n)[:from+n]
	copy(wordsOf(dst[from:]), words)
	return dst, true
}

// storeBlocks stores a run of block hashes under k.
func (m *Memory) storeBlocks(k key, blocks []blockhash.Block) {
	s := m.shardOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeLocked(k, wordsOf(blocks))
}

// wordsPerBlock is the number of 32-bit words in a block hash.
const wordsPerBlock = 2

// wordsOf returns the memory of blocks as 32-bit words, in this machine's byte order.
func wordsOf(blocks []blockhash.Block) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(blocks))), wordsPerBlock*len(blocks))
}
