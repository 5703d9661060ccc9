// Package bodies makes bodies of requests by which clients could have engines transfer KV caches, or read the caches of others. It reads
// bodies as engines in Python do. They are mutations of requests that ended a real vLLM.
package bodies

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf16"
)

// Paths are the paths at which engines read such members, and one that no engine serves.
var Paths = []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/inference/v1/generate", "/v1/other"}

// Transfers makes bodies with members of transfers.
type Transfers struct {
	// Model is the name of the model in them.
	Model string
	// Values are texts of JSON, of which members of transfers have one each.
	Values []string
}

// Body returns the bytes of a body. Some are no JSON, or not in UTF-8.
func (g *Transfers) Body(draw *rand.Rand) []byte { return Encode(draw, g.text(draw)) }

// text returns a body with members of transfers, in one of the places from which an engine reads them.
func (g *Transfers) text(draw *rand.Rand) string {
	names := []string{"kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_room",
		"bootstrap_pair_key", "decode_tp_size", "routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank"}
	pick := func(of []string) string { return of[draw.IntN(len(of))] }
	member := func() string {
		return Quoted(draw, pick(names)) + Space(draw) + ":" + Space(draw) + pick(g.Values)
	}

	inside := []string{member(), `"a":1`, `"":{}`}
	draw.Shuffle(len(inside), func(i, j int) { inside[i], inside[j] = inside[j], inside[i] })
	object := "{" + strings.Join(inside, Space(draw)+",") + Space(draw) + "}"
	members := []string{`"model":"` + g.Model + `"`, `"n":2`, `"max_tokens":2`, `"max_output_tokens":16`,
		`"sampling_params":{"max_tokens":2}`,
		`"prompt":"hello"`, `"messages":[{"role":"user","content":"hello"}]`, `"input":"hello"`, `"token_ids":[1,2,3]`}
	for range 1 + draw.IntN(3) {
		members = append(members, pick([]string{
			member(),
			Quoted(draw, "vllm_xargs") + ":" + object,
			Quoted(draw, "sampling_params") + `:{"n":2,"max_tokens":2,` + Quoted(draw, "extra_args") + ":" + object + "}",
			`"metadata":` + object,
			`"` + strings.Repeat("x", 300) + `":` + object,
		}))
	}
	draw.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return Space(draw) + "{" + strings.Join(members, ","+Space(draw)) + "}" + Space(draw)
}

// Quoted returns a name as a JSON string, of which some characters are escapes.
func Quoted(draw *rand.Rand, name string) string {
	var b strings.Builder
	escapes := draw.IntN(3) == 0
	for _, c := range name {
		if escapes && draw.IntN(3) == 0 {
			fmt.Fprintf(&b, [2]string{`\u%04x`, `\u%04X`}[draw.IntN(2)], c)
			continue
		}
		b.WriteRune(c)
	}
	return `"` + b.String() + `"`
}

// Space returns white space, or nothing.
func Space(draw *rand.Rand) string {
	return []string{"", "", "", "", " ", "\n", "\t\r", "  "}[draw.IntN(8)]
}

// Encode returns the bytes of a body: in UTF-8 as it is, in another encoding, or with a fault.
func Encode(draw *rand.Rand, body string) []byte {
	switch draw.IntN(14) {
	case 0:
		return append([]byte("\xef\xbb\xbf"), body...)
	case 1:
		return encode16(body, binary.LittleEndian, draw.IntN(2) == 0)
	case 2:
		return encode16(body, binary.BigEndian, draw.IntN(2) == 0)
	case 3:
		return encode32(body, binary.LittleEndian, draw.IntN(2) == 0)
	case 4:
		return encode32(body, binary.BigEndian, draw.IntN(2) == 0)
	case 5:
		return []byte("[" + body + "]")
	case 6:
		return []byte(body[:draw.IntN(len(body))])
	case 7:
		return []byte(body + body)
	case 8:
		at := draw.IntN(len(body))
		return slices.Concat([]byte(body[:at]), []byte{byte(draw.IntN(256))}, []byte(body[at:]))
	}
	return []byte(body)
}

func encode16(body string, order binary.AppendByteOrder, mark bool) (out []byte) {
	if mark {
		out = order.AppendUint16(out, 0xfeff)
	}
	for _, unit := range utf16.Encode([]rune(body)) {
		out = order.AppendUint16(out, unit)
	}
	return out
}

func encode32(body string, order binary.AppendByteOrder, mark bool) (out []byte) {
	if mark {
		out = order.AppendUint32(out, 0xfeff)
	}
	for _, r := range body {
		out = order.AppendUint32(out, uint32(r))
	}
	return out
}
