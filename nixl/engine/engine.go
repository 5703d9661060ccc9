// Package engine carries out transfers with NIXL, for the loop of package serve.
//
// An Engine belongs to one goroutine.
package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/stator-project/stator/nixl"
	"github.com/stator-project/stator/nixl/serve"
	"github.com/stator-project/stator/nixl/wire"
)

// Engine implements serve.Engine.
type Engine struct {
	path   string
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
	file     *os.File // nil for a process
	region   []nixl.Descriptor
}

// New loads the library.
func New(path string) (*Engine, error) {
	lib, err := nixl.Open(path)
	if err != nil {
		return nil, err
	}
	return &Engine{path: path, lib: lib, backends: map[string]*nixl.Backend{}, peers: map[string]*peer{}}, nil
}

// Open maps the memory, creates the agent and its backends, and registers the memory.
func (e *Engine) Open(o *wire.Open, memory *os.File) (*wire.Endpoint, error) {
	defer func() { _ = memory.Close() }() // the mapping stays
	mapped, err := mapSealed(memory, o.Slots*o.Stride)
	if err != nil {
		return nil, &serve.CodeError{Code: wire.CodeInvalid, Err: err}
	}
	e.memory = mapped

	e.agent, err = e.lib.NewAgent(nixl.AgentConfig{
		Name: o.Name, ProgressDelay: time.Duration(o.ProgressMicros) * time.Microsecond, Telemetry: o.Telemetry,
	})
	if err != nil {
		return nil, err
	}
	for _, b := range o.Backends {
		e.backends[b.Plugin], err = e.agent.CreateBackend(b.Plugin, b.Params)
		if err != nil {
			return nil, err
		}
	}

	if err := e.agent.Register(nixl.DRAM, []nixl.Descriptor{mapped.At(0, o.Slots*o.Stride)}); err != nil {
		return nil, err
	}
	e.local, err = e.agent.Prepare("", nixl.DRAM, descriptors(mapped.At(0, 0), o.Slots, o.Stride, o.Layout.Bytes()))
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
		list[i] = nixl.Descriptor{Addr: first.Addr + uint64(i)*uint64(stride), Len: uint64(size), Device: first.Device}
	}
	return list
}

// endpoint describes the memory for peers. Without UCX there are no peers, and NIXL has no metadata.
func (e *Engine) endpoint() (*wire.Endpoint, error) {
	var metadata []byte
	var err error
	if e.backends["UCX"] != nil {
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

// backend returns a backend by its plugin.
func (e *Engine) backend(plugin, purpose string) (*nixl.Backend, error) {
	if b := e.backends[plugin]; b != nil {
		return b, nil
	}
	return nil, serve.Errorf(wire.CodeInvalid, "%s need the backend %s, which is not among those of open", purpose, plugin)
}

// AddPeer loads the metadata of a peer and prepares all of its slots. A peer that is there already stays as it is, because no other process
// ever has its name: an agent that gave up waiting for the reply adds it again.
func (e *Engine) AddPeer(endpoint *wire.Endpoint) error {
	if e.peers[endpoint.Agent] != nil {
		return nil
	}
	ucx, err := e.backend("UCX", "transfers with other processes")
	if err != nil {
		return err
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
	prepared, err := e.agent.Prepare(name, nixl.DRAM, list, ucx)
	if err != nil {
		_ = e.agent.Forget(name)
		return err
	}
	e.peers[name] = &peer{prepared: prepared, slots: endpoint.Slots}
	return nil
}

// AddFile registers a file whose slots are blocks without gaps.
func (e *Engine) AddFile(name string, file *os.File, slots int) error {
	if err := e.addFile(name, file, slots); err != nil {
		_ = file.Close()
		return err
	}
	return nil
}

func (e *Engine) addFile(name string, file *os.File, slots int) error {
	if e.peers[name] != nil {
		return serve.Errorf(wire.CodeInvalid, "file %s is there already", name)
	}
	posix, err := e.backend("POSIX", "files")
	if err != nil {
		return err
	}
	size := e.open.Layout.Bytes()
	region := []nixl.Descriptor{{Len: uint64(slots) * uint64(size), Device: uint64(file.Fd())}}
	if err := e.agent.Register(nixl.File, region, posix); err != nil {
		return err
	}

	list := descriptors(nixl.Descriptor{Device: uint64(file.Fd())}, slots, size, size)
	prepared, err := e.agent.Prepare(e.agent.Name(), nixl.File, list, posix)
	if err != nil {
		return errors.Join(err, e.agent.Deregister(nixl.File, region, posix))
	}
	e.peers[name] = &peer{prepared: prepared, slots: slots, file: file, region: region}
	return nil
}

// Remove removes a peer or a file.
func (e *Engine) Remove(name string) error {
	p := e.peers[name]
	if p == nil {
		return serve.Errorf(wire.CodeNoPeer, "no peer or file has the name %s", name)
	}
	delete(e.peers, name)
	err := p.prepared.Close()
	if p.file == nil {
		return errors.Join(err, e.agent.Forget(name))
	}
	return errors.Join(err, e.agent.Deregister(nixl.File, p.region, e.backends["POSIX"]), p.file.Close())
}

// Peers returns the number of peers and files.
func (e *Engine) Peers() int { return len(e.peers) }

// Job makes a request of a transfer.
func (e *Engine) Job(t *wire.Transfer) (serve.Job, error) {
	p := e.peers[t.Peer]
	if p == nil {
		return nil, serve.Errorf(wire.CodeNoPeer, "no peer or file has the name %s: add it first, also after a restart", t.Peer)
	}
	if err := wire.CheckIndices("remote", t.Remote, p.slots); err != nil {
		return nil, &serve.CodeError{Code: wire.CodeInvalid, Err: err}
	}

	op := nixl.Read
	if t.Write {
		op = nixl.Write
	}
	r, err := e.agent.MakeRequest(op, e.local, t.Local, p.prepared, t.Remote, t.Notification)
	if err != nil {
		return nil, err
	}
	return &job{Request: r, measured: e.open.Telemetry}, nil
}

// job is a request of NIXL.
type job struct {
	*nixl.Request
	measured bool
}

// Times asks only where telemetry is on, because NIXL else prints a line for each question.
func (j *job) Times() *wire.Telemetry {
	if !j.measured {
		return nil
	}
	t, err := j.Telemetry()
	if err != nil {
		return nil
	}
	return &wire.Telemetry{PostMicros: t.PostMicros, TransferMicros: t.TransferMicros, Bytes: t.Bytes}
}

// Notify sends a notification.
func (e *Engine) Notify(name string, data []byte) error {
	if e.peers[name] == nil {
		return serve.Errorf(wire.CodeNoPeer, "no peer has the name %s", name)
	}
	return e.agent.Notify(name, data)
}

// Notifications returns the notifications that have arrived. Only UCX has notifications.
func (e *Engine) Notifications() ([]serve.Notification, error) {
	if e.backends["UCX"] == nil {
		return nil, nil
	}
	list, err := e.agent.Notifications()
	var received []serve.Notification
	for _, n := range list {
		received = append(received, serve.Notification{Peer: n.Peer, Data: n.Data})
	}
	return received, err
}

// Plugins tries to load each plugin. A plugin whose file cannot be loaded has the linker's reason, such as a library that is missing.
func (e *Engine) Plugins() ([]wire.Plugin, error) {
	agent := e.agent
	if agent == nil {
		temporary, err := e.lib.NewAgent(nixl.AgentConfig{Name: "plugins"})
		if err != nil {
			return nil, err
		}
		defer func() { _ = temporary.Close() }()
		agent = temporary
	}
	names, err := agent.Plugins()
	if err != nil {
		return nil, err
	}

	slices.Sort(names)
	var list []wire.Plugin
	for _, name := range names {
		list = append(list, e.plugin(agent, name))
	}
	return list, nil
}

// plugin describes one plugin.
func (e *Engine) plugin(agent *nixl.Agent, name string) wire.Plugin {
	file := filepath.Join(filepath.Dir(e.path), "plugins", "libplugin_"+name+".so")
	if err := nixl.TryLoad(file); err != nil {
		return wire.Plugin{Name: name, Problem: err.Error()}
	}
	info, err := agent.Plugin(name)
	if err != nil {
		return wire.Plugin{Name: name, Problem: err.Error()}
	}
	p := wire.Plugin{Name: name, Params: info.Params}
	for _, m := range info.Memory {
		p.Memory = append(p.Memory, m.String())
	}
	return p
}
