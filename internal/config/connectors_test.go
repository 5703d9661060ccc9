package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
)

const (
	nixl = `{kv_connector: NixlConnector, kv_role: kv_both}`
	p2p  = `{kv_connector: OffloadingConnector, kv_role: kv_both, kv_connector_extra_config: {
		spec_name: TieringOffloadingSpec, secondary_tiers: [{type: fs, root_dir: /kv}, {type: p2p}]}}`
)

// TestConnectorsOfRoles: a vLLM that prefills or decodes has a connector whose handshake routers have.
func TestConnectorsOfRoles(t *testing.T) {
	for _, c := range []struct{ prefill, decode, want string }{
		{nixl, nixl, ""},
		{p2p, p2p, ""},
		{`'{"kv_connector": "NixlPullConnector"}'`, nixl, ""},
		{`{kv_connector: MultiConnector, kv_connector_extra_config: {connectors: [` + p2p + `, ` + nixl + `]}}`, nixl, ""},
		{nixl, p2p, "models[0]: has workers with different transfers of KV caches, nixl and p2p: those of a model must have the same"},
		{nixl, `{}`, "models[0].launch[1].args.kv-transfer-config: must name the connector with role decode"},
		{nixl, `[]`, "models[0].launch[1].args.kv-transfer-config: cannot be used: args.kv_transfer_config is not vLLM's form"},
		{
			nixl, `{kv_connector: LMCacheConnectorV1, kv_role: kv_both}`,
			"launch[1].args.kv-transfer-config: names LMCacheConnectorV1, whose handshake routers do not have: with role decode use " +
				"NixlConnector, or OffloadingConnector with spec_name TieringOffloadingSpec and a tier of type p2p",
		},
		{nixl, `{kv_connector: MooncakeConnector}`, "names MooncakeConnector, whose handshake"},
		{nixl, `{kv_connector: NixlPushConnector}`, "names NixlPushConnector, whose handshake"},
		{nixl, `{kv_connector: OffloadingConnector, kv_connector_extra_config: {secondary_tiers: [{type: fs}]}}`, "names OffloadingConnector"},
		{p2p, strings.Replace(p2p, "spec_name: TieringOffloadingSpec,", "", 1), "names OffloadingConnector, whose handshake"},
		{p2p, strings.Replace(p2p, "type: p2p", "type: p2p, port: 5710", 1), "gives 2 engines one port: remove port from the tier"},
		{nixl, strings.Repeat(`{kv_connector: MultiConnector, kv_connector_extra_config: {connectors: [`, 9) + nixl + strings.Repeat("]}}", 9), "in more than 4 others"},
	} {
		_, err := config.Parse(fmt.Appendf(nil, `{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: m, path: p, launch: [
			{engine: vllm, role: prefill, args: {kv-transfer-config: %s}},
			{engine: vllm, role: decode, count: 2, args: {kv_transfer_config: %s}}]}]}`, c.prefill, c.decode))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s and %s: %v, want %q", c.prefill, c.decode, err, c.want)
		}
	}
}

// TestFailsClosed: requests need a decision if clients have tenants, or if an engine has a role or a KV connector.
func TestFailsClosed(t *testing.T) {
	for text, want := range map[string]bool{
		`models: [{name: m, path: p, launch: [{engine: vllm}]}]`:                                                           false,
		`models: [{name: m, path: p, launch: [{engine: vllm}], kv: {hostBytes: 1000000000}}]`:                              true,
		`models: [{name: m, path: p, launch: [{engine: sim}], kv: {hostBytes: 1000000000}}]`:                               false,
		`models: [{name: m, path: p, launch: [{engine: vllm, args: {kv-transfer-config: ` + nixl + `}}]}]`:                 true,
		`models: [{name: m, path: p, launch: [{engine: sim, role: prefill}, {engine: sim, role: decode}]}]`:                true,
		`models: [{name: m, workers: [{name: w, address: "10.0.0.1:80"}]}]`:                                                false,
		`models: [{name: m, workers: [{name: w, address: "10.0.0.1:80", transfer: p2p, transferAddress: "10.0.0.1:90"}]}]`: true,
		`gateway: {tenantHeader: x-tenant}, models: [{name: m, workers: [{name: w, address: "10.0.0.1:80"}]}]`:             true,
	} {
		c, err := config.Parse([]byte("{apiVersion: stator.dev/v1alpha1, kind: Stator, " + text + "}"))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if c.FailsClosed() != want {
			t.Errorf("%s: %v", text, !want)
		}
	}

	_, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, gateway: {tenantHeader: x-tenant, affinityFilter: wasm},
		models: [{name: m, workers: [{name: w, address: "10.0.0.1:80"}]}]}`))
	if err == nil || !strings.Contains(err.Error(), "gateway.affinityFilter: has no effect with transfers") {
		t.Errorf("the filter with tenants: %v", err)
	}
}

// TestPassPathsOfTenants: if clients have tenants, no path passes by default on which engines ignore a cache_salt.
func TestPassPathsOfTenants(t *testing.T) {
	for gateway, want := range map[string]bool{
		"{}":                       true,
		"{tenantHeader: x-tenant}": false,
		"{tenantHeader: x-tenant, passPaths: [/v1/audio/speech]}": true,
		"{passPaths: []}": false,
	} {
		c, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator, gateway: ` + gateway + `,
			models: [{name: m, workers: [{name: w, address: "10.0.0.1:80"}]}]}`))
		if err != nil || slices.Contains(c.Gateway.PassPaths, "/v1/audio/speech") != want {
			t.Errorf("%s: %v, %v", gateway, c.Gateway.PassPaths, err)
		}
	}
}

// TestPortsOfConnectors: a port in the environment belongs to one engine.
func TestPortsOfConnectors(t *testing.T) {
	for count, want := range map[int]string{1: "", 2: "launch[0].env.VLLM_NIXL_SIDE_CHANNEL_PORT: gives 2 engines one port"} {
		_, err := config.Parse(fmt.Appendf(nil, `{apiVersion: stator.dev/v1alpha1, kind: Stator, models: [{name: m, path: p, launch: [
			{engine: vllm, count: %d, env: {VLLM_NIXL_SIDE_CHANNEL_PORT: "5600"}}]}]}`, count))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", count, err)
		}
	}
}

// TestTransferOfConnectors: an aggregated worker takes part in transfers only by a tier of type p2p.
func TestTransferOfConnectors(t *testing.T) {
	for _, c := range []struct {
		args string
		role fleet.Role
		want fleet.Transfer
	}{
		{`{"kv_connector": "NixlConnector"}`, fleet.Prefill, fleet.TransferNixl},
		{`{"kv_connector": "NixlConnector"}`, fleet.Aggregated, fleet.NoTransfer},
		{`{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "p2p"}]}}`, fleet.Aggregated, fleet.TransferP2P},
		{`{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "p2p"}]}}`, fleet.Decode, fleet.TransferP2P},
		{`{"kv_connector": "OtherConnector", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "p2p"}]}}`, fleet.Decode, fleet.NoTransfer},
	} {
		read, err := config.ReadConnectors(map[string]string{"--kv_transfer_config": c.args})
		if got := read.Transfer(c.role); err != nil || got != c.want {
			t.Errorf("%s, %v: %v, %v; want %v", c.args, c.role, got, err, c.want)
		}
	}
	if _, err := config.ReadConnectors(map[string]any{"kv-transfer-config": func() {}}); err == nil {
		t.Error("a value that is no JSON is accepted")
	}
}
