// Package kubernetes_test has a real API server accept, refuse and delete what deploy/ installs.
package kubernetes_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// crds lists the files that define the kinds of others, by module and version. The API server refuses objects of kinds that it does not
// know, and misspelt fields of those that it knows.
var crds = map[string][]string{
	"sigs.k8s.io/gateway-api-inference-extension@v1.6.0": {"config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"},
	"istio.io/api@v1.31.1":                               {"kubernetes/customresourcedefinitions.gen.yaml"},
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": {
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
	},
	"github.com/envoyproxy/gateway@v1.9.1": {
		"charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml",
		"charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_clienttrafficpolicies.yaml",
		"charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_envoyextensionpolicies.yaml",
	},
}

// cluster is etcd and an API server: no controllers and no nodes.
type cluster struct {
	kubectlPath, helmPath, kubeconfig string
}

// startCluster starts the programs that `make test-kubernetes` has built, and ends them with the test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	programs, helm := os.Getenv("KUBEBUILDER_ASSETS"), os.Getenv("STATOR_TEST_HELM")
	if programs == "" || helm == "" {
		t.Skip("KUBEBUILDER_ASSETS names no folder with etcd, kube-apiserver and kubectl, or STATOR_TEST_HELM no helm: run make test-kubernetes")
	}

	folder := t.TempDir()
	c := &cluster{kubectlPath: filepath.Join(programs, "kubectl"), helmPath: helm, kubeconfig: filepath.Join(folder, "kubeconfig")}
	clients, peers, api := freePort(t), freePort(t), freePort(t)
	key := filepath.Join(folder, "accounts.key")
	write(t, key, newKey(t))
	write(t, filepath.Join(folder, "tokens.csv"), []byte("admin,admin,admin,system:masters\n"))
	write(t, c.kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s}}],
users: [{name: admin, user: {token: admin}}], contexts: [{name: c, context: {cluster: c, user: admin}}]}`,
		api, filepath.Join(folder, "apiserver.crt")))

	start(t, folder, filepath.Join(programs, "etcd"), "--data-dir="+filepath.Join(folder, "etcd"), "--unsafe-no-fsync",
		at("--listen-client-urls=http", clients), at("--advertise-client-urls=http", clients), at("--listen-peer-urls=http", peers),
		at("--initial-advertise-peer-urls=http", peers), at("--initial-cluster=default=http", peers))
	log := start(t, folder, filepath.Join(programs, "kube-apiserver"), at("--etcd-servers=http", clients), "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", api), "--cert-dir="+folder, "--token-auth-file="+filepath.Join(folder, "tokens.csv"),
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key)

	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := c.kubectl("", "get", "--raw", "/readyz")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the API server is not ready: %v\n%s\nits log is\n%s", err, out, read(t, log))
		}
	}
	for module, files := range crds {
		for _, file := range files {
			c.must(t, "", "apply", "--server-side", "-f", filepath.Join(moduleFolder(t, module), file))
		}
	}
	c.must(t, "", "wait", "--for=condition=Established", "crd", "--all")
	return c
}

// kubectl runs kubectl with a text as its standard input.
func (c *cluster) kubectl(in string, args ...string) (string, error) {
	return c.run(c.kubectlPath, in, args...)
}

func (c *cluster) helm(in string, args ...string) (string, error) {
	return c.run(c.helmPath, in, args...)
}

func (c *cluster) run(program, in string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+filepath.Dir(c.kubeconfig))
	cmd.Stdin = bytes.NewBufferString(in)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs kubectl, and ends the test if it fails.
func (c *cluster) must(t *testing.T, in string, args ...string) string {
	t.Helper()
	out, err := c.kubectl(in, args...)
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// mustHelm runs helm, and ends the test if it fails.
func (c *cluster) mustHelm(t *testing.T, in string, args ...string) string {
	t.Helper()
	out, err := c.helm(in, args...)
	if err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
	return out
}

// start starts a program that ends with the test, or with this process. It returns the path of the program's log.
func start(t *testing.T, folder, program string, args ...string) (log string) {
	t.Helper()
	f, err := os.Create(filepath.Join(folder, filepath.Base(program)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stderr = folder, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = f.Close()
	})
	return f.Name()
}

// moduleFolder returns the folder of a module, which is downloaded if it is not there.
func moduleFolder(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	var found struct{ Dir, Error string }
	if json.Unmarshal(out, &found) != nil || found.Dir == "" {
		t.Fatalf("go mod download %s: %v %s", module, err, found.Error)
	}
	return found.Dir
}

func newKey(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

func at(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
