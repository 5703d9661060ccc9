package direct

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/stator-project/stator/internal/kv/block"
)

// mostKeys bounds the keys of one read.
const mostKeys = 1024

// The operations of a request.
const (
	opRead  = "read"
	opDone  = "done"
	opAgent = "agent" // which agent runs
)

// request is a call of a client.
type request struct {
	Op string `json:"op"`
	// Has is the agent whose endpoint the client has; empty is none. Keys are the keys of the blocks, one after the other.
	Has  string `json:"has,omitempty"`
	Keys []byte `json:"keys,omitempty"`
	// Lease is one that is done.
	Lease uint64 `json:"lease,omitempty"`
}

// answer is the answer to a read. The answer to a lease that is done is empty, and the answer about the agent has Agent alone.
type answer struct {
	// Node is the process that runs the agent, and starts another one when it has ended.
	Node string `json:"node"`
	// Agent has the blocks, and Endpoint describes its memory if the client lacks it.
	Agent    string          `json:"agent"`
	Endpoint json.RawMessage `json:"endpoint,omitempty"`
	Lease    uint64          `json:"lease"`
	// Slots are the slots of the first keys, or -1 if the block is missing. Tags has the tag of each by [block.MAC], one after the other,
	// and Key is the key of these tags.
	Slots []int32 `json:"slots"`
	Key   []byte  `json:"key,omitempty"`
	Tags  []byte  `json:"tags,omitempty"`
}

// missing is the slot of a block that is not there.
const missing = -1

// newRead returns the request of blocks.
func newRead(has string, keys []block.Key) *request {
	r := &request{Op: opRead, Has: has}
	for _, k := range keys {
		r.Keys = append(r.Keys, k[:]...)
	}
	return r
}

// parseRequest reads a request of a client.
func parseRequest(message []byte) (r request, keys []block.Key, err error) {
	if err := json.Unmarshal(message, &r); err != nil {
		return r, nil, fmt.Errorf("the request is not JSON of the expected form: %w", err)
	}
	const size = len(block.Key{})
	switch {
	case r.Op == opDone || r.Op == opAgent:
		return r, nil, nil
	case r.Op != opRead:
		return r, nil, fmt.Errorf("the operation %q is unknown", r.Op)
	case len(r.Keys) == 0 || len(r.Keys)%size != 0 || len(r.Keys) > mostKeys*size:
		return r, nil, fmt.Errorf("the keys have %d bytes, and need 1 to %d times %d", len(r.Keys), mostKeys, size)
	}
	for b := r.Keys; len(b) > 0; b = b[size:] {
		keys = append(keys, block.Key(b[:size]))
	}
	return r, keys, nil
}

// errAnswer is the error of a peer whose answer is none.
var errAnswer = errors.New("the peer's answer is not one of this protocol")

// parseAnswer reads the answer to a read of so many keys.
func parseAnswer(message []byte, keys int) (a answer, err error) {
	if err := json.Unmarshal(message, &a); err != nil {
		return a, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if a.Agent == "" || len(a.Slots) > keys || len(a.Key) != block.MACKeyBytes || len(a.Tags) != len(a.Slots)*block.TagBytes {
		return a, fmt.Errorf("%w: %d slots, %d bytes of tags and a key of %d of the agent %q for %d keys", errAnswer, len(a.Slots),
			len(a.Tags), len(a.Key), a.Agent, keys)
	}
	for _, s := range a.Slots {
		if s < missing {
			return a, fmt.Errorf("%w: slot %d", errAnswer, s)
		}
	}
	return a, nil
}
