package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
)

// decodeVLLM reads one message of vLLM's event socket, or of one with the same format (Dynamo's publishers),
// into b: [time, [event...], rank?] in msgpack, each event a
// map with "type" or, from older engines, an array that begins with it. Hashes may be
// signed or unsigned numbers or byte strings.
//
// A block's content hash covers its LoRA's name and cache salt and, if it has any, its media. Blocks stays
// empty if the content cannot be computed: the engine's token ids do not fill the blocks, or the event is
// of a slower tier, where vLLM does not report the keys that separate tenants. Such blocks are known by
// their engine hashes.
func decodeVLLM(payload []byte, lim Limits, b *Batch) error {
	d := vllmDecoder{b: b, lim: lim}
	return d.message(payload)
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.Bytes, DefaultLimits.Bytes)
	set(&l.Events, DefaultLimits.Events)
	set(&l.Blocks, DefaultLimits.Blocks)
	set(&l.Tokens, DefaultLimits.Tokens)
	return l
}

// maxRank bounds the data-parallel rank a message may name.
const maxRank = 1 << 16

type vllmDecoder struct {
	b      *Batch
	lim    Limits
	tokens int // seen in the message so far
	// slowTiersHaveKeys means that events of slower tiers name the keys of their blocks too.
	slowTiersHaveKeys bool
	outside           bool // the events of a cache outside engines
	f                 vllmFields
}

// message reads a whole message: time, events, and the rank from engines that have several.
func (d *vllmDecoder) message(raw []byte) error {
	if len(raw) > d.lim.Bytes {
		return fmt.Errorf("%d bytes: the limit is %d", len(raw), d.lim.Bytes)
	}
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return err
	}
	if n < 2 {
		return fmt.Errorf("an array of %d: want time, events, rank", n)
	}

	d.b.Seconds, raw, err = readSeconds(raw)
	if err != nil {
		return fmt.Errorf("time: %w", err)
	}
	raw, err = d.events(raw)
	if err != nil {
		return err
	}
	if n > 2 {
		raw, err = d.rank(raw)
		if err != nil {
			return fmt.Errorf("rank: %w", err)
		}
	}

	for range max(n, 3) - 3 { // fields of a later version
		raw, err = msgp.Skip(raw)
		if err != nil {
			return err
		}
	}
	if len(raw) > 0 {
		return fmt.Errorf("%d bytes behind the message", len(raw))
	}
	return nil
}

func (d *vllmDecoder) rank(raw []byte) ([]byte, error) {
	if msgp.IsNil(raw) {
		return raw[1:], nil
	}
	rank, raw, err := msgp.ReadInt64Bytes(raw)
	if err == nil && (rank < 0 || rank > maxRank) {
		err = fmt.Errorf("%d is out of range", rank)
	}
	d.b.Rank = int(rank)
	return raw, err
}

func (d *vllmDecoder) events(raw []byte) ([]byte, error) {
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return raw, fmt.Errorf("events: %w", err)
	}
	if int64(n) > int64(d.lim.Events) {
		return raw, fmt.Errorf("%d events: the limit is %d", n, d.lim.Events)
	}
	for i := range n {
		raw, err = d.event(raw)
		if err != nil {
			return raw, fmt.Errorf("event %d: %w", i, err)
		}
	}
	return raw, nil
}

// event reads one event of either form. It finds the kind first, because the fields of an unknown kind may
// have any form.
func (d *vllmDecoder) event(raw []byte) (rest []byte, err error) {
	kind, err := eventKind(raw)
	if err != nil {
		return raw, err
	}

	d.f.reset(len(d.b.hashes))
	d.b.tokens = d.b.tokens[:0]
	switch {
	case string(kind) != "BlockStored" && string(kind) != "BlockRemoved" && string(kind) != "AllBlocksCleared":
		d.b.Unknown++
		return msgp.Skip(raw)
	case string(kind) == "AllBlocksCleared":
		d.b.addCleared()
		return msgp.Skip(raw)
	case msgp.NextType(raw) == msgp.MapType:
		rest, err = d.mapForm(raw)
	case string(kind) == "BlockStored":
		rest, err = d.arrayForm(raw, storedOrder[:])
	default:
		rest, err = d.arrayForm(raw, removedOrder[:])
	}
	if err != nil {
		return raw, err
	}
	if string(kind) == "BlockStored" {
		return rest, d.addStored()
	}
	d.addRemoved()
	return rest, nil
}

// eventKind finds the type of an event of either form.
func eventKind(raw []byte) (kind []byte, err error) {
	var n uint32
	if msgp.NextType(raw) == msgp.ArrayType {
		n, raw, err = msgp.ReadArrayHeaderBytes(raw)
		if err == nil && n > 0 {
			kind, _, err = msgp.ReadStringZC(raw)
			return kind, err
		}
		return nil, errors.Join(err, errors.New("an event without a type"))
	}

	n, raw, err = msgp.ReadMapHeaderBytes(raw)
	if err != nil {
		return nil, err
	}
	for range n {
		var key []byte
		key, raw, err = msgp.ReadMapKeyZC(raw)
		if err != nil {
			return nil, err
		}
		if string(key) == "type" {
			kind, _, err = msgp.ReadStringZC(raw)
			return kind, err
		}
		raw, err = msgp.Skip(raw)
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("an event without a type")
}

// addStored appends a stored event from the fields that were read.
func (d *vllmDecoder) addStored() error {
	f := &d.f
	window := f.windowOfKind()
	d.b.memory.setGroup(f.group, window)
	tier, ok := d.tier()
	if !ok || window == unindexed {
		d.skip()
		return nil
	}

	x := &d.b.memory.extra
	x.reset()
	if err := x.decode(f.extra, f.lora, !f.hasParent, len(d.b.hashes)-f.hashes); err != nil {
		return fmt.Errorf("extra_keys: %w", err)
	}
	if err := x.decodeInfos(f.media, len(d.b.hashes)-f.hashes); err != nil {
		return fmt.Errorf("block_mm_infos: %w", err)
	}
	if f.salt == nil {
		f.salt = x.salt
	}

	d.b.addStored(stored{
		tier: tier, hashes: d.hashes(), parent: f.parent, hasParent: f.hasParent,
		tokens: d.b.tokens, blockSize: f.blockSize, window: window, group: f.group, lora: text(f.lora), salt: text(f.salt),
		joined: tier != fleet.Device && len(f.extra) == 0 && !d.slowTiersHaveKeys,
		extra:  x,
	})
	return nil
}

func (d *vllmDecoder) addRemoved() {
	tier, ok := d.tier()
	window := d.f.windowOfKind()
	if len(d.f.spec) == 0 {
		window = d.b.memory.window(d.f.group)
	}
	if !ok || window == unindexed {
		d.skip()
		return
	}
	hashes := d.hashes()
	if n := d.b.memory.parts; n > 1 && window == 0 {
		parts, fits := d.b.appendParts(hashes, n)
		if !fits {
			d.b.Unknown++ // the rank is not exact any more
			return
		}
		hashes = parts
	}
	d.b.Events = append(d.b.Events, Event{Kind: Removed, Tier: tier, Hashes: hashes, Window: int(window),
		Group: groupOf(d.f.group, window)})
}

// tier is the tier of the present event's blocks; ok is false if no index wants them.
func (d *vllmDecoder) tier() (t fleet.Tier, ok bool) {
	if d.outside {
		return d.f.tierOutside(), true
	}
	return d.f.tier()
}

func (d *vllmDecoder) skip() {
	d.b.hashes = d.b.hashes[:d.f.hashes]
	d.b.Skipped++
}

// hashes returns the hashes of the present event. Their capacity ends with them, so that an append cannot
// overwrite the next event's.
func (d *vllmDecoder) hashes() []EngineHash {
	n := len(d.b.hashes)
	return d.b.hashes[d.f.hashes:n:n]
}

func readSeconds(raw []byte) (float64, []byte, error) {
	switch msgp.NextType(raw) {
	case msgp.NilType:
		return 0, raw[1:], nil
	case msgp.IntType, msgp.UintType:
		n, rest, err := msgp.ReadInt64Bytes(raw)
		return float64(n), rest, err
	default:
		s, rest, err := msgp.ReadFloat64Bytes(raw)
		if math.IsNaN(s) || math.IsInf(s, 0) {
			s = 0
		}
		return s, rest, err
	}
}

// readHash reads one engine hash: a number of either sign, or a digest of which the last 8
// bytes count.
func readHash(raw []byte) (EngineHash, []byte, error) {
	switch msgp.NextType(raw) {
	case msgp.UintType:
		u, rest, err := msgp.ReadUint64Bytes(raw)
		return EngineHash(u), rest, err
	case msgp.IntType:
		i, rest, err := msgp.ReadInt64Bytes(raw)
		return EngineHash(i), rest, err
	case msgp.BinType:
		digest, rest, err := msgp.ReadBytesZC(raw)
		if err == nil && len(digest) < 8 {
			err = fmt.Errorf("a digest of %d bytes: want at least 8", len(digest))
		}
		if err != nil {
			return 0, raw, err
		}
		return EngineHash(binary.BigEndian.Uint64(digest[len(digest)-8:])), rest, nil
	default:
		return 0, raw, fmt.Errorf("a %v: want a number or a digest", msgp.NextType(raw))
	}
}
