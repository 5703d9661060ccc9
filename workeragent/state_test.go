package workeragent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/workeragent/engine"
)

// surviving is the launch of an engine of this test binary that survives its agent.
func surviving(name string, words ...string) engine.Launch {
	l := exec(name, append(words, "{port}")...)
	l.Survive = true
	l.Self = os.Args[0] // which runs as a holder, see TestMain
	return l
}

// testState is a folder for surviving engines, which are stopped when the test ends.
func testState(t *testing.T) (s *State, dir string) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only on Linux engines survive their agent")
	}
	dir = t.TempDir()
	s, err := OpenState(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		again, err := OpenState(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if err := again.StopEngines(t.Context(), nil, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	return s, dir
}

// TestEnginesAreAdopted: an agent finds the engines of an earlier one, in the same epoch. One whose command has changed
// is replaced, and one that is not wanted any more is stopped.
func TestEnginesAreAdopted(t *testing.T) {
	state, _ := testState(t)
	first := run(t, Config{State: state}, surviving("same", "obey"), surviving("changed", "obey"), surviving("gone", "obey"))
	ports := first.agent.cfg.Site
	before, pids := map[string]fleet.Worker{}, map[string]int{}
	for _, name := range []string{"same", "changed", "gone"} {
		before[name] = first.await(name, fleet.Ready, 0)
		pids[name] = first.agent.Processes()[name]
	}
	first.stop()
	for name, pid := range pids {
		if !running(pid) {
			t.Errorf("%s did not survive its agent", name)
		}
	}

	second := runAt(t, ports, Config{State: state}, surviving("same", "obey"), surviving("changed", "stubborn"))
	second.await("changed", fleet.Ready, before["changed"].Epoch)
	if after := second.await("same", fleet.Ready, 0); after != before["same"] || second.agent.Processes()["same"] != pids["same"] {
		t.Errorf("adopted %+v, was %+v", after, before["same"])
	}
	for _, name := range []string{"changed", "gone"} {
		testkit.Eventually(t, "the old process of "+name+" is gone", func() bool { return !running(pids[name]) })
	}

	// An adopted engine that ends is started again.
	post(before["same"].Address, "/exit", "")
	second.await("same", fleet.Ready, before["same"].Epoch)
	if !second.log.Contains(`msg="engine ended; starting it again" worker=same err="it has ended; its output has the reason"`) ||
		!second.log.Contains(`last_line="the process ended: exit status 3"`) {
		t.Error("the log does not have the reason")
	}
	second.stop()
}

// TestStateRefusesAnotherAgent: two agents with one folder would both adopt its engines.
func TestStateRefusesAnotherAgent(t *testing.T) {
	state, dir := testState(t)
	if other, err := OpenState(dir); err == nil || other != nil {
		t.Errorf("opened twice: %v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is open to others: %v, %v", info.Mode(), err)
	}
	if !strings.HasPrefix(state.Sockets(), dir) {
		t.Errorf("sockets in %s", state.Sockets())
	}
}

// TestBrokenRecords: a record that cannot be read, or that is of a process which has ended, is as none. A process with
// the id of an earlier one is never stopped for it.
func TestBrokenRecords(t *testing.T) {
	state, dir := testState(t)
	for name, text := range map[string]string{
		"empty": "", "text": "{", "large": strings.Repeat(" ", 2*maxRecord) + "{}",
		"other": fmt.Sprintf(`{"holder":{"pid":%d,"started":"another boot/1"},"pid":%d,"port":1,"epoch":1,"command":""}`, os.Getpid(), os.Getpid()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name+recordSuffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, found, ok := state.find(name); ok {
			t.Errorf("%s: found %v", name, found)
		}
	}
	if err := state.StopEngines(t.Context(), nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*"+recordSuffix)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if child.LastLines(filepath.Join(dir, "none.log"), false) != nil {
		t.Error("an engine without output has a last line")
	}
}

// TestSurvivingNeedsAState: without a folder the agent could not find its engines again.
func TestSurvivingNeedsAState(t *testing.T) {
	_, err := New(Config{Launches: []engine.Launch{surviving("a", "obey")}, Site: testSite(t), Metrics: prometheus.NewRegistry()})
	if err == nil || !strings.Contains(err.Error(), "launch a: its engine is to survive the agent, which needs --state-dir") {
		t.Error(err)
	}
}

// TestStaleSockets: the sockets of engines that ended with a killed agent are removed, and the sockets of surviving engines stay.
// If a record cannot be read, all stay.
func TestStaleSockets(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.save("w", engineRecord{Port: 20001}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, name := range []string{"20001-inproc-events", "20002-inproc-events", "20002-options.yaml", "other"} {
		if err := os.WriteFile(filepath.Join(s.Sockets(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	left := func() (names []string) {
		s, err := OpenState(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		entries, err := os.ReadDir(s.Sockets())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	broken := filepath.Join(dir, "v.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := left(); len(got) != 4 {
		t.Errorf("beside a record that cannot be read: %q", got)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if got := left(); !slices.Equal(got, []string{"20001-inproc-events", "other"}) {
		t.Errorf("left %q", got)
	}
}
