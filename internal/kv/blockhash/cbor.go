package blockhash

import "encoding/binary"

// Major types of CBOR (RFC 8949).
const (
	cborUnsigned = 0 << 5
	cborNegative = 1 << 5
	cborBytes    = 2 << 5
	cborString   = 3 << 5
	cborArray    = 4 << 5
	cborNull     = 0xf6
)

// cborBlock writes the canonical CBOR of (parent, tokens, keys or nothing).
func (v *VLLM) cborBlock(parent Digest, tokens []uint32, keys []Key) {
	v.cborHead(cborArray, 3)
	v.cborHead(cborBytes, uint32(len(parent)))
	v.raw = append(v.raw, parent[:]...)
	v.cborHead(cborArray, uint32(len(tokens)))
	for _, t := range tokens {
		v.cborHead(cborUnsigned, t)
	}
	if len(keys) == 0 {
		v.raw = append(v.raw, cborNull)
		return
	}
	v.cborHead(cborArray, uint32(len(keys)))
	for _, k := range keys {
		v.cborHead(cborArray, uint32(len(k.parts)))
		for _, p := range k.parts {
			v.cborPart(p)
		}
	}
}

func (v *VLLM) cborPart(p part) {
	switch p.kind {
	case partText:
		v.cborText(p.text)
	case partBytes:
		v.cborHead(cborBytes, uint32(len(p.text)))
		v.raw = append(v.raw, p.text...)
	case partNumber:
		if n := int32(p.number); n < 0 {
			v.cborHead(cborNegative, uint32(-1-n))
		} else {
			v.cborHead(cborUnsigned, p.number)
		}
	}
}

func (v *VLLM) cborText(s string) {
	v.cborHead(cborString, uint32(len(s)))
	v.raw = append(v.raw, s...)
}

// cborHead writes a major type and its number in the fewest bytes.
func (v *VLLM) cborHead(major byte, n uint32) {
	switch {
	case n < 24:
		v.raw = append(v.raw, major|byte(n))
	case n < 1<<8:
		v.raw = append(v.raw, major|24, byte(n))
	case n < 1<<16:
		v.raw = binary.BigEndian.AppendUint16(append(v.raw, major|25), uint16(n))
	default:
		v.raw = binary.BigEndian.AppendUint32(append(v.raw, major|26), n)
	}
}
