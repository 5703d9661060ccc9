// Command filter is a Wasm module for Envoy. It sets the header x-stator-affinity of requests for which no router has
// decided. Envoy hashes that header, so the turns of one conversation go to one worker.
//
// `make build-wasm` builds the module. Package affinity computes the keys; this package connects it with Envoy.
package main

import (
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/wasm/affinity"
)

// pieceBytes bounds how much of a body is copied into the module at a time. The memory of a module never shrinks.
const pieceBytes = 32 << 10

// main does nothing: Envoy calls the module's exports.
func main() {}

func init() { proxywasm.SetHttpContext(newRequest) }

// request is one HTTP request.
type request struct {
	types.DefaultHttpContext

	scanner affinity.Scanner
	scanned int  // bytes of the body
	done    bool // the header is set, or will not be
}

func newRequest(uint32) types.HttpContext { return &request{} }

// picked is the path of the pick in the dynamic metadata.
var picked = []string{"metadata", "filter_metadata", envoynames.NamespaceLB, envoynames.HeaderDestination}

// OnHttpRequestHeaders holds the headers until the beginning of the body is there, because they cannot be changed later.
// It lets requests pass for which a router has decided, and those without a body.
func (r *request) OnHttpRequestHeaders(_ int, endOfStream bool) types.Action {
	pick, err := proxywasm.GetProperty(picked)
	r.done = endOfStream || err == nil && len(pick) > 0
	if r.done {
		return types.ActionContinue
	}
	return types.ActionPause
}

// OnHttpRequestBody reads the bytes that have arrived. bodySize is the size of all that Envoy has buffered since the first pause.
func (r *request) OnHttpRequestBody(bodySize int, endOfStream bool) types.Action {
	if r.done {
		return types.ActionContinue
	}

	for r.scanned < bodySize && !r.scanner.Done() {
		piece, err := proxywasm.GetHttpRequestBody(r.scanned, min(pieceBytes, bodySize-r.scanned))
		if err != nil || len(piece) == 0 {
			break // the key comes from the bytes that were read
		}
		r.scanner.Add(piece)
		r.scanned += len(piece)
	}
	if !endOfStream && !r.scanner.Done() {
		return types.ActionPause
	}
	r.finish()
	return types.ActionContinue
}

// OnHttpRequestTrailers ends a body that is followed by trailers.
func (r *request) OnHttpRequestTrailers(int) types.Action {
	if !r.done {
		r.finish()
	}
	return types.ActionContinue
}

// finish sets the header, once: after that Envoy has chosen the worker.
func (r *request) finish() {
	r.done = true
	key, ok := r.scanner.Key()
	if !ok {
		return
	}
	if err := proxywasm.ReplaceHttpRequestHeader(envoynames.HeaderAffinity, key); err != nil {
		proxywasm.LogWarnf("set %s: %v", envoynames.HeaderAffinity, err)
	}
}
