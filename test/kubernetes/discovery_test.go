package kubernetes_test

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// TestDiscoveryFigures runs `test/benchdiscovery` on a real API server, and prints its figures. It is a measurement, and takes minutes.
func TestDiscoveryFigures(t *testing.T) {
	program := os.Getenv("STATOR_BENCH_DISCOVERY")
	if program == "" {
		t.Skip("STATOR_BENCH_DISCOVERY names no program: run make bench-discovery")
	}
	c := startCluster(t)
	c.must(t, "", "create", "serviceaccount", "default", "--namespace", "default")
	proxy := exec.Command(c.kubectlPath, "proxy", "--port", "0")
	proxy.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	out, err := proxy.StdoutPipe()
	if err == nil {
		err = proxy.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Process.Kill(); _ = proxy.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if at == "" {
		t.Fatalf("kubectl proxy: %q, %v", line, err)
	}

	for _, pods := range []string{"1000", "5000"} {
		cmd := exec.Command(program, "--api", "http://"+at, "--pods", pods, "--time", os.Getenv("STATOR_BENCH_TIME"))
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
		c.must(t, "", "delete", "pods", "--all", "--force", "--namespace", "default", "--wait=false")
	}
}
