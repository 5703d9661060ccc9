package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStopLeavesNothing: after Ctrl-C requests in flight get their answers, no process and no file is left, and the exit code is 0.
func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	g := upIn(t, tmp)
	pid := g.up.cmd.Process.Pid
	family := children(t, pid)
	if len(family) != 3 {
		t.Fatalf("children %v, want Envoy and two engines", family)
	}
	resp, err := g.stream(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	last := ""
	first := make(chan bool)
	ended := make(chan error)
	go func() {
		seen := false
		ended <- chunks(resp, func(data string) bool {
			if !seen {
				close(first)
			}
			seen, last = true, data
			return true
		})
	}()
	<-first
	if err := g.up.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || last != "[DONE]" {
		t.Errorf("a stream in flight ended with %q, %v", last, err)
	}
	<-g.up.done
	if g.up.err != nil {
		t.Errorf("it ended with %v", g.up.err)
	}
	for id, name := range family {
		if syscall.Kill(id, 0) == nil {
			t.Errorf("process %d (%s) is still there", id, name)
		}
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// TestSecondInterruptStopsAtOnce: a second Ctrl-C does not wait for requests in flight.
func TestSecondInterruptStopsAtOnce(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	g := upIn(t, tmp, "--drain-time", "10m")
	family := children(t, g.up.cmd.Process.Pid)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := g.stream(ctx, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := g.up.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it says that it is stopping", func() error {
		if !strings.Contains(g.up.out.String(), "stopping") {
			return errNotYet
		}
		return nil
	})
	select {
	case <-g.up.done:
		t.Fatal("it did not wait for the request")
	case <-time.After(200 * time.Millisecond):
	}
	if err := g.up.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.up.done:
	case <-time.After(patience):
		t.Fatalf("it still runs %s after the second interrupt", patience)
	}
	for id, name := range family {
		if syscall.Kill(id, 0) == nil {
			t.Errorf("process %d (%s) is still there", id, name)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// TestKilledParentTakesItsChildren: when the program is killed, its child processes end.
func TestKilledParentTakesItsChildren(t *testing.T) {
	t.Parallel()
	g := up(t)
	family := children(t, g.up.cmd.Process.Pid)
	g.up.kill()
	eventually(t, "the children are gone", func() error {
		for id, name := range family {
			if syscall.Kill(id, 0) == nil {
				return fmt.Errorf("%d (%s) is there", id, name)
			}
		}
		return nil
	})
}

// TestStartErrorsNameTheRemedy: a start that cannot work ends with one sentence, before anything runs.
func TestStartErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	busy := taken.Addr().String()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"up", "--listen-address", busy}, []string{busy + " is taken", "--listen-address"}},
		{[]string{"up", "--listen-address", freeAddress(t), "--admin-address", busy}, []string{busy + " is taken", "--admin-address"}},
		{[]string{"up", "--envoy", "/nowhere/envoy"}, []string{"no Envoy found at /nowhere/envoy"}},
		{[]string{"up", "--config", "/nowhere.yaml"}, []string{"/nowhere.yaml"}},
		{[]string{"up", "--engine", "steam"}, []string{"steam", "use sim"}},
		{[]string{"up", "--listen-address", freeAddress(t), "--admin-address", freeAddress(t), "--model-dir", "/nowhere"}, []string{"/nowhere", "does not exist"}},
		{[]string{"up", "--log-level", "loud"}, []string{"--log-level", "debug"}},
		{[]string{"agent", "--config", configFile(t, "models: [{name: m, path: 'builtin:sim'}]")}, []string{"needs a bus", "--bus"}},
		{[]string{"explain", "--admin-address", busy + "1"}, []string{"admin"}},
	} {
		args := c.args
		if args[0] == "up" && args[1] != "--envoy" {
			args = append(args, "--envoy", envoyPath(t))
		}
		out, err := exec.Command(binary, args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%v: %v, want exit status 1:\n%s", c.args, err, out)
		}
		for _, want := range c.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v does not mention %q:\n%s", c.args, want, out)
			}
		}
	}
}

// TestExplainFindsDecisions: the command explains a decision by its id, and the newest one without an id.
func TestExplainFindsDecisions(t *testing.T) {
	t.Parallel()
	g := up(t)
	r := g.chat([]message{{"user", strings.Repeat("Explain the tides. ", 30)}}, 4)
	for _, args := range [][]string{{"explain", r.decision, "--admin-address", g.admin}, {"explain", "--admin-address", g.admin}} {
		out, err := exec.Command(binary, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		for _, want := range []string{r.decision, "sim-0", "sim-1"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v does not mention %q:\n%s", args, want, out)
			}
		}
	}
	out, err := exec.Command(binary, "explain", "nothing", "--admin-address", g.admin).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no decision") {
		t.Errorf("an unknown id: %v\n%s", err, out)
	}
}

// TestConfigurationReload: a changed configuration takes effect without a restart; a wrong one does not. Another number of engines starts
// or drains engines. A key that waits for a restart is shown until it has its old value again.
func TestConfigurationReload(t *testing.T) {
	t.Parallel()
	text := "gateway: {maxBodyBytes: 4096}\nmodels: [{name: sim, path: 'builtin:sim', launch: [{engine: sim}]}]\n"
	file := configFile(t, text)
	g := up(t, "--config", file)
	long := []byte(`{"model":"sim","max_tokens":1,"prompt":"` + strings.Repeat("x", 5000) + `"}`)
	if r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", long); err != nil || r.status != 413 {
		t.Fatalf("status %d, %v", r.status, err)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte("apiVersion: stator.dev/v1alpha1\nkind: Stator\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("gateway: {maxBodyBytes: many}\n")
	eventually(t, "the wrong file is refused", func() error {
		if !strings.Contains(g.up.out.String(), "the last one stays in force") {
			return errNotYet
		}
		return nil
	})
	write(strings.Replace(text, "4096", "65536", 1))
	eventually(t, "the new limit is in force", func() error {
		r, err := g.send(t.Context(), http.MethodPost, "/v1/completions", long)
		if err == nil && r.status != 200 {
			err = fmt.Errorf("status %d: %s", r.status, r.body)
		}
		return err
	})

	ready := func(n int) error {
		got := 0
		for _, r := range g.fleet() {
			if r.State == "ready" {
				got++
			}
		}
		if got != n || len(g.fleet()) != n {
			return fmt.Errorf("%d of %d workers are ready, want %d", got, len(g.fleet()), n)
		}
		return nil
	}
	running := func() (string, error) {
		out, err := exec.Command(binary, "validate", "--config", file, "--running", g.admin).CombinedOutput()
		return string(out), err
	}
	more := strings.Replace(text, "{engine: sim}", "{engine: sim, count: 3}", 1)
	write(more + "prompts: {memoryBytes: 1048576}\n")
	eventually(t, "three engines run", func() error { return ready(3) })
	eventually(t, "it shows that a restart is needed", func() error {
		if out, err := running(); err == nil || !strings.Contains(out, "needs a restart for prompts.memoryBytes") {
			return fmt.Errorf("%s: %w", out, orNotYet(err))
		}
		page, err := g.read("/readyz")
		if err != nil || !strings.Contains(page, "a restart is needed for prompts.memoryBytes") {
			return fmt.Errorf("%s: %w", page, orNotYet(err))
		}
		return nil
	})
	// Engines do not know the new name: they get the model's own.
	write(strings.Replace(text, "name: sim,", "name: sim, aliases: [gpt-x],", 1))
	eventually(t, "the alias is served", func() error {
		r, err := g.send(t.Context(), http.MethodPost, "/v1/chat/completions",
			[]byte(`{"model": "gpt-x", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}`))
		if err == nil && r.status != 200 {
			err = fmt.Errorf("status %d: %s", r.status, r.body)
		}
		return err
	})
	write(text)
	eventually(t, "one engine is left", func() error { return ready(1) })
	eventually(t, "the content is in force", func() error {
		out, err := running()
		if err != nil || !strings.Contains(out, "has this content in force") {
			return fmt.Errorf("%s: %w", out, orNotYet(err))
		}
		return nil
	})
}
