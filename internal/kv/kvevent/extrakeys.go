package kvevent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/kv/blockhash"
)

// extraKeys are the values that vLLM hashes into blocks beside their tokens. It publishes them
// without tags: per block nothing, or a list in which a string is the LoRA's name or the cache salt
// and a pair (id, offset) or a digest is a piece of media.
//
// Media enter a block's content as Dynamo has it: the 64-bit hashes of all pieces, sorted,
// behind the tokens. A prompt of plain tokens therefore never matches a block with media.
type extraKeys struct {
	salt    []byte
	words   []keyWord // sorted by block
	first   int       // the block that the event at hand begins with
	used    int       // words that content has handed out
	scratch []uint32
	sorted  []uint64
}

// maxKeys bounds the keys of one event: a message may promise a key with every byte.
const maxKeys = 1 << 20

type keyWord struct {
	block int
	hash  uint64
}

// reset empties x for another event. It keeps the buffers.
func (x *extraKeys) reset() {
	x.salt = nil
	x.words = x.words[:0]
	x.first, x.used = 0, 0
}

// content returns the tokens of block i with its media behind them, valid until the next
// call. It is asked for every block in turn.
func (x *extraKeys) content(tokens []uint32, i int) []uint32 {
	x.sorted = x.sorted[:0]
	for x.used < len(x.words) && x.words[x.used].block < i {
		x.used++
	}
	for ; x.used < len(x.words) && x.words[x.used].block == i; x.used++ {
		x.sorted = append(x.sorted, x.words[x.used].hash)
	}
	if len(x.sorted) == 0 {
		return tokens
	}
	slices.Sort(x.sorted)
	x.scratch = append(x.scratch[:0], tokens...)
	for _, h := range x.sorted {
		x.scratch = append(x.scratch, uint32(h), uint32(h>>32))
	}
	return x.scratch
}

// decode reads a list of at most blocks entries. first is true for an event that begins a prompt. Only there
// a string other than the LoRA's name is a salt; elsewhere it is a key like any other.
func (x *extraKeys) decode(raw, lora []byte, first bool, blocks int) error {
	if len(raw) == 0 || msgp.IsNil(raw) {
		return nil
	}
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return err
	}
	if int64(n) > int64(blocks) {
		return fmt.Errorf("%d entries for %d blocks", n, blocks)
	}

	for i := range int(n) {
		e := entry{block: i, lora: lora, mayBeSalt: first && i == 0}
		keys := uint32(1) // a single key may stand without its list
		if msgp.NextType(raw) == msgp.ArrayType {
			keys, raw, err = msgp.ReadArrayHeaderBytes(raw)
			if err != nil {
				return err
			}
		}
		for range keys {
			raw, err = x.decodeKey(raw, &e)
			if err != nil {
				return err
			}
			if len(x.words) > maxKeys {
				return fmt.Errorf("more than %d keys", maxKeys)
			}
		}
	}
	return nil
}

// entry is the state while one block's keys are read.
type entry struct {
	block     int
	lora      []byte // until it was seen: a salt may have the same name
	mayBeSalt bool
}

func (x *extraKeys) decodeKey(raw []byte, e *entry) (rest []byte, err error) {
	var key []byte
	switch msgp.NextType(raw) {
	case msgp.NilType:
		return raw[1:], nil
	case msgp.StrType:
		key, rest, err = msgp.ReadStringZC(raw)
		if err != nil {
			return raw, err
		}
		switch {
		case len(e.lora) > 0 && string(key) == string(e.lora):
			e.lora = nil
		case e.mayBeSalt:
			x.salt, e.mayBeSalt = bytes.TrimPrefix(key, []byte(saltTag)), false
		default:
			x.addKey(e.block, blockhash.MediaHash(text(key)))
		}
		return rest, nil
	case msgp.BinType:
		key, rest, err = msgp.ReadBytesZC(raw)
		if err != nil {
			return raw, err
		}
		x.addKey(e.block, digestHash(key))
		return rest, nil
	case msgp.ArrayType:
		return x.decodePair(raw, e.block)
	default:
		// A key of an unknown form still distinguishes contents: its bytes stand for it.
		rest, err = msgp.Skip(raw)
		if err != nil {
			return raw, err
		}
		x.addKey(e.block, xxh3.Hash(raw[:len(raw)-len(rest)]))
		return rest, nil
	}
}

func (x *extraKeys) decodePair(raw []byte, block int) (rest []byte, err error) {
	n, inner, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return raw, err
	}
	rest, err = msgp.Skip(raw)
	if err != nil {
		return raw, err
	}
	if n == 0 || msgp.NextType(inner) != msgp.StrType {
		x.addKey(block, xxh3.Hash(raw[:len(raw)-len(rest)]))
		return rest, nil
	}
	id, _, err := msgp.ReadStringZC(inner)
	if err != nil {
		return raw, err
	}
	x.addKey(block, blockhash.MediaHash(text(id)))
	return rest, nil
}

func (x *extraKeys) addKey(block int, hash uint64) {
	x.words = append(x.words, keyWord{block, hash})
}

// decodeInfos reads Dynamo's form: per block null or {"mm_objects": [{"mm_hash": number}]}.
// It is ignored if extra_keys had keys: those are the same media.
func (x *extraKeys) decodeInfos(raw []byte, blocks int) error {
	if len(raw) == 0 || msgp.IsNil(raw) || len(x.words) > 0 {
		return nil
	}
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return err
	}
	if int64(n) > int64(blocks) {
		return fmt.Errorf("%d entries for %d blocks", n, blocks)
	}
	for i := range int(n) {
		raw, err = x.decodeInfo(raw, i)
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeInfo reads the media of block i: null or {"mm_objects": [...]}.
func (x *extraKeys) decodeInfo(raw []byte, i int) ([]byte, error) {
	if msgp.IsNil(raw) {
		return raw[1:], nil
	}
	return eachKey(raw, func(name string, raw []byte) (rest []byte, err error) {
		if name != "mm_objects" {
			return msgp.Skip(raw)
		}
		n, raw, err := msgp.ReadArrayHeaderBytes(raw)
		for j := uint32(0); j < n && err == nil; j++ { // n is only a promise
			raw, err = x.decodeObject(raw, i)
			if len(x.words) > maxKeys {
				return raw, fmt.Errorf("more than %d keys", maxKeys)
			}
		}
		return raw, err
	})
}

func (x *extraKeys) decodeObject(raw []byte, i int) ([]byte, error) {
	return eachKey(raw, func(name string, raw []byte) ([]byte, error) {
		if name != "mm_hash" {
			return msgp.Skip(raw)
		}
		hash, rest, err := readHash(raw)
		if err == nil {
			x.addKey(i, uint64(hash))
		}
		return rest, err
	})
}

// eachKey calls value with every field of a map; it returns the bytes behind the value.
func eachKey(raw []byte, value func(name string, raw []byte) ([]byte, error)) ([]byte, error) {
	n, raw, err := msgp.ReadMapHeaderBytes(raw)
	for i := uint32(0); i < n && err == nil; i++ {
		var name []byte
		name, raw, err = msgp.ReadMapKeyZC(raw)
		if err == nil {
			raw, err = value(text(name), raw)
		}
	}
	return raw, err
}

// saltTag is put before a cache salt by Dynamo's workers, so that they know it again.
const saltTag = "dynamo-cache-salt:"

func digestHash(digest []byte) uint64 {
	if len(digest) >= 8 {
		return binary.BigEndian.Uint64(digest)
	}
	return xxh3.Hash(digest)
}

// text reads b as a string without a copy; it must not outlive b.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
