package xds

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stator-project/stator/internal/envoynames"
)

// affinityName is the name of the Wasm filter, and of its module's virtual machines.
const affinityName = "stator.affinity"

// wasmCalls lists the functions that Envoy may call in the module, and the module in Envoy. Envoy calls nothing else,
// so the chunks of responses do not pass through the module.
var wasmCalls = []string{
	"proxy_on_context_create", "proxy_on_vm_start", "proxy_on_configure", "proxy_on_delete",
	"proxy_on_request_headers", "proxy_on_request_body", "proxy_on_request_trailers",
	"proxy_get_property", "proxy_get_buffer_bytes", "proxy_replace_header_map_value", "proxy_set_effective_context", "proxy_log",

	// The functions that the runtime of Go calls. It gets no files, no variables and no arguments by them.
	"_initialize", "args_get", "args_sizes_get", "environ_get", "environ_sizes_get", "clock_time_get", "random_get",
	"fd_write", "fd_close", "fd_fdstat_get", "fd_fdstat_set_flags", "fd_prestat_get", "fd_prestat_dir_name",
	"poll_oneoff", "sched_yield", "proc_exit",
}

// buildAffinity builds the filter that sets the affinity header of requests without a decision.
func buildAffinity(s Settings, p *packer) *hcmv3.HttpFilter {
	calls := map[string]*wasmv3.SanitizationConfig{}
	for _, name := range wasmCalls {
		calls[name] = &wasmv3.SanitizationConfig{}
	}

	return filter(affinityName, p.pack(&wasmfilterv3.Wasm{Config: &wasmv3.PluginConfig{
		Name: affinityName,
		// Both listeners have the same virtual machines.
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
			VmId:    affinityName,
			Runtime: "envoy.wasm.runtime.v8",
			Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
				Specifier: &corev3.DataSource_Filename{Filename: s.AffinityModule},
			}}},
			CapabilityRestrictionConfig: &wasmv3.CapabilityRestrictionConfig{AllowedCapabilities: calls},
		}},
		// A module that has failed costs cache hits, and no request.
		FailurePolicy: wasmv3.FailurePolicy_FAIL_OPEN,
		// The filter holds the headers until it has read the body. Without this setting the request would hang.
		AllowOnHeadersStopIteration: wrapperspb.Bool(true),
	}}))
}

// buildHashPolicy lists the headers by which Envoy chooses a worker if there is no decision: requests with an equal
// header go to the same one. The first header that a request has counts. A client that names its session knows it better than the
// filter does. Workers get the header of the filter, because Envoy removes headers before it hashes them.
func buildHashPolicy(s Settings) []*routev3.RouteAction_HashPolicy {
	names := slices.Clone(s.SessionHeaders)
	if s.AffinityModule != "" {
		names = append(names, envoynames.HeaderAffinity)
	}

	list := make([]*routev3.RouteAction_HashPolicy, len(names))
	for i, name := range names {
		list[i] = &routev3.RouteAction_HashPolicy{
			Terminal:        i+1 < len(names),
			PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: name}},
		}
	}
	return list
}
