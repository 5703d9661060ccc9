package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/fleet"
)

// vllmFields are one event's fields as they stand in the message. Byte slices point into it.
type vllmFields struct {
	hashes    int // index of the event's first hash in the batch's
	parent    EngineHash
	hasParent bool
	blockSize int
	group     int // -1 if not reported
	lora      []byte
	loraID    []byte // as msgpack, if it is not null
	medium    []byte
	extra     []byte // as msgpack
	salt      []byte
	spec      []byte
	window    int // of the attention group, in tokens; 0 if not reported
	locality  []byte
	media     []byte // as msgpack
}

func (f *vllmFields) reset(hashes int) { *f = vllmFields{hashes: hashes, group: -1} }

// The order of fields in the array form, from position 1 on, as Dynamo's decoder has it.
// Older SGLang's arrays end at lora_id or at medium.
var (
	storedOrder = [...]string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
		"extra_keys", "block_mm_infos", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality"}
	removedOrder = [...]string{"block_hashes", "medium", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality"}
)

func (d *vllmDecoder) mapForm(raw []byte) ([]byte, error) {
	n, raw, err := msgp.ReadMapHeaderBytes(raw)
	if err != nil {
		return raw, err
	}
	for range n {
		var key []byte
		key, raw, err = msgp.ReadMapKeyZC(raw)
		if err != nil {
			return raw, err
		}
		raw, err = d.field(text(key), raw)
		if err != nil {
			return raw, fmt.Errorf("%s: %w", key, err)
		}
	}
	d.nameLoRA()
	return raw, nil
}

// arrayForm reads the fields of an event of an older engine, which go by their order.
func (d *vllmDecoder) arrayForm(raw []byte, order []string) ([]byte, error) {
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return raw, err
	}
	raw, err = msgp.Skip(raw) // the type
	if err != nil {
		return raw, err
	}

	at := 0
	for range n - 1 {
		if at == len(order) {
			raw, err = msgp.Skip(raw)
			if err != nil {
				return raw, err
			}
			continue
		}
		// Dynamo's arrays have block_mm_infos here. vLLM's do not: there a number is the group.
		if order[at] == "block_mm_infos" && isNumber(raw) {
			at++
		}
		raw, err = d.field(order[at], raw)
		if err != nil {
			return raw, fmt.Errorf("%s: %w", order[at], err)
		}
		at++
	}
	d.nameLoRA()
	return raw, nil
}

// nameLoRA gives an adapter that is known only by its number a name that no request can have. Without it the
// adapter's blocks would count as the base model's.
func (d *vllmDecoder) nameLoRA() {
	if len(d.f.lora) == 0 && len(d.f.loraID) > 0 {
		d.f.lora = d.f.loraID
	}
}

// field reads the value of one field. It skips unknown fields, and null.
func (d *vllmDecoder) field(name string, raw []byte) (rest []byte, err error) {
	if msgp.IsNil(raw) {
		return raw[1:], nil
	}

	f := &d.f
	switch name {
	case "block_hashes":
		return d.readHashes(raw)
	case "token_ids":
		return d.readTokens(raw)
	case "parent_block_hash":
		f.parent, rest, err = readHash(raw)
		f.hasParent = true
		return rest, err
	case "block_size":
		f.blockSize, rest, err = readBounded(raw, math.MaxInt32)
		return rest, err
	case "group_idx":
		f.group, rest, err = readBounded(raw, math.MaxInt32)
		return rest, err
	case "medium":
		f.medium, rest, err = msgp.ReadStringZC(raw)
		return rest, err
	case "lora_name":
		f.lora, rest, err = msgp.ReadStringZC(raw)
		return rest, err
	case "cache_salt":
		f.salt, rest, err = msgp.ReadStringZC(raw)
		return rest, err
	case "kv_cache_spec_kind":
		f.spec, rest, err = msgp.ReadStringZC(raw)
		return rest, err
	case "kv_cache_spec_sliding_window":
		f.window, rest, err = readBounded(raw, math.MaxInt32)
		return rest, err
	case "locality":
		f.locality, rest, err = msgp.ReadStringZC(raw)
		return rest, err
	}

	rest, err = msgp.Skip(raw)
	if err != nil {
		return raw, err
	}
	switch value := raw[:len(raw)-len(rest)]; name {
	case "extra_keys":
		f.extra = value
	case "lora_id":
		f.loraID = value
	case "block_mm_infos":
		f.media = value
	}
	return rest, nil
}

func (d *vllmDecoder) readHashes(raw []byte) ([]byte, error) {
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return raw, err
	}
	d.b.hashes = d.b.hashes[:d.f.hashes] // of a repeated key the last one counts
	if int64(n) > int64(d.lim.Blocks-len(d.b.hashes)) {
		return raw, fmt.Errorf("%d blocks more: the limit is %d", n, d.lim.Blocks)
	}
	for range n {
		var h EngineHash
		h, raw, err = readHash(raw)
		if err != nil {
			return raw, err
		}
		d.b.hashes = append(d.b.hashes, h)
	}
	return raw, nil
}

// readTokens reads token ids. Most bytes of a message are here, so it decodes the common forms of a number
// itself: msgpack's fixint, uint16 and uint32.
func (d *vllmDecoder) readTokens(raw []byte) ([]byte, error) {
	n, raw, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return raw, err
	}
	if int64(n) > int64(d.lim.Tokens-d.tokens) {
		return raw, fmt.Errorf("%d tokens more: the limit is %d", n, d.lim.Tokens)
	}

	d.tokens += int(n)
	tokens := d.b.tokens[:0]
	for range n {
		switch {
		case len(raw) >= 1 && raw[0] < 0x80:
			tokens, raw = append(tokens, uint32(raw[0])), raw[1:]
		case len(raw) >= 3 && raw[0] == 0xcd:
			tokens, raw = append(tokens, uint32(binary.BigEndian.Uint16(raw[1:]))), raw[3:]
		case len(raw) >= 5 && raw[0] == 0xce:
			tokens, raw = append(tokens, binary.BigEndian.Uint32(raw[1:])), raw[5:]
		default:
			var t uint32
			t, raw, err = readToken(raw)
			if err != nil {
				return raw, err
			}
			tokens = append(tokens, t)
		}
	}
	d.b.tokens = tokens
	return raw, nil
}

// readToken reads a number or, from an engine with Eagle drafts, a pair of neighbouring
// tokens, of which the first is the token of this place.
func readToken(raw []byte) (uint32, []byte, error) {
	if msgp.NextType(raw) != msgp.ArrayType {
		return msgp.ReadUint32Bytes(raw)
	}
	n, inner, err := msgp.ReadArrayHeaderBytes(raw)
	if err != nil {
		return 0, raw, err
	}
	if n == 0 {
		return 0, raw, errors.New("an empty pair")
	}
	t, rest, err := msgp.ReadUint32Bytes(inner)
	for i := uint32(1); i < n && err == nil; i++ { // n is only a promise
		_, rest, err = msgp.ReadUint32Bytes(rest)
	}
	return t, rest, err
}

// tier is the tier of the event's blocks; ok is false if no index of this rank wants them.
func (f *vllmFields) tier() (t fleet.Tier, ok bool) {
	if string(f.locality) == "REMOTE" {
		return 0, false
	}
	switch string(f.medium) {
	case "", "GPU", "DEVICE":
		return fleet.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return fleet.Host, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return fleet.Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return fleet.External, true
	}
	return 0, false
}

// windowOfKind is the window of the event's attention group: 0 for full attention, unindexed for a kind whose
// blocks do not correspond to a prompt's. An engine that does not report the kind has one group, of full
// attention.
func (f *vllmFields) windowOfKind() int32 {
	switch s := text(f.spec); {
	case s == "", strings.HasPrefix(s, "full_attention"), strings.HasPrefix(s, "mla"), strings.HasPrefix(s, "sink_full"):
		return 0
	case strings.HasPrefix(s, "sliding_window") && f.window > 0:
		return int32(f.window)
	}
	return unindexed
}

func readBounded(raw []byte, limit int64) (int, []byte, error) {
	n, rest, err := msgp.ReadInt64Bytes(raw)
	if err == nil && (n < 0 || n > limit) {
		err = fmt.Errorf("%d is out of range", n)
	}
	return int(n), rest, err
}

func isNumber(raw []byte) bool {
	t := msgp.NextType(raw)
	return t == msgp.IntType || t == msgp.UintType
}
