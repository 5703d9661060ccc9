package blockhash

import (
	"encoding/binary"
	"slices"
)

// Opcodes of pickle, protocol 5 (Python's Lib/pickletools.py explains each).
const (
	pickleStop        = '.'
	pickleMark        = '('
	pickleTuple       = 't'
	pickleTuple1      = 0x85 // and 2 and 3 after it
	pickleEmptyTuple  = ')'
	pickleNone        = 'N'
	pickleInt1        = 'K'
	pickleInt2        = 'M'
	pickleInt4        = 'J' // signed
	pickleLong        = 0x8a
	pickleShortBytes  = 'C'
	pickleShortText   = 0x8c
	pickleText        = 'X'
	pickleMemoize     = 0x94
	pickleGet         = 'h'
	pickleFrame       = 0x95
	pickleHeader      = "\x80\x05"
	pickleFrameLength = 8
)

// pickleBlock writes the pickle of the tuple (parent, tokens, keys or None).
func (v *VLLM) pickleBlock(parent Digest, tokens []uint32, keys []Key) {
	v.pickleHead()
	v.raw = append(v.raw, pickleShortBytes, byte(len(parent)))
	v.raw = append(v.raw, parent[:]...)
	v.memoize("")
	v.openTuple(len(tokens))
	for _, t := range tokens {
		v.pickleNumber(int64(t))
	}
	v.closeTuple(len(tokens))
	v.pickleKeys(keys)
	v.closeTuple(3)
	v.pickleEnd()
}

func (v *VLLM) pickleKeys(keys []Key) {
	if len(keys) == 0 {
		v.raw = append(v.raw, pickleNone)
		return
	}
	v.openTuple(len(keys))
	for _, k := range keys {
		v.openTuple(len(k.parts))
		for _, p := range k.parts {
			switch p.kind {
			case partText:
				v.pickleText(p.text)
			case partBytes:
				v.raw = append(v.raw, pickleShortBytes, byte(len(p.text)))
				v.raw = append(v.raw, p.text...)
				v.memoize("")
			case partNumber:
				v.pickleNumber(int64(int32(p.number)))
			}
		}
		v.closeTuple(len(k.parts))
	}
	v.closeTuple(len(keys))
}

// pickleHead begins a pickle; the length of its one frame is filled in by pickleEnd.
func (v *VLLM) pickleHead() {
	v.raw = append(append(v.raw[:0], pickleHeader...), pickleFrame)
	v.raw = append(v.raw, make([]byte, pickleFrameLength)...)
	v.memo = v.memo[:0]
}

func (v *VLLM) pickleEnd() {
	v.raw = append(v.raw, pickleStop)
	at := len(pickleHeader) + 1
	binary.LittleEndian.PutUint64(v.raw[at:], uint64(len(v.raw)-at-pickleFrameLength))
}

// memoize numbers what was just written, as Python does with everything that could come twice.
func (v *VLLM) memoize(text string) {
	v.raw = append(v.raw, pickleMemoize)
	v.memo = append(v.memo, text)
}

// pickleText writes a text, or where it was written before its number. Python goes by the object
// and not by its text: the tags are the same object each time, and so is the identifier of
// media that comes once in a block. Two equal identifiers in one block may be two objects.
func (v *VLLM) pickleText(s string) {
	if at := slices.Index(v.memo, s); at >= 0 && s != "" && at < 1<<8 {
		v.raw = append(v.raw, pickleGet, byte(at))
		return
	}
	if len(s) < 1<<8 {
		v.raw = append(v.raw, pickleShortText, byte(len(s)))
	} else {
		v.raw = binary.LittleEndian.AppendUint32(append(v.raw, pickleText), uint32(len(s)))
	}
	v.raw = append(v.raw, s...)
	v.memoize(s)
}

func (v *VLLM) pickleNumber(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		v.raw = append(v.raw, pickleInt1, byte(n))
	case n >= 0 && n < 1<<16:
		v.raw = binary.LittleEndian.AppendUint16(append(v.raw, pickleInt2), uint16(n))
	case n >= -1<<31 && n < 1<<31:
		v.raw = binary.LittleEndian.AppendUint32(append(v.raw, pickleInt4), uint32(n))
	default: // up to 32 bits without a sign, which takes a fifth byte
		v.raw = binary.LittleEndian.AppendUint32(append(v.raw, pickleLong, 5), uint32(n))
		v.raw = append(v.raw, 0)
	}
}

// A tuple of up to three is its items and an opcode; a longer one stands behind a mark.
func (v *VLLM) openTuple(n int) {
	if n > 3 {
		v.raw = append(v.raw, pickleMark)
	}
}

func (v *VLLM) closeTuple(n int) {
	switch {
	case n == 0:
		v.raw = append(v.raw, pickleEmptyTuple)
		return // the only one there is: not numbered
	case n <= 3:
		v.raw = append(v.raw, pickleTuple1+byte(n-1))
	default:
		v.raw = append(v.raw, pickleTuple)
	}
	v.memoize("")
}
