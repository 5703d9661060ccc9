package kvevent

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/fleet"
)

// DecodeTRTLLM reads what TensorRT-LLM answers to /kv_cache_events, or its get_kv_cache_events
// as JSON, into b: a list of events, or events one behind the other. An empty list is an
// empty batch.
//
// An event is of one attention window; the largest that "created" events have named is the
// full one. A created event is the beginning of a new cache, so it is delivered as Cleared.
// Blocks that moved between cache levels ("updated") are delivered as stored there and
// removed here; a removal names no level, so it is delivered for each level that the engine
// has used. Partial blocks are left out, see [Batch.BlockSize], and their removals are not: no
// index knows their hashes.
//
// On an error the batch is empty. In a steady state nothing is allocated.
func DecodeTRTLLM(payload []byte, lim Limits, b *Batch) error {
	b.Reset()
	d := &b.memory.trtllm
	*d = trtDecoder{b: b, lim: lim.withDefaults(), r: &b.memory.json}
	if err := d.message(payload); err != nil {
		b.Reset()
		return fmt.Errorf("decode tensorrt-llm events: %w", err)
	}
	return nil
}

// trtMemory is what TensorRT-LLM says once.
type trtMemory struct {
	window    uint64 // the largest: that of full attention
	created   bool   // the last event was "created"
	levels    uint8  // bit l: a block was seen on cache level l
	blockSize int    // the largest seen
	blocks    []trtBlock
}

// trtBlock is one block of a stored event.
type trtBlock struct {
	hash   Engine
	tokens int
	level  int
}

type trtDecoder struct {
	b      *Batch
	lim    Limits
	r      *jsonReader
	events int // seen in the message so far, and so on
	blocks int
	tokens int
	f      trtFields
}

// trtFields are one event's fields.
type trtFields struct {
	kind      string
	id        uint64
	numbered  bool
	window    uint64
	rank      int
	hashes    int // where the event's hashes begin in the batch's
	parent    Engine
	hasParent bool
	lora      []byte
	loraID    []byte
	salt      []byte
	from, to  int // cache levels, -1 where none is said
}

func (d *trtDecoder) message(raw []byte) error {
	if len(raw) > d.lim.Bytes {
		return fmt.Errorf("%d bytes: the limit is %d", len(raw), d.lim.Bytes)
	}
	d.r.reset(raw)
	for {
		switch d.r.kind() {
		case kindEnd:
			return nil
		case kindList:
			if err := d.list(); err != nil {
				return err
			}
		default:
			if err := d.event(); err != nil {
				return err
			}
		}
	}
}

func (d *trtDecoder) list() error {
	if err := d.r.list(); err != nil {
		return err
	}
	for {
		more, err := d.r.more()
		if err != nil || !more {
			return err
		}
		if err := d.event(); err != nil {
			return err
		}
	}
}

func (d *trtDecoder) event() error {
	b := d.b
	if d.events++; d.events > d.lim.Events {
		return fmt.Errorf("more than %d events", d.lim.Events)
	}
	d.f = trtFields{hashes: len(b.hashes), from: -1, to: -1}
	b.tokens = b.tokens[:0]
	b.memory.extra.reset()
	b.memory.trt.blocks = b.memory.trt.blocks[:0]
	if err := d.each((*trtDecoder).eventField); err != nil {
		return err
	}
	mine, err := b.take(0, d.f.rank)
	if err != nil {
		return err
	}
	if !mine {
		b.hashes = b.hashes[:d.f.hashes]
		return nil
	}
	if d.f.numbered {
		b.number(d.f.id)
	}
	return d.finish()
}

// each calls field for every field of an object. A field that it does not read is skipped.
func (d *trtDecoder) each(field func(d *trtDecoder, name string) (read bool, err error)) error {
	if err := d.r.fields(); err != nil {
		return err
	}
	for {
		more, err := d.r.more()
		if err != nil || !more {
			return err
		}
		key, err := d.r.key()
		if err != nil {
			return err
		}
		read := d.r.kind() == kindNull
		if !read {
			if read, err = field(d, text(key)); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if read {
				continue
			}
		}
		if err := d.r.skip(); err != nil {
			return err
		}
	}
}

func (d *trtDecoder) eventField(name string) (read bool, err error) {
	switch name {
	case "event_id":
		d.f.numbered = true
		d.f.id, _, err = d.r.integer()
	case "window_size":
		d.f.window, err = d.bounded(math.MaxInt32)
	case "attention_dp_rank":
		var rank uint64
		rank, err = d.bounded(maxRank)
		d.f.rank = int(rank)
	case "data":
		return d.data()
	default:
		return false, nil
	}
	return true, err
}

// data reads what happened. The fields of a kind we do not know may have any shape, so the
// kind is found first.
func (d *trtDecoder) data() (read bool, err error) {
	kind, err := d.kind()
	if err != nil {
		return true, err
	}
	switch string(kind) {
	case "created":
		d.f.kind = "created"
		return false, nil
	case "stored":
		d.f.kind = "stored"
		return true, d.each((*trtDecoder).storedField)
	case "removed":
		d.f.kind = "removed"
		return true, d.each((*trtDecoder).removedField)
	case "updated":
		d.f.kind = "updated"
		return true, d.each((*trtDecoder).updatedField)
	default:
		d.f.kind = "unknown"
		return false, nil
	}
}

// kind looks ahead for an object's type.
func (d *trtDecoder) kind() (kind []byte, err error) {
	raw, depth := d.r.raw, d.r.depth
	defer func() { d.r.raw, d.r.depth = raw, depth }()
	if err := d.r.fields(); err != nil {
		return nil, err
	}
	for {
		more, err := d.r.more()
		if err != nil {
			return nil, err
		}
		if !more {
			return nil, errors.New("an event without a type")
		}
		key, err := d.r.key()
		if err != nil {
			return nil, err
		}
		if string(key) == "type" {
			return d.r.text()
		}
		if err := d.r.skip(); err != nil {
			return nil, err
		}
	}
}

func (d *trtDecoder) storedField(name string) (read bool, err error) {
	switch name {
	case "parent_hash":
		d.f.parent, err = hashOf(d.r)
		d.f.hasParent = true
	case "blocks":
		err = d.eachOf((*trtDecoder).block)
	default:
		return d.identity(name)
	}
	return true, err
}

// identity reads what a chain's content depends on beside its tokens. TensorRT-LLM says it
// with the event or with each block.
func (d *trtDecoder) identity(name string) (read bool, err error) {
	switch name {
	case "lora_name":
		d.f.lora, err = d.r.text()
	case "lora_id":
		raw, s := d.r.raw, d.r.scratch
		if _, _, err = d.r.integer(); err == nil {
			d.r.scratch = append(append(s, 0), raw[:len(raw)-len(d.r.raw)]...)
			d.f.loraID = d.r.scratch[len(s):]
		}
	case "cache_salt":
		d.f.salt, err = d.r.text()
	default:
		return false, nil
	}
	return true, err
}

// eachOf calls element for every element of a list.
func (d *trtDecoder) eachOf(element func(d *trtDecoder) error) error {
	if err := d.r.list(); err != nil {
		return err
	}
	for {
		more, err := d.r.more()
		if err != nil || !more {
			return err
		}
		if err := element(d); err != nil {
			return err
		}
	}
}

func (d *trtDecoder) block() error {
	if d.blocks++; d.blocks > d.lim.Blocks {
		return fmt.Errorf("more than %d blocks", d.lim.Blocks)
	}
	m := &d.b.memory.trt
	m.blocks = append(m.blocks, trtBlock{})
	return d.each((*trtDecoder).blockField)
}

func (d *trtDecoder) blockField(name string) (read bool, err error) {
	m := &d.b.memory.trt
	k := &m.blocks[len(m.blocks)-1]
	switch name {
	case "block_hash":
		k.hash, err = hashOf(d.r)
	case "tokens":
		// A list said twice counts once.
		d.b.tokens, k.tokens = d.b.tokens[:len(d.b.tokens)-k.tokens], 0
		err = d.eachOf((*trtDecoder).token)
	case "cache_level":
		k.level, err = d.level()
	case "mm_keys":
		err = d.eachOf((*trtDecoder).media)
	default:
		return d.identity(name)
	}
	return true, err
}

func (d *trtDecoder) level() (int, error) {
	n, err := d.bounded(7)
	return int(n), err
}

func (d *trtDecoder) token() error {
	if d.tokens++; d.tokens > d.lim.Tokens {
		return fmt.Errorf("more than %d tokens", d.lim.Tokens)
	}
	m := &d.b.memory.trt
	m.blocks[len(m.blocks)-1].tokens++
	d.b.tokens = append(d.b.tokens, 0)
	if d.r.kind() == kindNumber {
		return d.tokenID()
	}
	return d.each((*trtDecoder).tokenField)
}

func (d *trtDecoder) tokenField(name string) (read bool, err error) {
	switch name {
	case "token_id":
		return true, d.tokenID()
	case "token_extra_id":
		// Tokens of a prompt table, or of media: the same id is not the same content.
		extra, _, err := d.r.integer()
		if err == nil && extra != 0 {
			d.addWord(extra)
		}
		return true, err
	}
	return false, nil
}

func (d *trtDecoder) tokenID() error {
	id, err := d.bounded(math.MaxUint32)
	d.b.tokens[len(d.b.tokens)-1] = uint32(id)
	return err
}

func (d *trtDecoder) addWord(hash uint64) {
	d.b.memory.extra.add(len(d.b.memory.trt.blocks)-1, hash)
}

// media reads {"type": "mm_key", "hash": hexadecimal, "start_offset": n}.
func (d *trtDecoder) media() error {
	return d.each(func(d *trtDecoder, name string) (bool, error) {
		if name != "hash" {
			return false, nil
		}
		digest, err := d.r.text()
		if err == nil && len(digest) > 0 {
			d.addWord(mediaPrefix(digest))
		}
		return true, err
	})
}

// mediaPrefix is the first 16 digits of a hexadecimal digest, of whatever length.
func mediaPrefix(digest []byte) uint64 {
	if h, err := strconv.ParseUint(text(digest[:min(16, len(digest))]), 16, 64); err == nil {
		return h
	}
	return xxh3.Hash(digest)
}

func (d *trtDecoder) removedField(name string) (read bool, err error) {
	if name != "block_hashes" {
		return false, nil
	}
	d.b.hashes = d.b.hashes[:d.f.hashes]
	return true, d.eachOf((*trtDecoder).removedHash)
}

func (d *trtDecoder) removedHash() error {
	if d.r.kind() == kindNull {
		return d.r.skip()
	}
	if d.blocks++; d.blocks > d.lim.Blocks {
		return fmt.Errorf("more than %d blocks", d.lim.Blocks)
	}
	h, err := hashOf(d.r)
	d.b.hashes = append(d.b.hashes, h)
	return err
}

func (d *trtDecoder) updatedField(name string) (read bool, err error) {
	switch name {
	case "block_hash":
		var h Engine
		h, err = hashOf(d.r)
		d.b.hashes = append(d.b.hashes[:d.f.hashes], h)
	case "cache_level":
		err = d.each((*trtDecoder).levelField)
	default:
		return false, nil
	}
	return true, err
}

func (d *trtDecoder) levelField(name string) (read bool, err error) {
	switch name {
	case "old_value":
		d.f.from, err = d.level()
	case "new_value":
		d.f.to, err = d.level()
	default:
		return false, nil
	}
	return true, err
}

func (d *trtDecoder) bounded(limit uint64) (uint64, error) {
	n, negative, err := d.r.integer()
	if err == nil && (negative || n > limit) {
		return 0, fmt.Errorf("%d is out of range", int64(n))
	}
	return n, err
}

// hashOf reads one engine hash: a number of either sign, or the hexadecimal digits of a
// digest, of which the last 16 count.
func hashOf(r reader) (Engine, error) {
	if r.kind() != kindText {
		h, _, err := r.integer()
		return Engine(h), err
	}
	s, err := r.text()
	if err != nil {
		return 0, err
	}
	if len(s) < 16 {
		return 0, fmt.Errorf("a digest of %d digits: want at least 16", len(s))
	}
	h, err := strconv.ParseUint(text(s[len(s)-16:]), 16, 64)
	if err != nil {
		return 0, fmt.Errorf("a digest that is not hexadecimal")
	}
	return Engine(h), nil
}

// trtTier maps cache levels: the device's memory, the host's, and what may come.
func trtTier(level int) fleet.Tier { return fleet.Tier(min(level, int(fleet.Disk))) }
