package testkit

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Process starts this test's binary again with more environment variables, NAME=VALUE, by which its TestMain does something else. It
// returns when the process has printed a line. The process is killed at the end of the test, and its standard input ends with this process.
func Process(t testing.TB, env ...string) (cmd *exec.Cmd, line string) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	line, err = bufio.NewReader(out).ReadString('\n')
	line = strings.TrimSpace(line)
	if err != nil || line == "" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	return cmd, line
}
