package nixl

import (
	"maps"
	"slices"
	"time"
)

// Descriptor is a piece of the host's memory: its address, and its length in bytes.
type Descriptor struct{ Addr, Len uint64 }

// dram is the host's memory in NIXL's numbering of kinds of memory.
const dram = 0

// AgentConfig is read by NewAgent.
type AgentConfig struct {
	// Name must differ from the name of every agent that a peer has seen, also of earlier processes of the same host.
	Name string
	// ProgressDelay is the pause of the progress thread between two polls, in µs resolution. Zero is no progress thread. A peer that
	// writes over TCP needs one here; 200 µs to 1 ms cost about 1 % of a core.
	ProgressDelay time.Duration
}

// threadSyncStrict has NIXL lock an agent. The progress thread needs it.
const threadSyncStrict = 1

// Agent is one end of transfers.
type Agent struct {
	f        *functions
	handle   uintptr
	name     string
	backends []*Backend
}

// Backend is a plugin that an agent uses.
type Backend struct{ handle uintptr }

// NewAgent creates an agent, which Close ends.
func (l *Library) NewAgent(cfg AgentConfig) (*Agent, error) {
	a := &Agent{f: &l.f, name: cfg.Name}
	c := agentConfig{
		progressThread: cfg.ProgressDelay > 0, progressDelay: uint64(cfg.ProgressDelay.Microseconds()),
		threadSync: threadSyncStrict,
	}
	return a, check("create_configured_agent", a.f.createAgent(cfg.Name, &c, &a.handle))
}

// Name returns the name that the agent was created with.
func (a *Agent) Name() string { return a.name }

// Close ends the agent and its backends. Requests and prepared lists must be closed before. A peer with a transfer under way may
// abort; to end such a transfer, end the process.
func (a *Agent) Close() error {
	err := check("destroy_agent", a.f.destroyAgent(a.handle))
	for _, b := range a.backends {
		a.f.destroyBackend(b.handle) // the C handle alone; the agent has ended the backend
	}
	return err
}

// defaults loads a plugin and returns the default values of its parameters.
func (a *Agent) defaults(plugin string) (map[string]string, error) {
	var mems, params uintptr
	if err := check("get_plugin_params "+plugin, a.f.pluginParams(a.handle, plugin, &mems, &params)); err != nil {
		return nil, err
	}
	defer a.f.destroyMemList(mems)
	defer a.f.destroyParams(params)

	var iter uintptr
	if err := check("params_create_iterator", a.f.paramsIterator(params, &iter)); err != nil {
		return nil, err
	}
	defer a.f.destroyIterator(iter)
	values := map[string]string{}
	for {
		var key, value *byte
		var hasNext bool
		code := a.f.paramsNext(iter, &key, &value, &hasNext)
		if err := check("params_iterator_next", code); err != nil {
			return nil, err
		}
		if key != nil {
			values[textAt(key)] = textAt(value)
		}
		if !hasNext {
			return values, nil
		}
	}
}

// CreateBackend has the agent use a plugin. Parameters that are not given have the plugin's defaults.
func (a *Agent) CreateBackend(plugin string, given map[string]string) (*Backend, error) {
	values, err := a.defaults(plugin)
	if err != nil {
		return nil, err
	}
	maps.Copy(values, given)

	var params uintptr
	if err := check("create_params", a.f.createParams(&params)); err != nil {
		return nil, err
	}
	defer a.f.destroyParams(params)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := check("params_add "+key, a.f.addParam(params, key, values[key])); err != nil {
			return nil, err
		}
	}

	b := &Backend{}
	if err := check("create_backend "+plugin, a.f.createBackend(a.handle, plugin, params, &b.handle)); err != nil {
		return nil, err
	}
	a.backends = append(a.backends, b)
	return b, nil
}

// options is the optional arguments of a call.
func (a *Agent) options(backends []*Backend) (handle uintptr, destroy func(), err error) {
	if err := check("create_opt_args", a.f.createOptions(&handle)); err != nil {
		return 0, nil, err
	}
	destroy = func() { a.f.destroyOptions(handle) }
	for _, b := range backends {
		if err := check("opt_args_add_backend", a.f.addBackend(handle, b.handle)); err != nil {
			destroy()
			return 0, nil, err
		}
	}

	return handle, destroy, nil
}

// Register makes memory available to transfers of all backends. Its address must be one in a [Mapping].
func (a *Agent) Register(region Descriptor) error {
	var list uintptr
	if err := check("create_reg_dlist", a.f.createRegions(dram, &list)); err != nil {
		return err
	}
	defer a.f.destroyRegions(list)
	if err := check("reg_dlist_add_desc", a.f.addRegion(list, region.Addr, region.Len, 0, nil, 0)); err != nil {
		return err
	}
	options, destroy, err := a.options(nil)
	if err != nil {
		return err
	}
	defer destroy()
	return check("register_mem", a.f.registerMemory(a.handle, list, options))
}

// LocalMetadata returns what peers need to reach the registered memory, about 350 bytes. It is not authenticated.
func (a *Agent) LocalMetadata() ([]byte, error) {
	var data *byte
	var size uintptr
	if err := check("get_local_md", a.f.localMetadata(a.handle, &data, &size)); err != nil {
		return nil, err
	}
	defer a.f.free(data)
	return bytesAt(data, size), nil
}

// LoadRemote adds a peer by its metadata and returns its name. The metadata of another process under the name of a known peer is
// refused with ErrBackend.
func (a *Agent) LoadRemote(metadata []byte) (name string, err error) {
	var text *byte
	if err := check("load_remote_md", a.f.loadRemoteMetadata(a.handle, metadata, uintptr(len(metadata)), &text)); err != nil {
		return "", err
	}
	defer a.f.free(text)
	return textAt(text), nil
}

// Forget removes a peer. If the peer lives on, each round of LoadRemote and Forget leaks one or two sockets on both sides.
func (a *Agent) Forget(name string) error {
	return check("invalidate_remote_md", a.f.invalidateRemote(a.handle, name))
}
