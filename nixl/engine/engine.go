// Package engine carries out transfers with NIXL, for the loop of package serve.
//
// An Engine belongs to one goroutine.
package engine

import (
	"errors"
	"os"
	"time"

	"github.com/stator-project/stator/nixl"
	"github.com/stator-project/stator/nixl/serve"
	"github.com/stator-project/stator/nixl/wire"
)

// Engine implements serve.Engine.
type Engine struct {
	lib    *nixl.Library
	open   *wire.Open // nil before it
	memory *nixl.Mapping

	agent    *nixl.Agent
	backends map[string]*nixl.Backend // by plugin
	local    *nixl.Prepared
	peers    map[string]*peer // by name
}

// peer is the other side of transfers.
type peer struct {
	prepared *nixl.Prepared
	slots    int
}

// progressDelay is the pause of NIXL's progress thread: a side that only waits for its peers needs the thread with TCP. 1 ms costs about
// 1 % of a core.
const progressDelay = 500 * time.Microsecond

// New loads the library.
func New(path string) (*Engine, error) {
	lib, err := nixl.Open(path)
	if err != nil {
		return nil, err
	}
	return &Engine{lib: lib, backends: map[string]*nixl.Backend{}, peers: map[string]*peer{}}, nil
}

// Open maps the memory, creates the agent and its backends, and registers the memory.
func (e *Engine) Open(o *wire.Open, memory *os.File) (*wire.Endpoint, error) {
	defer func() { _ = memory.Close() }() // the mapping stays
	mapped, err := mapSealed(memory, o.Slots*o.Stride)
	if err != nil {
		return nil, &serve.CodeError{Code: wire.CodeInvalid, Err: err}
	}
	e.memory = mapped

	e.agent, err = e.lib.NewAgent(nixl.AgentConfig{Name: o.Name, ProgressDelay: progressDelay})
	if err != nil {
		return nil, err
	}
	for _, b := range o.Backends {
		e.backends[b.Plugin], err = e.agent.CreateBackend(b.Plugin, b.Params)
		if err != nil {
			return nil, err
		}
	}

	if err := e.agent.Register(mapped.At(0, o.Slots*o.Stride)); err != nil {
		return nil, err
	}
	e.local, err = e.agent.Prepare("", descriptors(mapped.At(0, 0), o.Slots, o.Stride, o.Layout.Bytes()))
	if err != nil {
		return nil, err
	}
	e.open = o
	return e.endpoint()
}

// descriptors describes slots that begin at first.
func descriptors(first nixl.Descriptor, slots, stride, size int) []nixl.Descriptor {
	list := make([]nixl.Descriptor, slots)
	for i := range list {
		list[i] = nixl.Descriptor{Addr: first.Addr + uint64(i)*uint64(stride), Len: uint64(size)}
	}
	return list
}

// ucx is the plugin that reaches other processes.
const ucx = "UCX"

// endpoint describes the memory for peers. Without UCX there are no peers, and NIXL has no metadata.
func (e *Engine) endpoint() (*wire.Endpoint, error) {
	var metadata []byte
	var err error
	if e.backends[ucx] != nil {
		metadata, err = e.agent.LocalMetadata()
	}
	if err != nil {
		return nil, err
	}
	return &wire.Endpoint{
		Version: wire.EndpointVersion, Agent: e.open.Name, Layout: e.open.Layout, Slots: e.open.Slots, Stride: e.open.Stride,
		Base: e.memory.At(0, 0).Addr, Metadata: metadata,
	}, nil
}

// AddPeer loads the metadata of a peer and prepares all of its slots. A peer that is there already stays as it is, because no other process
// ever has its name: an agent that gave up waiting for the reply adds it again.
func (e *Engine) AddPeer(endpoint *wire.Endpoint) error {
	if e.peers[endpoint.Agent] != nil {
		return nil
	}
	backend := e.backends[ucx]
	if backend == nil {
		return serve.Errorf(wire.CodeInvalid, "peers need the backend %s, which is not among those of open", ucx)
	}
	name, err := e.agent.LoadRemote(endpoint.Metadata)
	if err != nil {
		return err
	}
	if name != endpoint.Agent {
		_ = e.agent.Forget(name)
		return serve.Errorf(wire.CodeInvalid, "the metadata of peer %s is that of %q", endpoint.Agent, name)
	}

	first := nixl.Descriptor{Addr: endpoint.Base}
	list := descriptors(first, endpoint.Slots, endpoint.Stride, endpoint.Layout.Bytes())
	prepared, err := e.agent.Prepare(name, list, backend)
	if err != nil {
		_ = e.agent.Forget(name)
		return err
	}
	e.peers[name] = &peer{prepared: prepared, slots: endpoint.Slots}
	return nil
}

// Remove removes a peer.
func (e *Engine) Remove(name string) error {
	p := e.peers[name]
	if p == nil {
		return serve.Errorf(wire.CodeNoPeer, "no peer has the name %s", name)
	}
	delete(e.peers, name)
	return errors.Join(p.prepared.Close(), e.agent.Forget(name))
}

// Job makes a request of a transfer.
func (e *Engine) Job(t *wire.Transfer) (serve.Job, error) {
	p := e.peers[t.Peer]
	if p == nil {
		return nil, serve.Errorf(wire.CodeNoPeer, "no peer has the name %s: add it first, also after a restart", t.Peer)
	}
	if err := wire.CheckIndices("remote", t.Remote, p.slots); err != nil {
		return nil, &serve.CodeError{Code: wire.CodeInvalid, Err: err}
	}

	op := nixl.Read
	if t.Write {
		op = nixl.Write
	}
	return e.agent.MakeRequest(op, e.local, t.Local, p.prepared, t.Remote)
}
