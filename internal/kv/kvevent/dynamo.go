package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// decodeDynamo reads Dynamo's RouterEvents into b: one, a list, or several one behind the
// other, in JSON or in msgpack (with names or by position), or a frame of its event plane
// around them. A KvCacheEvent alone is read as of worker 0.
//
// Dynamo names blocks by content as we do, so nothing is hashed. Events of blocks that belong to a cache
// beside the worker ("cache_owner") are skipped. The numbers belong to one worker's rank: [Batch.Only]
// takes one out of many.
func decodeDynamo(payload []byte, lim Limits, b *Batch) error {
	d := &b.memory.dynamo
	*d = dynamoDecoder{b: b, lim: lim}
	return d.message(payload)
}

type dynamoDecoder struct {
	b      *Batch
	lim    Limits
	r      reader
	events int // seen in the message so far
	blocks int
	f      dynamoFields
}

// dynamoFields are one event's fields.
type dynamoFields struct {
	worker        uint64
	rank          int
	id            uint64
	kind          string
	tier          []byte
	foreign       bool // the blocks are not the worker's own
	parent        EngineHash
	hasParent     bool
	hashes        int // index of the event's first hash in the batch's
	blocks        int
	contentKnown  int // blocks that named their content
	hash, content uint64
	present       uint8 // which of hash, content and id were there
}

// The bits of dynamoFields.present.
const (
	hasHash = 1 << iota
	hasContent
	hasID
)

// The order of fields in messages where fields go by position.
var (
	routerEventOrder = []string{"worker_id", "storage_tier", "residency_domain", "event", "state_source"}
	cacheEventOrder  = []string{"event_id", "data", "dp_rank"}
	storeOrder       = []string{"parent_hash", "start_position", "blocks"}
	storedBlockOrder = []string{"block_hash", "tokens_hash", "mm_extra_info"}
	removeOrder      = []string{"block_hashes"}
	envelopeOrder    = []string{"publisher_id", "sequence", "published_at", "topic", "payload", "published_at_ns"}
)

func (d *dynamoDecoder) message(raw []byte) error {
	if len(raw) > d.lim.Bytes {
		return fmt.Errorf("%d bytes: the limit is %d", len(raw), d.lim.Bytes)
	}

	m := &d.b.memory
	if len(raw) > 0 && raw[0] == frameVersion {
		payload, err := d.unframe(raw)
		if err != nil {
			return fmt.Errorf("frame: %w", err)
		}
		raw = payload
	}

	// JSON begins with a bracket, a brace or space, and no msgpack map or array does.
	m.json.reset(raw)
	d.r = &m.json
	if k := m.json.kind(); k != kindList && k != kindFields && k != kindEnd {
		m.pack.reset(raw)
		d.r = &m.pack
	}
	for d.r.kind() != kindEnd {
		if err := d.oneOrList(); err != nil {
			return err
		}
	}
	return nil
}

const frameVersion = 1

// unframe reads a frame: version, length of the envelope (4 bytes, big endian), the envelope.
func (d *dynamoDecoder) unframe(raw []byte) (payload []byte, err error) {
	if len(raw) < 5 || uint64(binary.BigEndian.Uint32(raw[1:])) != uint64(len(raw)-5) {
		return nil, errors.New("its length is not that of what follows")
	}
	d.b.memory.pack.reset(raw[5:])
	d.r = &d.b.memory.pack
	d.f = dynamoFields{}
	var e envelope
	if err := d.envelope(&e); err != nil {
		return nil, err
	}
	d.b.Seconds = float64(e.at) / 1e3
	if e.payload == nil {
		return nil, errors.New("no payload")
	}
	return e.payload, nil
}

type envelope struct {
	payload []byte
	at      uint64 // milliseconds since 1970
}

func (d *dynamoDecoder) envelope(e *envelope) error {
	if err := d.enter(); err != nil {
		return err
	}
	for at := 0; ; at++ {
		name, more, err := d.member(at, envelopeOrder)
		if err != nil || !more {
			return err
		}
		switch {
		case name == "payload" && d.r.kind() == kindBytes:
			e.payload, err = d.r.bytes()
		case name == "published_at" && d.r.kind() == kindNumber:
			e.at, _, err = d.r.integer()
		default:
			err = d.r.skip()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// enter enters a structure, whose fields go by name or by position.
func (d *dynamoDecoder) enter() error {
	if d.r.kind() == kindFields {
		return d.r.fields()
	}
	return d.r.list()
}

// member finds the name of the next field of the structure that was entered. A field that has
// no name has come behind those we know.
func (d *dynamoDecoder) member(at int, order []string) (name string, more bool, err error) {
	more, err = d.r.more()
	if err != nil || !more {
		return "", false, err
	}
	if d.r.named() {
		key, err := d.r.key()
		return text(key), true, err
	}
	if at < len(order) {
		return order[at], true, nil
	}
	return "", true, nil
}

// each calls field for every field of a structure. One that it does not read, and null, is
// skipped.
func (d *dynamoDecoder) each(order []string, field func(d *dynamoDecoder, name string) (read bool, err error)) error {
	if err := d.enter(); err != nil {
		return err
	}
	return d.rest(order, field)
}

// rest is each for a structure that was entered.
func (d *dynamoDecoder) rest(order []string, field func(d *dynamoDecoder, name string) (read bool, err error)) error {
	for at := 0; ; at++ {
		name, more, err := d.member(at, order)
		if err != nil || !more {
			return err
		}
		if name == "residency_domain" && !d.r.named() && d.r.kind() >= kindList {
			at, name = at+1, order[at+1] // the domain may be left out, and then so is its place
		}
		read := d.r.kind() == kindNull && name != "residency_domain"
		if !read {
			read, err = field(d, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
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

// oneOrList reads one event, or a list of them. In a list of events the first element is a structure; in an
// event whose fields go by position it is a number.
func (d *dynamoDecoder) oneOrList() error {
	d.begin()
	if d.r.kind() == kindFields {
		return d.event(false)
	}
	if err := d.r.list(); err != nil {
		return err
	}
	if d.r.kind() == kindNumber {
		return d.event(true)
	}
	return rest(d.r, d, func(d *dynamoDecoder) error {
		d.begin()
		return d.event(false)
	})
}

func (d *dynamoDecoder) begin() {
	d.f = dynamoFields{hashes: len(d.b.hashes), blocks: len(d.b.blocks)}
}

func (d *dynamoDecoder) event(entered bool) (err error) {
	d.events++
	if d.events > d.lim.Events {
		return fmt.Errorf("more than %d events", d.lim.Events)
	}
	if !entered {
		err = d.enter()
	}
	if err == nil {
		err = d.rest(routerEventOrder, (*dynamoDecoder).eventField)
	}
	if err != nil {
		return err
	}
	return d.finish()
}
