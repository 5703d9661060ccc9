package session

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/test/testkit"
)

// pythonFolder has the package that vLLM loads.
const pythonFolder = "../../python/stator_connector"

// python returns a command that runs the tests of the Python package whose files match a pattern.
func python(t *testing.T, pattern string, env ...string) *exec.Cmd {
	t.Helper()
	program, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3, so the Python side of the protocol is not tested")
	}
	folder, err := filepath.Abs(pythonFolder)
	if err != nil {
		t.Fatal(err)
	}
	readPython(t, folder)
	cmd := exec.CommandContext(t.Context(), program, "-B", "-m", "unittest", "discover", "-v", "-s", "tests", "-p", pattern)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(folder, "src"))
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// readPython reads all Python sources, so that the test's result is cached until one changes.
func readPython(t *testing.T, folder string) {
	t.Helper()
	for _, pattern := range []string{"src/stator_connector/*.py", "tests/*.py"} {
		paths, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, " matches no file: ", err)
		}
		for _, path := range paths {
			if _, err := os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPythonUnits runs the tests that need no store.
func TestPythonUnits(t *testing.T) {
	if out, err := python(t, "test_*.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPythonWithStore runs a Python engine against this server. Blocks that one language writes, the other one reads. A second store
// ends while Python has a session with it.
func TestPythonWithStore(t *testing.T) {
	s := serve(t, 32, func(c *Config) { c.Leases = 2 })
	put(t, s.dial(t, nil), keysFrom(0, 4))
	text, err := json.Marshal(layout)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ended := make(chan error, 1)
	started := false
	all := t // the context of a subtest ends before its store

	t.Run("ending", func(t *testing.T) {
		written := make(chan struct{}, 64)
		ending := serve(t, 8, nil)
		other := ending.dial(t, func(_ fleet.Tier, stored bool, _ []block.Key) {
			if stored {
				written <- struct{}{}
			}
		})
		if _, _, _, err := other.Find(t.Context(), keysFrom(0, 1), 0); err != nil { // names the block that Python writes
			t.Fatal(err)
		}
		run := python(all, "store_*.py", "STATOR_TEST_SOCKET="+s.path, "STATOR_TEST_ENDING_SOCKET="+ending.path,
			"STATOR_TEST_LAYOUT="+string(text))
		run.Stdout = &out
		run.Stderr = &out
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		started = true
		go func() { ended <- run.Wait() }()
		select {
		case <-written:
		case err := <-ended:
			t.Error("Python ended before it wrote to the second store")
			ended <- err
		}
	})

	if !started {
		return // the failure is reported
	}
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	c := s.dial(t, nil)
	keys := keysFrom(100, 6)
	l, err := c.Fetch(t.Context(), keys)
	if err != nil || len(l.Slots) != len(keys) {
		t.Fatal(l, err)
	}
	for k, i := range l.Slots {
		if !bytes.Equal(c.Slot(i)[:layout.Bytes()], content(keys[k])) {
			t.Errorf("block %d of Python has other bytes", k)
		}
	}
	testkit.Eventually(t, "the blocks that Python has pinned are pinned", func() bool { return s.store.Stats().Pinned == 2 })
}
