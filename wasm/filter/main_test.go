package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/test/affinitykeys"
	"github.com/stator-project/stator/wasm/affinity"
)

// TestFilter plays the filter as ordinary Go, and as the module that Envoy loads, under wazero. Both must set the keys
// of package affinity.
func TestFilter(t *testing.T) {
	t.Run("native", func(t *testing.T) {
		playFilter(t, proxytest.NewEmulatorOption().WithHttpContext(newRequest))
	})
	t.Run("wazero", func(t *testing.T) {
		vm, err := proxytest.NewWasmVMContext(buildModule(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = vm.Close() })
		playFilter(t, proxytest.NewEmulatorOption().WithVMContext(vm))
	})
}

// buildModule builds the module as `make build-wasm` does.
func buildModule(t *testing.T) []byte {
	t.Helper()

	path := filepath.Join(t.TempDir(), "affinity.wasm")
	build := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the module: %v\n%s", err, out)
	}
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return module
}

func playFilter(t *testing.T, option *proxytest.EmulatorOption) {
	host, reset := proxytest.NewHostEmulator(option)
	defer reset()

	for _, e := range affinitykeys.All() {
		body := e.Body
		want, _ := affinity.Key([]byte(body))
		for _, size := range []int{1 << 30, 7, 1} {
			if got := send(t, host, body, size); got != want {
				t.Errorf("header %q in pieces of %d bytes, want %q: %.80s", got, size, want, body)
			}
		}
	}

	t.Run("a request without a body passes", func(t *testing.T) {
		id := host.InitializeHttpContext()
		defer host.CompleteHttpContext(id)
		if host.CallOnRequestHeaders(id, nil, true) != types.ActionContinue || header(host, id) != "" {
			t.Error("it is held, or has a header")
		}
	})

	t.Run("trailers end a body", func(t *testing.T) {
		body := `{"model":"m","prompt":"x"}`
		want, _ := affinity.Key([]byte(body))
		id := host.InitializeHttpContext()
		defer host.CompleteHttpContext(id)
		host.CallOnRequestHeaders(id, nil, false)
		host.CallOnRequestBody(id, []byte(body), false)
		if action := host.CallOnRequestTrailers(id, [][2]string{{"x", "y"}}); action != types.ActionContinue || header(host, id) != want {
			t.Errorf("action %v, header %q, want %q", action, header(host, id), want)
		}
	})

	t.Run("a body beyond the limit is not held", func(t *testing.T) {
		id := host.InitializeHttpContext()
		defer host.CompleteHttpContext(id)
		host.CallOnRequestHeaders(id, nil, false)
		held := host.CallOnRequestBody(id, []byte(`{"prompt":"`+strings.Repeat("x", affinity.Limit/2)), false)
		passes := host.CallOnRequestBody(id, []byte(strings.Repeat("x", affinity.Limit/2)), false)
		if held != types.ActionPause || passes != types.ActionContinue || header(host, id) == "" {
			t.Errorf("actions %v and %v, header %q", held, passes, header(host, id))
		}
	})

	// The last one, because the emulator has the pick from now on.
	t.Run("a request with a pick passes", func(t *testing.T) {
		if err := host.SetProperty(picked, []byte("10.0.0.1:80")); err != nil {
			t.Fatal(err)
		}
		id := host.InitializeHttpContext()
		defer host.CompleteHttpContext(id)
		if host.CallOnRequestHeaders(id, nil, false) != types.ActionContinue {
			t.Error("its headers are held")
		}
		if host.CallOnRequestBody(id, []byte(`{"model":"m","prompt":"x"}`), true) != types.ActionContinue {
			t.Error("its body is held")
		}
		if got := header(host, id); got != "" {
			t.Errorf("it has the header %q", got)
		}
	})
}

// send sends a body in pieces, and returns the header that the filter has set.
func send(t *testing.T, host proxytest.HostEmulator, body string, size int) string {
	t.Helper()

	id := host.InitializeHttpContext()
	defer host.CompleteHttpContext(id)
	if host.CallOnRequestHeaders(id, [][2]string{{":path", "/v1/x"}}, false) != types.ActionPause {
		t.Fatal("the headers of a request without a pick are not held")
	}
	for rest := body; ; {
		n := min(size, len(rest))
		last := n == len(rest)
		action := host.CallOnRequestBody(id, []byte(rest[:n]), last)
		rest = rest[n:]
		if last {
			if action != types.ActionContinue {
				t.Errorf("a complete body is held: %.80s", body)
			}
			return header(host, id)
		}
		if action == types.ActionContinue {
			return header(host, id)
		}
	}
}

func header(host proxytest.HostEmulator, id uint32) string {
	for _, h := range host.GetCurrentRequestHeaders(id) {
		if h[0] == envoynames.HeaderAffinity {
			return h[1]
		}
	}
	return ""
}
