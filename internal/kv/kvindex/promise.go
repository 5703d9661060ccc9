package kvindex

import (
	"math/bits"
	"unsafe"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// predictions are the blocks that a rank is taken to hold until a time, because a request
// was sent there: a bit in the node beside those of the tiers, and here the way to take it
// back. The rank's lock guards them.
//
// A call is one promise, cut into a share for each stretch. A predicted block is owned by one
// share, that of the promise which lasts longest: to prolong is to move a bit from one share to
// another, and what a share owns when its promise is due ends then. So there is no record for a
// block but its hash, which finds the node.
type predictions struct {
	n     int       // predicted blocks
	size  int       // blocks in all shares, owned or not
	heap  []promise // a min-heap by time
	byRun map[*stretch]*share
	spare [spareClasses]spare
}

// promise is what one call predicted.
type promise struct {
	at     int64 // unix nanoseconds
	shares *share
}

// share is the part of a promise that lies in one stretch.
type share struct {
	stretch *stretch
	at      int64                // of the promise
	owned   uint64               // by position in the stretch
	seqs    []blockhash.Sequence // from position start on; of blocks that are not owned, anything
	start   uint8
	next    *share // of the promise, or spare
	sibling *share // owns others in the same stretch
}

// spare is shares of one capacity that wait to be used again: a rank at its limit allocates
// nothing.
type spare struct {
	first *share
	n     int
}

const (
	spareClasses = 5 // shares have room for 4, 8, 16, 32 or 64 blocks
	spareShares  = 16
	shareBytes   = int64(unsafe.Sizeof(share{})) + 64 // and its share of a map and of the heap
)

func (p *share) bytes() int64 { return shareBytes + 8*int64(cap(p.seqs)) }

// after is the position behind the share's last.
func (p *share) after() int { return int(p.start) + len(p.seqs) }

func class(blocks int) int { return max(0, bits.Len(uint(blocks-1))-2) }

// take returns a share that has room for some blocks, at most 64; nil where there is none.
func (p *predictions) take(blocks int, b *budget) *share {
	c := class(blocks)
	if s := &p.spare[c]; s.n > 0 {
		t := s.first
		s.first, s.n = t.next, s.n-1
		t.next = nil
		return t
	}
	t := &share{}
	if !b.reserve(t.bytes() + 8*4<<c) {
		return nil
	}
	t.seqs = make([]blockhash.Sequence, 0, 4<<c)
	return t
}

// give takes a share that owns nothing back.
func (p *predictions) give(t *share, b *budget) {
	p.size -= len(t.seqs)
	s := &p.spare[class(cap(t.seqs))]
	if s.n == spareShares {
		b.release(t.bytes())
		return
	}
	*t = share{seqs: t.seqs[:0], next: s.first}
	s.first, s.n = t, s.n+1
}

// drop gives all spare shares up.
func (p *predictions) drop(b *budget) {
	for c := range p.spare {
		for t := p.spare[c].first; t != nil; t = t.next {
			b.release(t.bytes())
		}
		p.spare[c] = spare{}
	}
}

// owner returns the share that owns a position of a stretch, nil where none does.
func (p *predictions) owner(at *stretch, bit uint64) *share {
	t := p.byRun[at]
	for t != nil && t.owned&bit == 0 {
		t = t.sibling
	}
	return t
}

// own gives the last block of a share to it; nobody owns it.
func (p *predictions) own(t *share, bit uint64) {
	p.n++
	if t.owned == 0 {
		if p.byRun == nil {
			p.byRun = map[*stretch]*share{}
		}
		t.sibling = p.byRun[t.stretch]
		p.byRun[t.stretch] = t
	}
	t.owned |= bit
}

// disown takes blocks that it owns from a share.
func (p *predictions) disown(t *share, owned uint64) {
	p.n -= bits.OnesCount64(owned)
	if t.owned &^= owned; t.owned != 0 {
		return
	}
	first := p.byRun[t.stretch]
	switch {
	case first != t:
		for ; first.sibling != t; first = first.sibling {
		}
		first.sibling = t.sibling
	case t.sibling != nil:
		p.byRun[t.stretch] = t.sibling
	default:
		delete(p.byRun, t.stretch)
	}
	t.sibling = nil
}

func (p *predictions) push(b promise) {
	p.heap = append(p.heap, b)
	for i := len(p.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if p.heap[up].at <= p.heap[i].at {
			return
		}
		p.heap[up], p.heap[i] = p.heap[i], p.heap[up]
		i = up
	}
}

func (p *predictions) pop() promise {
	first, last := p.heap[0], len(p.heap)-1
	p.heap[0], p.heap[last] = p.heap[last], promise{}
	p.heap = p.heap[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && p.heap[down+1].at < p.heap[down].at {
			down++
		}
		if p.heap[i].at <= p.heap[down].at {
			return first
		}
		p.heap[i], p.heap[down] = p.heap[down], p.heap[i]
		i = down
	}
}
