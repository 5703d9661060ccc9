// Package kubecluster starts a real API server with etcd and the controllers of Deployments, ReplicaSets and StatefulSets for tests. The
// test plays kubelets, and controllers of other kinds.
package kubecluster

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stator-project/stator/test/testkit"
)

// Cluster is a running control plane with one node, n1, that no program serves. Create it with [Start].
type Cluster struct {
	// Server is the API server, and URL its address without a token, as an administrator.
	Server *os.Process
	URL    string

	t                            testing.TB
	folder, programs, kubeconfig string
}

// Start starts the programs that `make test-kubernetes` has built, and ends them with the test. Without them it skips the test.
func Start(t testing.TB) *Cluster {
	t.Helper()
	programs := os.Getenv("KUBEBUILDER_ASSETS")
	if programs == "" {
		t.Skip("KUBEBUILDER_ASSETS names no folder with the programs of a control plane: run make test-kubernetes")
	}
	c := &Cluster{t: t, folder: t.TempDir(), programs: programs}
	c.kubeconfig = filepath.Join(c.folder, "kubeconfig")
	clients, peers := testkit.Port(t), testkit.Port(t)
	port := testkit.Port(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(c.folder, "accounts.key")
	c.write(keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	c.write(filepath.Join(c.folder, "tokens.csv"), "admin,admin,admin,system:masters\n")
	c.write(c.kubeconfig, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", certificate-authority: %s}}],
users: [{name: admin, user: {token: admin}}], contexts: [{name: c, context: {cluster: c, user: admin}}]}`,
		port, filepath.Join(c.folder, "apiserver.crt")))

	c.start("etcd", "--data-dir="+filepath.Join(c.folder, "etcd"), "--unsafe-no-fsync", at("--listen-client-urls", clients),
		at("--advertise-client-urls", clients), at("--listen-peer-urls", peers), at("--initial-advertise-peer-urls", peers),
		strings.Replace(at("--initial-cluster", peers), "=", "=default=", 1))
	c.start("kube-apiserver", at("--etcd-servers", clients), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir="+c.folder, "--token-auth-file="+filepath.Join(c.folder, "tokens.csv"), "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+keyFile,
		"--service-account-signing-key-file="+keyFile)
	testkit.Eventually(t, "the API server to be ready", func() bool {
		_, err := c.Kubectl("", "get", "--raw", "/readyz")
		return err == nil
	})
	// It serves nothing: by default all of them have one port, and the second of two clusters would have no controllers.
	c.start("kube-controller-manager", "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--use-service-account-credentials=false",
		"--secure-port=0", "--controllers=deployment-controller,replicaset-controller,statefulset-controller,resourcequota-controller")
	c.URL = c.Proxy("")
	c.Must(`{apiVersion: v1, kind: Node, metadata: {name: n1}}`, "apply", "-f", "-")
	return c
}

// start starts a program that ends with the test.
func (c *Cluster) start(program string, args ...string) io.Reader {
	c.t.Helper()
	log, err := os.Create(filepath.Join(c.folder, program+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(c.programs, program), args...)
	cmd.Dir, cmd.Stderr = c.folder, log
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	if program == "kube-apiserver" {
		c.Server = cmd.Process
	}

	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	return out
}

// Proxy returns the URL of an API server that asks for no token, as an account; empty for an administrator.
func (c *Cluster) Proxy(account string) string {
	c.t.Helper()
	args := []string{"proxy", "--port", "0"}
	if account != "" {
		args = append(args, "--as", account)
	}
	line, err := bufio.NewReader(c.start("kubectl", args...)).ReadString('\n')
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if address == "" {
		c.t.Fatalf("kubectl proxy: %q, %v", line, err)
	}
	return "http://" + address
}

// Kubectl runs kubectl as an administrator, with a text as its standard input.
func (c *Cluster) Kubectl(in string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.programs, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.folder)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Must runs kubectl, and ends the test if it fails.
func (c *Cluster) Must(in string, args ...string) string {
	c.t.Helper()
	out, err := c.Kubectl(in, args...)
	if err != nil {
		c.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// The types of bodies.
const (
	JSON  = "application/json"
	Merge = "application/merge-patch+json"
)

// Call sends a request of the administrator, and decodes the answer. It is quicker than kubectl.
func (c *Cluster) Call(method, path, kind, body string, into any) error {
	return Call(c.URL, method, path, kind, body, into)
}

// Call sends a request to an API server that asks for no token, and decodes the answer.
func Call(url, method, path, kind, body string, into any) error {
	req, err := http.NewRequest(method, url+path, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, data)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(data, into)
	}
	return err
}

// ApplyKind has the API server serve a kind: the definition in a file of a Go module, such as sigs.k8s.io/lws@v0.9.0.
func (c *Cluster) ApplyKind(module, file, plural string) {
	c.t.Helper()
	c.Must("", "apply", "--server-side", "-f", filepath.Join(ModuleFolder(c.t, module), file))
	testkit.Eventually(c.t, "the kind "+plural+" to be served", func() bool {
		_, err := c.Kubectl("", "get", plural)
		return err == nil
	})
}

// ModuleFolder returns the folder of a Go module, which is downloaded if it is not there.
func ModuleFolder(t testing.TB, module string) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	var found struct{ Dir, Error string }
	if json.Unmarshal(out, &found) != nil || found.Dir == "" {
		t.Fatalf("go mod download %s: %v %s", module, err, found.Error)
	}
	return found.Dir
}

func (c *Cluster) write(path, text string) {
	c.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func at(flag string, port int) string { return fmt.Sprintf("%s=http://127.0.0.1:%d", flag, port) }
