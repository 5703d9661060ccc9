package scenario

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestRolesFailClosed: while no router answers, a gateway whose model has roles refuses requests, because nothing would remove members
// of transfers from them. The answer tells clients to try again.
func TestRolesFailClosed(t *testing.T) {
	t.Parallel()
	testFailsClosed(t, partsSettings{models: `models: [{name: sim, path: "builtin:sim", launch: [{engine: sim, role: prefill}, ` +
		`{engine: sim, role: decode}]}]`})
}

// TestTenantsFailClosed: the same where clients have tenants, because nothing would salt their prompts.
func TestTenantsFailClosed(t *testing.T) {
	t.Parallel()
	testFailsClosed(t, partsSettings{workers: 1, gateway: ", tenantHeader: x-tenant"})
}

func testFailsClosed(t *testing.T, s partsSettings) {
	t.Helper()
	p := startPartsFor(t, s)
	refused := func(while string) {
		t.Helper()
		for _, path := range []string{"/v1/completions", "/v1/messages"} {
			r, err := p.send(t.Context(), http.MethodPost, path,
				[]byte(`{"model":"sim","prompt":"hello","max_tokens":1,"kv_transfer_params":{"do_remote_prefill":true}}`))
			if err != nil || r.status != http.StatusServiceUnavailable || !strings.Contains(r.body, "no_decision") {
				t.Errorf("%s while the router is %s: %d %s, %v", path, while, r.status, r.body, err)
			}
		}
	}

	if err := p.extproc.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the router stands still", func() error { // a signal takes a moment, in which a router may decide
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.extproc.cmd.Process.Pid))
		if err == nil && !strings.Contains(string(status), "\nState:\tT") {
			return fmt.Errorf("it runs:\n%s", status)
		}
		return nil // there are no such files but on Linux
	})
	refused("stopped")
	p.extproc.kill()
	refused("dead")

	p.startExtProc()
	eventually(t, "requests are answered again", func() error {
		r, err := p.send(t.Context(), http.MethodPost, "/v1/completions", []byte(`{"model":"sim","prompt":"hello","max_tokens":1}`))
		if err == nil && r.status != http.StatusOK {
			err = fmt.Errorf("%d %s", r.status, r.body)
		}
		return err
	})
	if n := p.served("unpicked"); n != 0 {
		t.Errorf("%d requests went to a worker without a decision", n)
	}
}
