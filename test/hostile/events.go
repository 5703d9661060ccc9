package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// eventCases: messages of a publisher that is no engine. Each dialect's decoder refuses them within its bounds.
func eventCases() []testCase {
	dialects := []struct {
		name   string
		decode func([]byte, kvevent.Limits, *kvevent.Batch) error
		// emptyIsFine: an empty message is an empty batch.
		emptyIsFine bool
	}{
		{"vLLM", kvevent.VLLM.Decode, false},
		{"SGLang", kvevent.SGLang.Decode, false},
		{"TensorRT-LLM", kvevent.TRTLLM.Decode, true},
		{"Dynamo", kvevent.Dynamo.Decode, true},
	}

	array := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xdd}, n) }
	object := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xdf}, n) }
	text := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xdb}, n) }
	batch := func(events ...[]byte) []byte {
		b := msgp.AppendArrayHeader(nil, 2)
		b = msgp.AppendFloat64(b, 1)
		b = msgp.AppendArrayHeader(b, uint32(len(events)))
		return append(b, bytes.Join(events, nil)...)
	}
	garbage := make([]byte, 4096)
	for i := range garbage {
		garbage[i] = byte(i * 131)
	}

	messages := []struct {
		name    string
		payload []byte
	}{
		{"nothing", nil},
		{"a NUL", []byte{0}},
		{"a word", []byte("hello")},
		{"garbage", garbage},
		{"an array of 2^32 elements", array(math.MaxUint32)},
		{"an object of 2^32 members", object(math.MaxUint32)},
		{"a text of 2^32 bytes", text(math.MaxUint32)},
		{"100,000 nested arrays", bytes.Repeat([]byte{0x91}, 100_000)},
		{"100,000 nested objects", bytes.Repeat([]byte{0x81, 0xa1, 'a'}, 100_000)},
		{"JSON without end", []byte(strings.Repeat(`{"a":[`, 50_000))},
		{"an event that claims 2^32 blocks", batch(append([]byte{0x93, 0xab}, append([]byte("BlockStored"), array(math.MaxUint32)...)...))},
		{"an event that claims 2^32 members", batch(object(math.MaxUint32))},
		{"an event that is a number", batch([]byte{0x05})},
		{"an event without a kind", batch([]byte{0x90})},
	}
	var list []testCase
	for _, d := range dialects {
		for _, m := range messages {
			c := testCase{name: d.name + ": " + m.name, accepted: d.emptyIsFine && len(m.payload) == 0, bytes: 2 << 20}
			c.call = func() error { return d.decode(m.payload, kvevent.DefaultLimits, &kvevent.Batch{}) }
			list = append(list, c)
		}
		list = append(list, testCase{name: d.name + ": a message of 65 MB", accepted: false, bytes: 72 << 20, call: func() error {
			return d.decode(make([]byte, 65<<20), kvevent.DefaultLimits, &kvevent.Batch{})
		}})
	}
	return list
}
