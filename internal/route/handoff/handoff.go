package handoff

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stator-project/stator/internal/fleet"
)

// Endpoint is the shape of a request's body: the members that bound its answer differ.
type Endpoint uint8

// The endpoints whose requests can be split.
const (
	Chat        Endpoint = iota // /v1/chat/completions
	Completions                 // /v1/completions
	Responses                   // /v1/responses
	Messages                    // /v1/messages
	Generate                    // /inference/v1/generate
)

// Transfer is the way of one prompt's KV cache from the worker that computes it to the worker that decodes.
type Transfer struct {
	Kind     fleet.Transfer
	Endpoint Endpoint
	// ID names the transfer in both engines. It must be unique, and is at least MinID.
	ID int64
	// At is the host and port of the prefill worker's rank, for the kinds with an address.
	At string
	// PrefillRank and DecodeRank are the ranks of both workers; -1 for a worker with one rank.
	PrefillRank, DecodeRank int
}

// MinID is the least id of a transfer: TensorRT-LLM counts its own ids below it.
const MinID = 1 << 42

// IsConcurrent reports whether both workers receive their requests at once. Otherwise the decode request needs the answer to the
// prefill request.
func IsConcurrent(kind fleet.Transfer) bool {
	return kind == fleet.TransferP2P || kind == fleet.TransferBootstrap
}

// Supports reports whether engines transfer the prompts of an endpoint.
func Supports(kind fleet.Transfer, e Endpoint) bool {
	switch kind {
	case fleet.TransferNixl, fleet.TransferP2P:
		return true
	case fleet.TransferBootstrap, fleet.TransferContext:
		return e == Chat || e == Completions
	}
	return false
}

// ErrNoTransfer means that a worker's answer has no parameters of a transfer: it is not configured to transfer KV caches, or it
// has kept no blocks.
var ErrNoTransfer = errors.New("the answer of the prefill worker has no parameters of a transfer: see docs/disaggregation.md for " +
	"the options with which it must be started")

var errKind = errors.New("the workers have no transfer of KV caches")

// Prefill appends to dst the body with which a prefill worker computes the prompt of a client's body, and keeps its blocks or
// sends them to the decode worker. Its answer is not streamed. All other members keep their bytes and their order.
func (t *Transfer) Prefill(dst, body []byte) ([]byte, error) {
	switch t.Kind {
	case fleet.TransferNixl:
		return firstToken(dst, body, t.Endpoint, computeOnly)
	case fleet.TransferP2P:
		return firstToken(dst, body, t.Endpoint, `"kv_transfer_params":{"remote_decoder":{"kv_request_id":"`+t.requestID()+`"}}`)
	case fleet.TransferBootstrap:
		meet, err := t.meeting()
		if err != nil {
			return dst, err
		}
		return splice(dst, body, drops(streams), `"stream":false,`+meet+rankMember("routed_dp_rank", t.PrefillRank))
	case fleet.TransferContext:
		return t.prefillContext(dst, body)
	}
	return dst, errKind
}

// Decode appends to dst a client's body with the parameters of the transfer. Answer is the prefill worker's, or nil for a
// concurrent kind. It returns an error for an answer with which a decode worker would fail.
func (t *Transfer) Decode(dst, body, answer []byte) ([]byte, error) {
	if len(answer) > MaxAnswer {
		return dst, fmt.Errorf("the answer of the prefill worker has more than %d bytes", MaxAnswer)
	}
	if !utf8.Valid(answer) {
		return dst, errors.New("the answer of the prefill worker is not in UTF-8")
	}

	switch t.Kind {
	case fleet.TransferNixl:
		return decodeNixl(dst, body, answer)
	case fleet.TransferP2P:
		return pull(dst, body, "remote_prefiller", t.requestID(), t.At)
	case fleet.TransferBootstrap:
		meet, err := t.meeting()
		if err != nil {
			return dst, err
		}
		ranks := rankMember("routed_dp_rank", t.DecodeRank) + rankMember("disagg_prefill_dp_rank", t.PrefillRank)
		return splice(dst, body, drops(transfer), meet+ranks)
	case fleet.TransferContext:
		return t.decodeContext(dst, body, answer)
	}
	return dst, errKind
}

// Pull appends to dst a client's body for a worker that is to fetch the beginning of its prompt from the cache of the worker at
// that host and port. Both are vLLMs with a p2p tier; id names the transfer.
func Pull(dst, body []byte, at string, id int64) ([]byte, error) {
	return pull(dst, body, "remote_kv_source", strconv.FormatInt(id, 16), at)
}

// pull appends a body with the place from which vLLM's p2p tier fetches blocks.
func pull(dst, body []byte, from, id, at string) ([]byte, error) {
	host, port, err := split(at)
	if err != nil {
		return dst, err
	}
	add := `"` + params + `":{"` + from + `":{"kv_request_id":"` + id + `","remote_host":"` + host + `","remote_port":` + port + `}}`
	return splice(dst, body, drops(transfer), add)
}

// requestID is the id of a transfer between two vLLMs, which is a text.
func (t *Transfer) requestID() string { return strconv.FormatInt(t.ID, 16) }

// meeting are the members by which both SGLang engines find each other.
func (t *Transfer) meeting() (string, error) {
	host, port, err := split(t.At)
	if err != nil {
		return "", err
	}
	return `"bootstrap_host":"` + host + `","bootstrap_port":` + port + `,"bootstrap_room":` + strconv.FormatInt(t.ID, 10), nil
}

// split returns the host and the port of an address of the fleet, which needs no escapes in JSON.
func split(at string) (host, port string, err error) {
	colon := strings.LastIndexByte(at, ':')
	if colon <= 0 {
		return "", "", fmt.Errorf("transfer address %q is not a host and a port", at)
	}
	return strings.Trim(at[:colon], "[]"), at[colon+1:], nil
}

// rankMember is a further member with a rank; empty for a worker with one rank.
func rankMember(name string, rank int) string {
	if rank < 0 {
		return ""
	}
	return `,"` + name + `":` + strconv.Itoa(rank)
}

// streams are the members of a client's request that a prefill request does not have, or has with other values.
var streams = union(transfer, map[string]bool{"stream": true, "stream_options": true})

// drops returns the choice of the members of a set.
func drops(set map[string]bool) func(string) bool { return func(name string) bool { return set[name] } }

// union returns the members of several sets.
func union(sets ...map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, set := range sets {
		for name := range set {
			all[name] = true
		}
	}
	return all
}

// MaxAnswer bounds the answer of a prefill worker, in bytes. It may repeat the token ids of a prompt.
const MaxAnswer = 2 << 20
