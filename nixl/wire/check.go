package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/stator-project/stator/internal/kv/block"
)

// Endpoint describes the memory of an agent for its peers. Agents exchange it over a channel that authenticates them, because who has
// an endpoint can read and write the memory.
type Endpoint struct {
	// Version is EndpointVersion.
	Version int `json:"version"`
	// Agent is the name, which no other process ever has.
	Agent  string       `json:"agent"`
	Layout block.Layout `json:"layout"`
	Slots  int          `json:"slots"`
	Stride int          `json:"stride"`
	// Base is the address of the first slot in the agent's process.
	Base uint64 `json:"base"`
	// Metadata is the metadata by which NIXL reaches the memory.
	Metadata []byte `json:"metadata"`
}

// EndpointVersion is the version of the description of an endpoint.
const EndpointVersion = 1

// maxStride bounds the distance of two slots: the bound of a block's bytes, and a page.
const maxStride = 1<<30 + 1<<12

// ParseEndpoint reads the endpoint of a peer. An error names the field that is wrong.
func ParseEndpoint(data []byte) (*Endpoint, error) {
	if len(data) > MaxFrame {
		return nil, fmt.Errorf("endpoint has %d bytes, more than %d", len(data), MaxFrame)
	}
	e := &Endpoint{}
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("endpoint is not JSON of the expected form: %w", err)
	}
	return e, e.Validate()
}

// Validate returns an error that names the field that is wrong.
func (e *Endpoint) Validate() error {
	if e.Version != EndpointVersion {
		return fmt.Errorf("endpoint has version %d, and this program %d: run the same version on both sides", e.Version, EndpointVersion)
	}
	if err := checkName(e.Agent); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if err := checkSlots(&e.Layout, e.Slots, e.Stride); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if e.Base == 0 || e.Base > math.MaxInt64-uint64(e.Slots)*uint64(e.Stride) {
		return fmt.Errorf("endpoint: base %#x is no address of the memory", e.Base)
	}
	if len(e.Metadata) == 0 || len(e.Metadata) > MaxMetadata {
		return fmt.Errorf("endpoint: metadata has %d bytes, and must have 1 to %d", len(e.Metadata), MaxMetadata)
	}
	return nil
}

func checkName(name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("a name has %d bytes, and must have 1 to %d", len(name), MaxName)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("name %q has characters other than visible ASCII", name)
		}
	}
	return nil
}

// checkSlots checks the division of a memory.
func checkSlots(layout *block.Layout, slots, stride int) error {
	if err := layout.Validate(); err != nil {
		return fmt.Errorf("layout: %w", err)
	}
	if slots < 1 || slots > MaxSlots {
		return fmt.Errorf("slots is %d, and must be from 1 to %d", slots, MaxSlots)
	}
	if stride < layout.Bytes() || stride > maxStride {
		return fmt.Errorf("stride is %d bytes, and must be from %d (a block of the layout) to %d", stride, layout.Bytes(), maxStride)
	}
	return nil
}

// Validate returns an error that names the field that is wrong.
func (o *Open) Validate() error {
	if err := checkName(o.Name); err != nil {
		return err
	}
	if err := checkSlots(&o.Layout, o.Slots, o.Stride); err != nil {
		return err
	}
	if len(o.Backends) == 0 || len(o.Backends) > MaxBackends {
		return fmt.Errorf("%d backends, and there must be 1 to %d, such as UCX", len(o.Backends), MaxBackends)
	}
	for _, b := range o.Backends {
		if err := checkName(b.Plugin); err != nil {
			return fmt.Errorf("backend: %w", err)
		}
	}
	return nil
}

// Validate checks a transfer against the local slots; the slots of the peer are checked once the peer is known.
func (t *Transfer) Validate(localSlots int) error {
	if err := checkName(t.Peer); err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if len(t.Local) == 0 || len(t.Local) > MaxBatch || len(t.Local) != len(t.Remote) {
		return fmt.Errorf("%d local and %d remote slots: both need the same number, 1 to %d", len(t.Local), len(t.Remote), MaxBatch)
	}
	if t.TimeoutMicros <= 0 {
		return errors.New("a transfer needs a timeout, because NIXL has none")
	}
	return CheckIndices("local", t.Local, localSlots)
}

// CheckIndices returns an error if a slot is outside of its memory.
func CheckIndices(side string, slots []int32, count int) error {
	for _, s := range slots {
		if s < 0 || int(s) >= count {
			return fmt.Errorf("%s slot %d does not exist: there are %d", side, s, count)
		}
	}
	return nil
}

// Validate checks the fields that the operation needs.
func (r *Request) Validate() error {
	switch r.Op {
	case OpOpen:
		if r.Open == nil {
			return errors.New("open lacks its fields")
		}
		return r.Open.Validate()
	case OpAddPeer:
		if r.Peer == nil {
			return errors.New("addPeer lacks the endpoint")
		}
		return r.Peer.Validate()
	case OpRemovePeer:
		return checkName(r.Name)
	case OpTransfer:
		if r.Transfer == nil {
			return errors.New("transfer lacks its fields")
		}
		return r.Transfer.Validate(MaxSlots)
	case OpCancel:
		return nil
	}
	return fmt.Errorf("operation %q is unknown", r.Op)
}
