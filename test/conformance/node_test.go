package conformance

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The addresses of the node and of the API server, which has no port besides that of its Service: so no kube-proxy is needed.
const (
	nodeAddress = "10.99.0.1"
	apiAddress  = "10.96.0.1"
)

// node is a cluster with one node, and istiod.
type node struct {
	programs, folder, kubeconfig string
}

// startNode starts the programs that `make test-conformance` has built. Their files are in memory, in a mount of this test's namespace,
// so nothing of them is left.
func startNode(t *testing.T) *node {
	t.Helper()
	n := &node{programs: os.Getenv("STATOR_TEST_NODE"), folder: "/run/node", kubeconfig: "/run/node/kubeconfig"}
	if n.programs == "" || os.Getpid() != 1 {
		t.Skip("STATOR_TEST_NODE names no folder of programs, or this process is not the first of its namespaces: run make test-conformance")
	}
	t.Setenv("PATH", n.programs+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", n.kubeconfig)
	for _, folder := range []string{"/run", "/var/lib", "/var/log"} {
		n.run(t, "mount", "-t", "tmpfs", "tmpfs", folder)
	}
	n.run(t, "ip", "link", "set", "lo", "up")
	n.run(t, "ip", "address", "add", apiAddress+"/32", "dev", "lo")
	n.run(t, "ip", "link", "add", "eth0", "type", "bridge")
	n.run(t, "ip", "address", "add", nodeAddress+"/24", "dev", "eth0")
	n.run(t, "ip", "link", "set", "eth0", "up")
	n.run(t, "ip", "route", "add", "default", "dev", "eth0")
	write(t, "/proc/sys/net/ipv4/ip_forward", "1")

	n.startControlPlane(t)
	n.startKubelet(t)
	n.startIstiod(t)
	return n
}

func (n *node) startControlPlane(t *testing.T) {
	t.Helper()
	key := n.folder + "/accounts.key"
	write(t, key, newKey(t))
	write(t, n.folder+"/tokens.csv", "admin,admin,admin,system:masters\n")
	write(t, n.kubeconfig, fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %s/apiserver.crt}}],
users: [{name: admin, user: {token: admin}}], contexts: [{name: c, context: {cluster: c, user: admin}}]}`, apiAddress, n.folder))
	n.start(t, "etcd", "--data-dir="+n.folder+"/etcd", "--unsafe-no-fsync")
	n.start(t, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=443", "--advertise-address="+nodeAddress,
		"--cert-dir="+n.folder, "--token-auth-file="+n.folder+"/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged",
		"--service-cluster-ip-range=10.96.0.0/16", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key)
	n.eventually(t, "the API server is ready", func() error { return n.try("", "get", "--raw", "/readyz") })

	n.start(t, "kube-controller-manager", "--kubeconfig="+n.kubeconfig, "--leader-elect=false", "--service-account-private-key-file="+key,
		"--root-ca-file="+n.folder+"/apiserver.crt", "--cluster-cidr=10.244.0.0/16", "--allocate-node-cidrs")
	n.start(t, "kube-scheduler", "--kubeconfig="+n.kubeconfig, "--leader-elect=false")
}

func (n *node) startKubelet(t *testing.T) {
	t.Helper()
	values := strings.NewReplacer("PROGRAMS", n.programs, "FOLDER", n.folder, "SANDBOX", engineImage)
	write(t, n.folder+"/containerd.toml", values.Replace(`
version = 3
root = "FOLDER/containerd"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "SANDBOX"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["PROGRAMS"]
conf_dir = "FOLDER/cni"
use_internal_loopback = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = {BinaryName = "PROGRAMS/runtime"}
`))
	write(t, n.folder+"/cni/pods.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`)
	n.start(t, "containerd", "--config", n.folder+"/containerd.toml")
	n.eventually(t, "containerd answers", func() error { return exec.Command("ctr", "version").Run() })
	images, _ := filepath.Glob(n.programs + "/*.tar")
	for _, image := range images {
		n.run(t, "ctr", "--namespace", "k8s.io", "images", "import", image)
	}

	write(t, n.folder+"/kubelet.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
enforceNodeAllocatable: []
imageGCHighThresholdPercent: 100
evictionHard: {}
`)
	n.start(t, "kubelet", "--config="+n.folder+"/kubelet.yaml", "--kubeconfig="+n.kubeconfig, "--hostname-override=node",
		"--node-ip="+nodeAddress)
	n.eventually(t, "the node is ready", func() error {
		return n.try("", "wait", "--for=condition=Ready", "node/node", "--timeout=5s")
	})
}

// startIstiod starts istiod with the switches that a stock Envoy needs, and that make it read InferencePools.
func (n *node) startIstiod(t *testing.T) {
	t.Helper()
	for _, crds := range [][2]string{
		{"../istio", "istio.io/istio manifests/charts/base/files/crd-all.gen.yaml"},
		{".", "sigs.k8s.io/gateway-api config/crd/standard"},
		{".", "sigs.k8s.io/gateway-api-inference-extension config/crd/bases"},
	} {
		module, files, _ := strings.Cut(crds[1], " ")
		cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)
		cmd.Dir = crds[0]
		folder, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -m %s: %v", module, err)
		}
		n.kubectl(t, "", "apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(folder)), files))
	}
	n.kubectl(t, "", "create", "namespace", "istio-system")
	write(t, n.folder+"/mesh.yaml", "enableAutoMtls: false\n")
	for name, value := range map[string]string{
		"POD_NAME": "istiod-0", "POD_NAMESPACE": "istio-system", "REVISION": "default", "CLUSTER_ID": "Kubernetes",
		"PILOT_ENABLE_METADATA_EXCHANGE": "false", "PILOT_ENABLE_ALPN_FILTER": "false", "PILOT_ENABLE_AMBIENT": "false",
		"PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER": "false", "ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
	} {
		t.Setenv(name, value)
	}
	n.start(t, "pilot-discovery", "discovery", "--meshConfig", n.folder+"/mesh.yaml", "--kubeconfig", n.kubeconfig, "--secureGRPCAddr", "",
		"--httpsAddr", "", "--grpcAddr", nodeAddress+":15010", "--httpAddr", "127.0.0.1:18080", "--monitoringAddr", "127.0.0.1:15014")
	n.eventually(t, "istiod is ready", func() error {
		resp, err := http.Get("http://127.0.0.1:18080/ready")
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %s", resp.Status)
		}
		return err
	})
}

// start starts a program that ends with the test. Its log is printed if the test fails.
func (n *node) start(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(n.folder, program+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.folder, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the log of %s ends with\n%s", program, text[max(0, len(text)-4000):])
		}
	})
}

// run runs a command, and ends the test if it fails.
func (n *node) run(t *testing.T, program string, args ...string) {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

// kubectl runs kubectl with a text as its standard input, and ends the test if it fails. It returns what kubectl prints.
func (n *node) kubectl(t *testing.T, in string, args ...string) string {
	t.Helper()
	cmd := exec.Command("kubectl", args...)
	cmd.Stdin = strings.NewReader(in)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, &failure)
	}
	return string(out)
}

// try runs kubectl, and returns its failure.
func (n *node) try(in string, args ...string) error {
	cmd := exec.Command("kubectl", args...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// eventually waits until a condition holds, two minutes at most.
func (n *node) eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within two minutes: %v", what, err)
		}
	}
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
