package exchange

import (
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/bodies"
)

// startReader returns a function that asks Python which members of transfers an engine would read in a body.
func startReader(t *testing.T) func(body []byte) map[string]string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("this test compares with Python's JSON decoder: install python3")
	}
	r, err := bodies.StartReader(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return func(body []byte) map[string]string {
		t.Helper()
		found, err := r.Read(body)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
}

// TestNoTransferArrives: of thousands of bodies with members of transfers, an engine in Python reads none in the bodies that the gateway
// forwards, on parsed paths and on others. The bodies are mutations of the requests that ended a real vLLM.
func TestNoTransferArrives(t *testing.T) {
	ask := startReader(t)
	svc, _ := newService(t)
	made := bodies.Transfers{Model: "sim", Values: []string{
		`{"do_remote_prefill":true}`, `[]`, `"x"`, `null`, `1e400`, `NaN`, `{"kv_transfer_params":{}}`, `"\ud800"`,
	}}
	paths := bodies.Paths
	draw := rand.New(rand.NewPCG(1, 2))

	dangerous, forwarded := 0, 0
	for range 6000 {
		body := made.Body(draw)
		before := ask(body)
		if len(before) > 0 {
			dangerous++
		}
		path := paths[draw.IntN(len(paths))]
		x := svc.Begin(Origin{Source: "envoy"})
		x.OnHeaders(Head{Method: "POST", Path: path}, start)
		r := x.OnBody(body, true, start)
		if r.Answer != nil {
			if r.Answer.Status != 400 && r.Answer.Status != 404 { // 404 is for a mutation of the model's name
				t.Errorf("%s %q: status %d", path, body, r.Answer.Status)
			}
			continue
		}
		forwarded++
		sent := r.Body
		if sent == nil {
			sent = body
		}
		if found := ask(sent); len(found) > 0 {
			t.Errorf("%s %q reached the engine as %q, with %v", path, body, sent, found)
		}
		x.Recycle()
	}
	if dangerous < 2000 || forwarded < 1000 {
		t.Errorf("%d bodies were dangerous and %d were forwarded, which tests too little", dangerous, forwarded)
	}
}

// TestUnreadBodiesAreRefused: if a worker takes part in transfers, or clients have tenants, no request reaches a
// worker before its body was read.
func TestUnreadBodiesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		transfer fleet.Transfer
		tenants  bool
		status   int
	}{
		{"neither", fleet.NoTransfer, false, 0},
		{"transfers", fleet.TransferP2P, false, 503},
		{"tenants", fleet.NoTransfer, true, 503},
	} {
		svc, _ := newService(t, func(w *fleet.Worker) {
			w.Transfer = c.transfer
			if c.transfer != fleet.NoTransfer {
				w.TransferAt = "10.0.0.1:9000"
			}
		})
		set := *svc.Settings()
		if c.tenants {
			set.TenantHeader = "x-tenant"
		}
		svc.Reload(set)
		for _, cut := range []bool{false, true} {
			x := svc.Begin(Origin{Source: "envoy"})
			head := Head{Method: "POST", Path: "/v1/completions"}
			if !cut {
				head.Unread = "it is not sent"
			}
			r := x.OnHeaders(head, start)
			if cut {
				r = x.OnBody([]byte(`{"model":"sim","prompt":"hel`), false, start)
			}
			status := 0
			if r.Answer != nil {
				status = r.Answer.Status
			}
			if status != c.status {
				t.Errorf("%s, cut %v: status %d", c.name, cut, status)
			}
		}
	}
}
