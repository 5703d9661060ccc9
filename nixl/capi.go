package nixl

import "github.com/ebitengine/purego"

// functions is the part of the C API that this package uses, in the form that purego calls. Handles are uintptr. The header is
// src/bindings/rust/wrapper.h of NIXL; its functions return a status, which is an int32.
type functions struct {
	createAgent        func(name string, cfg *agentConfig, agent *uintptr) int32
	destroyAgent       func(agent uintptr) int32
	pluginParams       func(agent uintptr, name string, mems, params *uintptr) int32
	destroyMemList     func(list uintptr) int32
	createParams       func(params *uintptr) int32
	addParam           func(params uintptr, key, value string) int32
	destroyParams      func(params uintptr) int32
	paramsIterator     func(params uintptr, iter *uintptr) int32
	paramsNext         func(iter uintptr, key, value **byte, hasNext *bool) int32
	destroyIterator    func(iter uintptr) int32
	createBackend      func(agent uintptr, name string, params uintptr, backend *uintptr) int32
	destroyBackend     func(backend uintptr) int32
	createOptions      func(options *uintptr) int32
	destroyOptions     func(options uintptr) int32
	addBackend         func(options, backend uintptr) int32
	createRegions      func(mem int32, list *uintptr) int32
	addRegion          func(list uintptr, addr, size, device uint64, meta []byte, metaSize uintptr) int32
	destroyRegions     func(list uintptr) int32
	registerMemory     func(agent, list, options uintptr) int32
	localMetadata      func(agent uintptr, data **byte, size *uintptr) int32
	loadRemoteMetadata func(agent uintptr, data []byte, size uintptr, name **byte) int32
	invalidateRemote   func(agent uintptr, name string) int32
	createDescriptors  func(mem int32, list *uintptr) int32
	addDescriptor      func(list uintptr, addr, size, device uint64) int32
	destroyDescriptors func(list uintptr) int32
	prepare            func(agent uintptr, name string, list uintptr, prepared *uintptr, options uintptr) int32
	releasePrepared    func(agent, prepared uintptr) int32
	makeRequest        makeRequestFunc
	releaseRequest     func(agent, req uintptr) int32
	destroyRequest     func(req uintptr) int32

	// These two are called for each poll, by their addresses: a call costs 0.1 µs so, and 0.4 µs by a function of purego.
	post, status uintptr
	// free is the C library's free, for metadata and names that NIXL allocates.
	free func(p *byte)
}

type makeRequestFunc func(agent uintptr, op int32, local uintptr, localIndices []int32, locals uintptr,
	remote uintptr, remoteIndices []int32, remotes uintptr, req *uintptr, options uintptr) int32

// symbol is a C function and the Go function that calls it.
type symbol struct {
	name string
	call any // pointer to a function
}

// prefix begins the name of every function of the C API.
const prefix = "nixl_capi_"

// The functions that are called by address.
const (
	postSymbol   = prefix + "post_xfer_req"
	statusSymbol = prefix + "get_xfer_status"
)

// symbols lists the C functions without their prefix.
func (f *functions) symbols() []symbol {
	return []symbol{
		{"create_configured_agent", &f.createAgent}, {"destroy_agent", &f.destroyAgent},
		{"get_plugin_params", &f.pluginParams},
		{"destroy_mem_list", &f.destroyMemList},
		{"create_params", &f.createParams}, {"params_add", &f.addParam}, {"destroy_params", &f.destroyParams},
		{"params_create_iterator", &f.paramsIterator}, {"params_iterator_next", &f.paramsNext},
		{"params_destroy_iterator", &f.destroyIterator}, {"create_backend", &f.createBackend},
		{"destroy_backend", &f.destroyBackend}, {"create_opt_args", &f.createOptions}, {"destroy_opt_args", &f.destroyOptions},
		{"opt_args_add_backend", &f.addBackend},
		{"create_reg_dlist", &f.createRegions},
		{"reg_dlist_add_desc", &f.addRegion}, {"destroy_reg_dlist", &f.destroyRegions},
		{"register_mem", &f.registerMemory},
		{"get_local_md", &f.localMetadata}, {"load_remote_md", &f.loadRemoteMetadata},
		{"invalidate_remote_md", &f.invalidateRemote}, {"create_xfer_dlist", &f.createDescriptors},
		{"xfer_dlist_add_desc", &f.addDescriptor}, {"destroy_xfer_dlist", &f.destroyDescriptors},
		{"prep_xfer_dlist", &f.prepare}, {"release_xfer_dlist_handle", &f.releasePrepared},
		{"make_xfer_req", &f.makeRequest},
		{"release_xfer_req", &f.releaseRequest}, {"destroy_xfer_req", &f.destroyRequest},
	}
}

// bind looks all functions up, and returns the names of the functions that the library lacks.
func (f *functions) bind(lib uintptr) (missing []string) {
	for _, s := range f.symbols() {
		address, err := purego.Dlsym(lib, prefix+s.name)
		if err != nil {
			missing = append(missing, prefix+s.name)
			continue
		}
		purego.RegisterFunc(s.call, address)
	}

	for name, address := range map[string]*uintptr{postSymbol: &f.post, statusSymbol: &f.status} {
		found, err := purego.Dlsym(lib, name)
		if err != nil {
			missing = append(missing, name)
		}
		*address = found
	}

	free, err := purego.Dlsym(purego.RTLD_DEFAULT, "free")
	if err != nil {
		return append(missing, "free")
	}
	purego.RegisterFunc(&f.free, free)
	return missing
}

// agentConfig has the memory layout of nixl_capi_agent_config_t.
type agentConfig struct {
	progressThread bool
	_              bool  // whether there is a thread that listens for metadata
	_              int32 // its port
	threadSync     int32
	_              uint32 // number of workers, which NIXL ignores: the parameter num_workers of UCX counts
	progressDelay  uint64 // µs
	_              uint64 // pause of the listening thread in µs
	_              bool   // whether transfers are measured
}
