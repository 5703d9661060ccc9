//go:build linux

package workeragent

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// TestForeignServerIsNotTheEngine: while the engine loads its model, another program takes its port and answers health
// probes. The worker is not ready until that program is gone and the engine serves. The test's engine has loaded its
// model when the other program has answered it too; its request is the only POST.
func TestForeignServerIsNotTheEngine(t *testing.T) {
	s := run(t, Config{}, engine.Launch{Kind: "vllm", Name: "a", Model: "m", ModelPath: "m", BlockSize: 16, Python: os.Args[0]})
	address := s.await("a", fleet.Starting, 0).Address

	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var loaded atomic.Bool
	foreign := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "ok")
		if r.Method == http.MethodPost {
			loaded.Store(true)
		}
	})}
	go func() { _ = foreign.Serve(ln) }()
	testkit.Eventually(t, "the engine has loaded its model", loaded.Load)
	testkit.Eventually(t, "the warning is logged", func() bool { return s.log.Contains("another program answers at the port of the engine") })
	if states := s.states("a"); strings.Contains(states, "ready") || !s.log.Contains("--engine-ports") {
		t.Errorf("a was %s", states)
	}

	_ = foreign.Shutdown(t.Context()) // it answers its pending requests
	s.await("a", fleet.Ready, 0)
}
