package scenario

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestEnginesSurviveTheirAgent kills an agent whose engines survive it, and starts it again: the engines are the same
// processes in the same epochs, the router keeps their caches, and no request fails. After a stop in order it is the
// same. Then the engines are stopped by command.
func TestEnginesSurviveTheirAgent(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	p := startPartsWith(t, 2, ", survive: true", "--state-dir", state)
	t.Cleanup(func() { p.stopEngines(state) })
	before := p.survivors(state)
	cached := strings.Repeat("a prompt that is in the cache of one engine. ", 40)
	p.complete(cached)

	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		if err := p.agent.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		<-p.agent.done
		p.complete("while the agent is away")

		p.agent = start(t, "agent", "--config", p.file, "--admin-address", "127.0.0.1:0", "--state-dir", state)
		until := time.Now().Add(3 * time.Second) // the lease lives for two
		for n := 0; time.Now().Before(until); n++ {
			p.complete(fmt.Sprint("request ", n))
			time.Sleep(20 * time.Millisecond)
		}
		if after := p.survivors(state); after != before || !strings.Contains(after, "pid") {
			t.Errorf("after %v:\n%s\nbefore:\n%s", signal, after, before)
		}
	}

	if err := p.agent.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.agent.done
	p.stopEngines(state)
	if left := p.survivors(state); left != "" {
		t.Errorf("left after --stop-engines: %s", left)
	}
}

// complete sends a request that must be answered.
func (p *parts) complete(prompt string) {
	p.t.Helper()
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":1}`, prompt)
	resp, err := http.Post(p.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Errorf("%q: status %d", prompt, resp.StatusCode)
	}
}

// survivors returns the records of the surviving engines in the agent's folder: processes, ports and epochs.
func (p *parts) survivors(state string) string {
	p.t.Helper()
	files, err := filepath.Glob(filepath.Join(state, "*.json"))
	if err != nil {
		p.t.Fatal(err)
	}
	var all bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			p.t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// stopEngines stops the surviving engines of a folder.
func (p *parts) stopEngines(state string) {
	p.t.Helper()
	c := start(p.t, "agent", "--state-dir", state, "--stop-engines")
	<-c.done
	if c.err != nil {
		p.t.Errorf("--stop-engines: %v", c.err)
	}
}

// TestEngineDescendantsDieWithTheAgent kills an agent: what its engine has started is gone too, also in a session of
// its own.
func TestEngineDescendantsDieWithTheAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	busAt := freeAddress(t)
	script := fmt.Sprintf("echo $$ > %[1]s/engine; setsid sh -c 'echo $$ > %[1]s/other; exec sleep 600' & sleep 600", dir)
	file := configFile(t, fmt.Sprintf(`
bus: {url: "nats://%s"}
models: [{name: sim, path: "builtin:sim", launch: [{engine: exec, command: [sh, -c, %q]}]}]
`, busAt, script))
	start(t, "bus", "--listen-address", busAt)
	agent := start(t, "agent", "--config", file, "--admin-address", "127.0.0.1:0")

	pids := map[string]int{"engine": 0, "other": 0}
	for name := range pids {
		eventually(t, name+" runs", func() error {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			var pid int
			_, err = fmt.Sscan(string(text), &pid)
			pids[name] = pid
			return err
		})
	}

	if err := agent.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-agent.done

	for name, pid := range pids {
		eventually(t, name+" is gone", func() error {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d runs", pid)
			}
			return nil
		})
	}
}
