package nixl

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// MemoryType is a kind of memory in NIXL's numbering.
type MemoryType int32

// The kinds of memory. The Addr of a descriptor is an address in DRAM and VRAM, and an offset in files and objects.
const (
	DRAM MemoryType = iota
	VRAM
	Block
	Object
	File
)

var memoryNames = []string{"DRAM", "VRAM", "BLOCK", "OBJECT", "FILE"}

func (m MemoryType) String() string {
	if m < 0 || int(m) >= len(memoryNames) {
		return fmt.Sprintf("memory %d", int32(m))
	}
	return memoryNames[m]
}

// Descriptor is a piece of memory, of a file or of an object.
type Descriptor struct {
	// Addr is an address, or an offset in a file or object.
	Addr uint64
	// Len is in bytes.
	Len uint64
	// Device is the number of a GPU, the file descriptor of a file, or a number that is unique among objects. It is 0 in DRAM.
	Device uint64
	// Meta is the key of an object, or the modes and the path of a file; only registrations have it.
	Meta []byte
}

// AgentConfig is read by NewAgent.
type AgentConfig struct {
	// Name must differ from the name of every agent that a peer has seen, also of earlier processes of the same host.
	Name string
	// ProgressDelay is the pause of the progress thread between two polls, in µs resolution. Zero is no progress thread. A peer that
	// writes over TCP needs one here; 200 µs to 1 ms cost about 1 % of a core.
	ProgressDelay time.Duration
	// Telemetry has every transfer measured, for Request.Telemetry.
	Telemetry bool
}

// threadSyncStrict has NIXL lock an agent. The progress thread needs it.
const threadSyncStrict = 1

// Agent is one end of transfers.
type Agent struct {
	f        *functions
	handle   uintptr
	name     string
	backends []*Backend
	notified uintptr // list that Notifications fills, 0 until then
}

// Backend is a plugin that an agent uses.
type Backend struct {
	handle uintptr
	// Plugin is its name, such as UCX.
	Plugin string
}

// NewAgent creates an agent, which Close ends.
func (l *Library) NewAgent(cfg AgentConfig) (*Agent, error) {
	a := &Agent{f: &l.f, name: cfg.Name}
	c := agentConfig{
		progressThread: cfg.ProgressDelay > 0, progressDelay: uint64(cfg.ProgressDelay.Microseconds()),
		threadSync: threadSyncStrict, captureTelemetry: cfg.Telemetry,
	}
	return a, check("create_configured_agent", a.f.createAgent(cfg.Name, &c, &a.handle))
}

// Name returns the name that the agent was created with.
func (a *Agent) Name() string { return a.name }

// Close ends the agent and its backends. Requests and prepared lists must be closed before. A peer with a transfer under way may
// abort; to end such a transfer, end the process.
func (a *Agent) Close() error {
	if a.notified != 0 {
		a.f.destroyNotifications(a.notified)
	}
	err := check("destroy_agent", a.f.destroyAgent(a.handle))
	for _, b := range a.backends {
		a.f.destroyBackend(b.handle) // the C handle alone; the agent has ended the backend
	}
	return err
}

// Plugins returns the names of the plugins that are installed. Not all of them can be loaded everywhere.
func (a *Agent) Plugins() ([]string, error) {
	var list uintptr
	if err := check("get_available_plugins", a.f.availablePlugins(a.handle, &list)); err != nil {
		return nil, err
	}
	defer a.f.destroyStringList(list)

	var size uintptr
	if err := check("string_list_size", a.f.stringListSize(list, &size)); err != nil {
		return nil, err
	}
	var names []string
	for i := range size {
		var text *byte
		if err := check("string_list_get", a.f.stringListGet(list, i, &text)); err != nil {
			return nil, err
		}
		names = append(names, textAt(text))
	}
	return names, nil
}

// PluginInfo is a plugin's description of itself.
type PluginInfo struct {
	// Params are the default values of its parameters.
	Params map[string]string
	// Memory are the kinds of memory that it copies from and to.
	Memory []MemoryType
}

// Plugin loads a plugin and returns its parameters and kinds of memory.
func (a *Agent) Plugin(name string) (PluginInfo, error) {
	var mems, params uintptr
	if err := check("get_plugin_params "+name, a.f.pluginParams(a.handle, name, &mems, &params)); err != nil {
		return PluginInfo{}, err
	}
	defer a.f.destroyMemList(mems)
	defer a.f.destroyParams(params)

	values, err := a.readParams(params)
	if err != nil {
		return PluginInfo{}, err
	}
	info := PluginInfo{Params: values}
	var size uintptr
	if err := check("mem_list_size", a.f.memListSize(mems, &size)); err != nil {
		return info, err
	}
	for i := range size {
		var mem int32
		if err := check("mem_list_get", a.f.memListGet(mems, i, &mem)); err != nil {
			return info, err
		}
		info.Memory = append(info.Memory, MemoryType(mem))
	}
	return info, nil
}

func (a *Agent) readParams(params uintptr) (map[string]string, error) {
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
	info, err := a.Plugin(plugin)
	if err != nil {
		return nil, err
	}
	values := maps.Clone(info.Params)
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

	b := &Backend{Plugin: plugin}
	if err := check("create_backend "+plugin, a.f.createBackend(a.handle, plugin, params, &b.handle)); err != nil {
		return nil, err
	}
	a.backends = append(a.backends, b)
	return b, nil
}

// options is the optional arguments of a call.
func (a *Agent) options(backends []*Backend, notification []byte) (handle uintptr, destroy func(), err error) {
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

	if len(notification) > 0 {
		err = check("opt_args_set_notif_msg", a.f.setNotification(handle, notification, uintptr(len(notification))))
		if err == nil {
			err = check("opt_args_set_has_notif", a.f.setHasNotification(handle, true))
		}
	}
	if err != nil {
		destroy()
		return 0, nil, err
	}
	return handle, destroy, nil
}

// withRegions calls a function with a list of regions and the options for backends; none are all backends.
func (a *Agent) withRegions(mem MemoryType, regions []Descriptor, backends []*Backend, call func(list, options uintptr) error) error {
	var list uintptr
	if err := check("create_reg_dlist", a.f.createRegions(int32(mem), &list)); err != nil {
		return err
	}
	defer a.f.destroyRegions(list)
	for _, d := range regions {
		code := a.f.addRegion(list, d.Addr, d.Len, d.Device, d.Meta, uintptr(len(d.Meta)))
		if err := check("reg_dlist_add_desc", code); err != nil {
			return err
		}
	}

	options, destroy, err := a.options(backends, nil)
	if err != nil {
		return err
	}
	defer destroy()
	return call(list, options)
}

// Register makes memory, files or objects available to transfers of some backends; none named are all. Addresses in DRAM must be
// addresses in a [Mapping].
func (a *Agent) Register(mem MemoryType, regions []Descriptor, backends ...*Backend) error {
	return a.withRegions(mem, regions, backends, func(list, options uintptr) error {
		return check("register_mem "+mem.String(), a.f.registerMemory(a.handle, list, options))
	})
}

// Deregister undoes Register with the same arguments. It is no fence: transfers under way may still write.
func (a *Agent) Deregister(mem MemoryType, regions []Descriptor, backends ...*Backend) error {
	return a.withRegions(mem, regions, backends, func(list, options uintptr) error {
		return check("deregister_mem "+mem.String(), a.f.deregisterMemory(a.handle, list, options))
	})
}

// Query reports which files or objects exist.
func (a *Agent) Query(mem MemoryType, regions []Descriptor, backend *Backend) (exists []bool, err error) {
	var answers uintptr
	if err := check("create_query_resp_list", a.f.createAnswers(&answers)); err != nil {
		return nil, err
	}
	defer a.f.destroyAnswers(answers)

	err = a.withRegions(mem, regions, []*Backend{backend}, func(list, options uintptr) error {
		return check("query_mem "+mem.String(), a.f.queryMemory(a.handle, list, answers, options))
	})
	if err != nil {
		return nil, err
	}
	var size uintptr
	if err := check("query_resp_list_size", a.f.answers(answers, &size)); err != nil {
		return nil, err
	}
	for i := range size {
		var has bool
		if err := check("query_resp_list_has_value", a.f.hasAnswer(answers, i, &has)); err != nil {
			return nil, err
		}
		exists = append(exists, has)
	}
	return exists, nil
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

// Notify sends a notification without a transfer.
func (a *Agent) Notify(peer string, data []byte) error {
	return check("gen_notif", a.f.sendNotification(a.handle, peer, data, uintptr(len(data)), 0))
}

// Notification is a message of a peer, which arrives after the transfer that it was given to.
type Notification struct {
	Peer string
	Data []byte
}

// Notifications returns the notifications that have arrived since the last call. Without a progress thread it also makes progress with
// transfers.
func (a *Agent) Notifications() ([]Notification, error) {
	if a.notified == 0 {
		if err := check("create_notif_map", a.f.createNotifications(&a.notified)); err != nil {
			return nil, err
		}
	}
	if err := check("get_notifs", a.f.getNotifications(a.handle, a.notified, 0)); err != nil {
		return nil, err
	}

	var peers uintptr
	err := check("notif_map_size", a.f.notificationAgents(a.notified, &peers))
	if err != nil || peers == 0 {
		return nil, err
	}
	var all []Notification
	for i := range peers {
		list, err := a.notificationsOf(i)
		if err != nil {
			return all, err
		}
		all = append(all, list...)
	}
	return all, check("notif_map_clear", a.f.clearNotifications(a.notified))
}

// notificationsOf returns the notifications of one peer.
func (a *Agent) notificationsOf(peer uintptr) (list []Notification, err error) {
	var text *byte
	if err := check("notif_map_get_agent_at", a.f.notificationAgent(a.notified, peer, &text)); err != nil {
		return nil, err
	}
	name := textAt(text)
	var size uintptr
	if err := check("notif_map_get_notifs_size", a.f.notificationsOf(a.notified, name, &size)); err != nil {
		return nil, err
	}

	for i := range size {
		var data *byte
		var length uintptr
		if err := check("notif_map_get_notif", a.f.notification(a.notified, name, i, &data, &length)); err != nil {
			return nil, err
		}
		list = append(list, Notification{name, bytesAt(data, length)})
	}
	return list, nil
}
