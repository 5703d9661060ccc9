package kubeapi_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/test/kubeapi"
	"github.com/stator-project/stator/test/process"
	"github.com/stator-project/stator/test/testkit"
)

// TestIdleFigures prints what a router with a thousand ready pods costs while there are no requests. It is a measurement.
func TestIdleFigures(t *testing.T) {
	program := os.Getenv("STATOR_BENCH_PROGRAM")
	if program == "" {
		t.Skip("STATOR_BENCH_PROGRAM names no stator: run make bench-idle-pods")
	}
	var questions atomic.Int64
	ln, err := net.Listen("tcp", "0.0.0.0:0") // the pods are at loopback addresses
	if err != nil {
		t.Fatal(err)
	}
	engines := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		questions.Add(1)
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, "vllm:num_requests_running{engine=\"0\"} 0\nvllm:cache_config_info{block_size=\"16\"} 1\n")
		case "/v1/models":
			fmt.Fprint(w, `{"data": [{"id": "m", "root": "m", "parent": null, "max_model_len": 4096}]}`)
		}
	})}
	go func() { _ = engines.Serve(ln) }()
	t.Cleanup(func() { _ = engines.Close() })

	api := kubeapi.New(t)
	for i := range 1000 {
		api.PutPod(kubeapi.Pod{
			Namespace: "llm", Name: fmt.Sprintf("p%d", i), UID: fmt.Sprint(i), IP: fmt.Sprintf("127.56.%d.%d", i/200, 1+i%200),
			Labels: map[string]string{"app": "v"}, Ready: true,
		})
	}
	admin := testkit.Address(t)
	router := exec.CommandContext(t.Context(), program, "extproc", "--kubernetes-api", api.URL, "--namespace", "llm", "--pod-selector", "app=v",
		"--pod-ports", fmt.Sprint(ln.Addr().(*net.TCPAddr).Port), "--listen-address", testkit.Address(t), "--admin-address", admin,
		"--log-level", "warn")
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = router.Wait() }()
	defer func() { _ = router.Process.Kill() }()
	testkit.Eventually(t, "the router is ready", func() bool {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})

	time.Sleep(20 * time.Second) // its start is over
	before, asked := cpuOf(t, router), questions.Load()
	const measured = 30
	time.Sleep(measured * time.Second)
	after := cpuOf(t, router)
	resident, err := process.Resident(router.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("1000 idle pods: %.1f ms of CPU a second, %d MB resident, %d questions a second; load average %s\n",
		(after-before).Seconds()/measured*1000, resident>>20, (questions.Load()-asked)/measured, process.LoadAverage())
}

func cpuOf(t *testing.T, cmd *exec.Cmd) time.Duration {
	t.Helper()
	used, err := process.CPU(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return used
}
