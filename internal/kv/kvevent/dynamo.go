package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
)

// DecodeDynamo reads Dynamo's RouterEvents into b: one, a list, or several one behind the
// other, in JSON or in msgpack (with names or by position), or a frame of its event plane
// around them. A KvCacheEvent alone is read as of worker 0.
//
// Dynamo names blocks by content as we do, so nothing is hashed. Events of blocks that belong
// to a cache beside the worker ("cache_owner") are skipped. The numbers are those of one
// worker's rank: [Batch.Only] takes one out of many.
//
// On an error the batch is empty. In a steady state nothing is allocated.
func DecodeDynamo(payload []byte, lim Limits, b *Batch) error {
	b.Reset()
	d := &b.memory.dynamo
	*d = dynamoDecoder{b: b, lim: lim.withDefaults()}
	if err := d.message(payload); err != nil {
		b.Reset()
		return fmt.Errorf("decode dynamo events: %w", err)
	}
	return nil
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
	parent        Engine
	hasParent     bool
	hashes        int // where the event's begin in the batch's
	blocks        int
	contentKnown  int // blocks that named their content
	hash, content uint64
	said          uint8 // which of hash, content and id were said
}

const (
	saidHash = 1 << iota
	saidContent
	saidID
)

// The order of fields where they are told by position.
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
	m.json.reset(raw)
	d.r = &m.json
	// No msgpack map or array begins with a byte of this set, and no JSON with another.
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

// enter enters a structure, whose fields are named or told by position.
func (d *dynamoDecoder) enter() error {
	if d.r.kind() == kindFields {
		return d.r.fields()
	}
	return d.r.list()
}

// member finds the name of the next field of the structure that was entered. A field that has
// no name has come behind those we know.
func (d *dynamoDecoder) member(at int, order []string) (name string, more bool, err error) {
	if more, err = d.r.more(); err != nil || !more {
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
			if read, err = field(d, name); err != nil {
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

// oneOrList reads one event, or a list of them: in a list of events the first element is a
// structure, in an event told by position it is a number.
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
	for {
		more, err := d.r.more()
		if err != nil || !more {
			return err
		}
		d.begin()
		if err := d.event(false); err != nil {
			return err
		}
	}
}

func (d *dynamoDecoder) begin() {
	d.f = dynamoFields{hashes: len(d.b.hashes), blocks: len(d.b.blocks)}
}

func (d *dynamoDecoder) event(entered bool) (err error) {
	if d.events++; d.events > d.lim.Events {
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

func (d *dynamoDecoder) eventField(name string) (read bool, err error) {
	switch name {
	case "worker_id":
		d.f.worker, _, err = d.r.integer()
	case "storage_tier":
		d.f.tier, err = d.r.text()
	case "residency_domain":
		if d.r.kind() != kindText {
			d.f.foreign = true
			return false, nil
		}
		var domain []byte
		domain, err = d.r.text()
		d.f.foreign = string(domain) != "worker"
	case "event":
		err = d.each(cacheEventOrder, (*dynamoDecoder).eventField)
	case "event_id":
		d.f.id, _, err = d.r.integer()
		d.f.said |= saidID
	case "dp_rank":
		var n uint64
		if n, _, err = d.r.integer(); err == nil && n > maxRank {
			err = fmt.Errorf("%d is out of range", n)
		}
		d.f.rank = int(n)
	case "data":
		err = d.data()
	default:
		return false, nil
	}
	return true, err
}

// data reads a word, or a structure whose one field is named by what happened.
func (d *dynamoDecoder) data() error {
	if d.r.kind() == kindText {
		word, err := d.r.text()
		d.f.kind = "unknown"
		if string(word) == "cleared" {
			d.f.kind = "cleared"
		}
		return err
	}
	if err := d.r.fields(); err != nil {
		return err
	}
	return d.rest(nil, (*dynamoDecoder).dataField)
}

func (d *dynamoDecoder) dataField(name string) (read bool, err error) {
	switch name {
	case "stored":
		d.f.kind = "stored"
		return true, d.each(storeOrder, (*dynamoDecoder).storeField)
	case "removed":
		d.f.kind = "removed"
		return true, d.each(removeOrder, (*dynamoDecoder).removeField)
	case "cleared":
		d.f.kind = "cleared"
	default:
		d.f.kind = "unknown"
	}
	return false, nil
}

func (d *dynamoDecoder) storeField(name string) (read bool, err error) {
	switch name {
	case "parent_hash":
		d.f.parent, err = hashOf(d.r)
		d.f.hasParent = true
	case "blocks":
		d.b.hashes, d.b.blocks, d.f.contentKnown = d.b.hashes[:d.f.hashes], d.b.blocks[:d.f.blocks], 0
		err = d.eachOf((*dynamoDecoder).storedBlock)
	default:
		return false, nil
	}
	return true, err
}

func (d *dynamoDecoder) removeField(name string) (read bool, err error) {
	if name != "block_hashes" {
		return false, nil
	}
	d.b.hashes = d.b.hashes[:d.f.hashes]
	return true, d.eachOf((*dynamoDecoder).removedHash)
}

func (d *dynamoDecoder) eachOf(element func(d *dynamoDecoder) error) error {
	if err := d.r.list(); err != nil {
		return err
	}
	for {
		more, err := d.r.more()
		if err != nil || !more {
			return err
		}
		if d.blocks++; d.blocks > d.lim.Blocks {
			return fmt.Errorf("more than %d blocks", d.lim.Blocks)
		}
		if err := element(d); err != nil {
			return err
		}
	}
}

func (d *dynamoDecoder) storedBlock() error {
	d.f.said &^= saidHash | saidContent
	if err := d.each(storedBlockOrder, (*dynamoDecoder).blockField); err != nil {
		return err
	}
	if d.f.said&saidHash == 0 {
		return errors.New("a block without block_hash")
	}
	d.b.hashes = append(d.b.hashes, Engine(d.f.hash))
	d.b.blocks = append(d.b.blocks, blockhash.Block(d.f.content))
	if d.f.said&saidContent != 0 {
		d.f.contentKnown++
	}
	return nil
}

func (d *dynamoDecoder) blockField(name string) (read bool, err error) {
	var h Engine
	switch name {
	case "block_hash":
		h, err = hashOf(d.r)
		d.f.hash, d.f.said = uint64(h), d.f.said|saidHash
	case "tokens_hash":
		h, err = hashOf(d.r)
		d.f.content, d.f.said = uint64(h), d.f.said|saidContent
	default:
		return false, nil
	}
	return true, err
}

func (d *dynamoDecoder) removedHash() error {
	h, err := hashOf(d.r)
	d.b.hashes = append(d.b.hashes, h)
	return err
}

// finish turns the fields of one event into an event.
func (d *dynamoDecoder) finish() error {
	b, f := d.b, &d.f
	hashes, blocks := b.hashes[f.hashes:len(b.hashes):len(b.hashes)], b.blocks[f.blocks:len(b.blocks):len(b.blocks)]
	mine, err := b.take(f.worker, f.rank)
	if err != nil {
		return err
	}
	if mine && f.said&saidID != 0 {
		b.number(f.id)
	}
	tier, known := dynamoTier(f.tier)
	switch {
	case !mine:
	case f.kind == "" || f.kind == "unknown":
		b.Unknown++
	case f.foreign || !known:
		b.Skipped++
	case f.kind == "cleared":
		b.addCleared()
	case f.kind == "removed":
		b.Events = append(b.Events, Event{Kind: Removed, Tier: tier, Hashes: hashes})
		return nil
	default:
		if f.contentKnown != len(hashes) {
			blocks = nil
		}
		b.Events = append(b.Events, Event{Kind: Stored, Tier: tier, Hashes: hashes, Parent: f.parent, HasParent: f.hasParent, Blocks: blocks})
		return nil
	}
	b.hashes, b.blocks = b.hashes[:f.hashes], b.blocks[:f.blocks]
	return nil
}

func dynamoTier(name []byte) (t fleet.Tier, known bool) {
	switch string(name) {
	case "", "device", "Device":
		return fleet.Device, true
	case "host_pinned", "HostPinned":
		return fleet.Host, true
	case "disk", "Disk":
		return fleet.Disk, true
	case "external", "External":
		return fleet.External, true
	}
	return 0, false
}
