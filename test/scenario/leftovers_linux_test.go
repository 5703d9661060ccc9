package scenario

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// leavingEngine is an engine that has shared memory, a Unix socket and a process of its own, and removes none of them.
const leavingEngine = `
import http.server, mmap, os, socket, subprocess, sys
port, name = int(sys.argv[1]), sys.argv[2]
shm = os.open("/dev/shm/%s-%d.mmap" % (os.path.basename(name), os.getpid()), os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(shm, 1 << 20)
kept = mmap.mmap(shm, 1 << 20)
os.close(shm)
events = socket.socket(socket.AF_UNIX)
events.bind("%s-%d.sock" % (name, os.getpid()))
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d %d" % (os.getpid(), child.pid))
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
`

// TestKilledAgentLeavesNothing kills an agent three times: its engine is gone with the process that it has started, and so are their
// shared memory, their socket and their port. The next agent starts the engine again.
func TestKilledAgentLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, name := filepath.Join(dir, "engine.py"), filepath.Join(dir, fmt.Sprintf("stator-leaving-%d", os.Getpid()))
	if err := os.WriteFile(script, []byte(leavingEngine), 0o600); err != nil {
		t.Fatal(err)
	}
	busAt, admin := freeAddress(t), freeAddress(t)
	file := configFile(t, fmt.Sprintf(`
bus: {url: "nats://%s", leaseTTL: 2s}
models: [{name: sim, path: "builtin:sim", launch: [{engine: exec, command: [python3, %s, "{port}", %s]}]}]
`, busAt, script, name))
	start(t, "bus", "--listen-address", busAt)

	for round := range 3 {
		agent := start(t, "agent", "--config", file, "--admin-address", admin)
		address := awaitEngine(t, admin)
		pids := processesOf(t, address)
		time.Sleep(time.Second) // an engine is found by what it has open
		if left := leftBy(name); len(left) != 2 {
			t.Errorf("round %d: %q, want the shared memory and the socket of one process", round, left)
		}

		agent.kill()
		eventually(t, "nothing is left", func() error {
			if left, alive := leftBy(name), running(pids); len(left)+len(alive) > 0 {
				return fmt.Errorf("round %d: left are %q and the processes %d", round, left, alive)
			}
			return nil
		})
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("round %d: the port is not free: %v", round, err)
		}
		_ = l.Close()
	}
}

// awaitEngine waits until the agent's engine is ready, and returns its address.
func awaitEngine(t *testing.T, admin string) string {
	t.Helper()
	var engines []struct{ Address, State string }
	eventually(t, "the engine is ready", func() error {
		resp, err := http.Get("http://" + admin + "/debug/agent?format=json")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if err := json.NewDecoder(resp.Body).Decode(&engines); err != nil {
			return err
		}
		if len(engines) != 1 || engines[0].State != "ready" {
			return fmt.Errorf("%+v", engines)
		}
		return nil
	})
	return engines[0].Address
}

// processesOf asks the engine for its process and its child.
func processesOf(t *testing.T, address string) []int {
	t.Helper()
	resp, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	pids := make([]int, 2)
	if _, err := fmt.Fscan(resp.Body, &pids[0], &pids[1]); err != nil {
		t.Fatal(err)
	}
	return pids
}

// running returns those of the processes that run.
func running(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return syscall.Kill(pid, 0) != nil })
}

// leftBy returns the files of engines whose names begin with name.
func leftBy(name string) []string {
	shared, _ := filepath.Glob(filepath.Join("/dev/shm", filepath.Base(name)+"-*"))
	sockets, _ := filepath.Glob(name + "-*.sock")
	return append(shared, sockets...)
}
