package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
)

const (
	nixlConfig = `{"kv_connector":"NixlConnector"}`
	p2pConfig  = `{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","secondary_tiers":[{"type":"p2p"}]}}`
)

// TestReserveRun: ports for ranks lie one after the other, and pass over one that is in use.
func TestReserveRun(t *testing.T) {
	ports := freeRange(t, 8)
	ports.next = 0
	busy, err := take("127.0.0.1", ports.first+3)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.release()

	run, err := ports.reserveRun("127.0.0.1", 4)
	if err != nil || len(run) != 4 || run[0].port != ports.first+4 {
		t.Fatalf("%+v, %v", run, err)
	}
	for i, r := range run {
		if r.port != run[0].port+i {
			t.Errorf("port %d of the run is %d", i, r.port)
		}
	}
	if _, err := ports.reserveRun("127.0.0.1", 4); err == nil || !strings.Contains(err.Error(), "another engine has reserved it") {
		t.Errorf("a second run: %v", err)
	}
	if _, err := ports.reserveRun("127.0.0.1", 9); err == nil || !strings.Contains(err.Error(), "the range has 8 ports, and the engine needs 9") {
		t.Errorf("a run longer than the range: %v", err)
	}
	for _, r := range run {
		r.release()
	}
	if again, err := ports.reserveRun("127.0.0.1", 4); err != nil {
		t.Error(err)
	} else {
		(&Command{port: busy, transfer: again}).releasePorts()
	}
}

// TestTransferPortsAreReserved: the ports for transfers belong to the engine until it is released, also when another agent has
// built its command again.
func TestTransferPortsAreReserved(t *testing.T) {
	at := testSite(t)
	at.Ports = freeRange(t, 3)
	at.Ports.next = 0
	l := Launch{
		Kind: "vllm", Name: "a", Model: "m", BlockSize: 16, Role: fleet.Prefill,
		Args: map[string]string{"kv-transfer-config": nixlConfig, "data-parallel-size": "2"},
	}
	c, err := l.Build(at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := at.Ports.reserve("127.0.0.1"); err == nil {
		t.Error("a port of the engine is given to another one")
	}
	c.Leave()

	again, err := l.Rebuild(at, c.Port(), c.TransferPort())
	if err != nil || again.Fingerprint() != c.Fingerprint() {
		t.Fatalf("%+v, %v", again, err)
	}
	if _, err := at.Ports.reserve("127.0.0.1"); err == nil {
		t.Error("a port of the adopted engine is given to another one")
	}
	again.Release()
	run, err := at.Ports.reserveRun("127.0.0.1", 3)
	if err != nil {
		t.Fatal(err)
	}
	(&Command{port: &reservation{}, transfer: run}).releasePorts()
}

// TestBuildWithoutRun: without ports for its transfers an engine is not started, and keeps no port.
func TestBuildWithoutRun(t *testing.T) {
	at := testSite(t)
	at.Ports = freeRange(t, 2)
	l := Launch{
		Kind: "vllm", Name: "a", Model: "m", BlockSize: 16, Role: fleet.Prefill,
		Args: map[string]string{"kv-transfer-config": nixlConfig, "data-parallel-size": "2"},
	}
	if _, err := l.Build(at); err == nil || !strings.HasPrefix(err.Error(), "reserve ports for a: no 2 ports one after the other") {
		t.Errorf("error %v", err)
	}
	run, err := at.Ports.reserveRun("127.0.0.1", 2)
	if err != nil {
		t.Fatal(err)
	}
	(&Command{port: &reservation{}, transfer: run}).releasePorts()
}

// TestOptionsFile: TensorRT-LLM's options file is there while the engine is, only its user can read it, and another content is
// another engine.
func TestOptionsFile(t *testing.T) {
	at := testSite(t)
	l := Launch{Kind: "trtllm", Name: "a", Model: "m", BlockSize: 32, Args: map[string]string{}}
	c, err := l.Build(at)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(c.options.path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
		t.Fatalf("%v, %v", info, err)
	}

	l.BlockSize = 64
	other, err := l.command(at, c.Port(), 0)
	if err != nil || other.Fingerprint() == c.Fingerprint() {
		t.Errorf("a launch with other options has the same fingerprint, %v", err)
	}
	c.Release()
	if _, err := os.Stat(c.options.path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}

	if err := os.RemoveAll(at.Sockets); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at.Sockets, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Build(at); err == nil || !strings.HasPrefix(err.Error(), "write the options file of an engine: ") {
		t.Errorf("in a folder that cannot be written: %v", err)
	}
}

// TestValidateTransfers: what no engine could be started with is found before any starts.
func TestValidateTransfers(t *testing.T) {
	for _, c := range []struct {
		launch Launch
		want   string
	}{
		{Launch{Kind: "vllm", Args: map[string]string{"kv-transfer-config": nixlConfig}}, ""},
		{Launch{Kind: "vllm", Args: map[string]string{"kv-transfer-config": p2pConfig, "data-parallel-size": "1024"}}, ""},
		{
			Launch{Kind: "vllm", Args: map[string]string{"kv-transfer-config": p2pConfig}, Env: map[string]string{p2pPort: "many"}},
			`transfer address "127.0.0.1:many" must be a host and a port`,
		},
		{Launch{Kind: "vllm", Args: map[string]string{"kv-transfer-config": "none"}}, "is not vLLM's form"},
		{Launch{Kind: "vllm", Args: map[string]string{"data-parallel-size": "many"}}, "must lie between 1 and 1024"},
		{Launch{Kind: "sglang", Role: fleet.Decode}, ""},
	} {
		c.launch.Name, c.launch.Model, c.launch.BlockSize = "a", "m", 16
		err := c.launch.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.launch, err)
		}
	}
}

// TestGPUsOfKinds: the ranks of SGLang's attention share the GPUs of tensor parallelism, and data-parallel replicas do not.
func TestGPUsOfKinds(t *testing.T) {
	for _, c := range []struct {
		kind string
		args map[string]string
		want int
	}{
		{"sglang", nil, 1},
		{"sglang", map[string]string{"tp-size": "4", "dp_size": "2", "pp-size": "3"}, 24},
		{"sglang", map[string]string{"tp": "4", "attn-dp-size": "4"}, 4},
		{"sglang", map[string]string{"tensor-parallel-size": "4", "dp-size": "4", "enable-dp-attention": "true"}, 4},
		{"sglang", map[string]string{"tensor-parallel-size": "4", "dp": "4", "enable_dp_attention": "false"}, 16},
		{"trtllm", map[string]string{"tp_size": "4", "pp_size": "2", "ep_size": "4"}, 8},
		{"trtllm", map[string]string{"tensor_parallel_size": "4", "cp-size": "2"}, 8},
	} {
		l := Launch{Kind: c.kind, Args: c.args}
		if got, known, err := l.gpusNeeded(); got != c.want || !known || err != nil {
			t.Errorf("%s %v: %d, %v, %v; want %d", c.kind, c.args, got, known, err, c.want)
		}
	}
}
