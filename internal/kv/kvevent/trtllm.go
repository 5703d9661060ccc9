package kvevent

import (
	"errors"
	"fmt"
	"math"
)

// decodeTRTLLM reads what TensorRT-LLM answers to /kv_cache_events, or its get_kv_cache_events
// as JSON, into b: a list of events, or events one behind the other. An empty list is an
// empty batch.
//
// An event is of one attention window; the largest that "created" events have named is the
// full one. A created event is the beginning of a new cache, so it is delivered as Cleared.
// Blocks that moved between cache levels ("updated") are delivered as stored there and
// removed here; a removal names no level, so it is delivered for each level that the engine
// has used. Partial blocks are left out, see [Batch.BlockSize], and their removals are not: no
// index knows their hashes.
func decodeTRTLLM(payload []byte, lim Limits, b *Batch) error {
	d := &b.memory.trtllm
	*d = trtDecoder{b: b, lim: lim, r: &b.memory.json}
	return d.message(payload)
}

// trtMemory has the values that TensorRT-LLM reports once and on which later events depend.
type trtMemory struct {
	window    uint64 // the largest: the window of full attention
	created   bool   // the last event was "created"
	levels    uint8  // bit l: a block was seen on cache level l
	blockSize int    // the largest seen
	blocks    []trtBlock
}

// trtBlock is one block of a stored event.
type trtBlock struct {
	hash   EngineHash
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
	hashes    int // index of the event's first hash in the batch's
	parent    EngineHash
	hasParent bool
	lora      []byte
	loraID    []byte
	salt      []byte
	from, to  int // cache levels, -1 if not reported
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
	return elements(d.r, d, (*trtDecoder).event)
}

func (d *trtDecoder) event() error {
	b := d.b
	d.events++
	if d.events > d.lim.Events {
		return fmt.Errorf("more than %d events", d.lim.Events)
	}

	d.f = trtFields{hashes: len(b.hashes), from: -1, to: -1}
	b.tokens = b.tokens[:0]
	b.memory.extra.reset()
	b.memory.trt.blocks = b.memory.trt.blocks[:0]
	if err := d.each((*trtDecoder).eventField); err != nil {
		return err
	}

	mine, err := b.accepts(0, d.f.rank)
	if err != nil {
		return err
	}
	if !mine {
		b.hashes = b.hashes[:d.f.hashes]
		return nil
	}
	if d.f.numbered {
		b.addNumber(d.f.id)
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
			read, err = field(d, text(key))
			if err != nil {
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
