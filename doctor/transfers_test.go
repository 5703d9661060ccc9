package doctor

import (
	"net"
	"testing"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// TestAskTransfer: the address of transfers is connected to where something must listen there.
func TestAskTransfer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open := l.Addr().String()
	defer func() { _ = l.Close() }()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut := closed.Addr().String()
	_ = closed.Close()

	for _, c := range []struct {
		role, transfer, at string
		fails              bool
	}{
		{"prefill", "p2p", open, false},
		{"aggregated", "p2p", shut, true},
		{"prefill", "bootstrap", shut, true},
		{"decode", "bootstrap", shut, false}, // only prefill workers have the server
		{"prefill", "nixl", "", false},
	} {
		w := workerSeen{role: c.role, transfer: c.transfer, transferAt: c.at}
		w.askTransfer(t.Context())
		if (w.transferErr != nil) != c.fails {
			t.Errorf("%+v: %v", c, w.transferErr)
		}
	}
}

// TestWhatEnginesShowOfTransfers: the members are taken from SGLang's server info and from vLLM's pages.
func TestWhatEnginesShowOfTransfers(t *testing.T) {
	at := servePages(t, map[string]string{
		"/v1/models":   `{"data": [{"id": "m", "root": "/models/m", "max_model_len": 4096}]}`,
		"/server_info": `{"version": "0.5.23", "disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998, "page_size": 64}`,
		"/metrics":     "vllm:num_requests_running 0\nvllm:nixl_num_failed_transfers_total 0\n",
	})
	w := workerSeen{address: at, kind: engines.SGLang}
	if e := askEngine(t.Context(), newEngineAt(nil), &w, nil); e.err != nil || e.mode != "prefill" || e.transferSeen || e.version != "0.5.23" {
		t.Errorf("SGLang: %+v", e)
	}
	w.kind = engines.VLLM
	if e := askEngine(t.Context(), newEngineAt(nil), &w, nil); e.err != nil || e.served[0].Root != "/models/m" || !e.transferSeen || e.transfer != fleet.TransferNixl {
		t.Errorf("vLLM: %+v", e)
	}
}
