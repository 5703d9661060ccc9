package envoy

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stator-project/stator/test/testkit"
)

// supervise runs a supervisor until the test ends, and returns what Run returns. resources are the
// static ones of Envoy's bootstrap.
func supervise(t *testing.T, path, resources string, ended func()) (s *Supervisor, log *testkit.Log, done <-chan error) {
	t.Helper()

	logger, log := logger()
	log.PrintOnFailure(t)
	s = NewSupervisor(SupervisorConfig{
		Config: Config{
			Path: path, Dir: t.TempDir(), Concurrency: 1, Log: logger,
			Bootstrap: []byte("admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n" + resources),
		},
		DrainTime: time.Second, Hard: context.Background(), Ended: ended,
	})

	result := make(chan error, 1)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		result <- s.Run(context.Background())
	}()
	t.Cleanup(func() { s.Stop(); <-stopped })
	return s, log, result
}

// TestSupervisorRestartsEnvoy kills a ready Envoy: another takes its place, and Stop ends that one.
func TestSupervisorRestartsEnvoy(t *testing.T) {
	var ends atomic.Int32
	resources, _ := proxy(t, "127.0.0.1:1")
	s, log, done := supervise(t, installed(t), resources, func() { ends.Add(1) })

	ready := func() bool { _, err := s.Ready(); return err == nil }
	testkit.Eventually(t, "Envoy is ready", ready)
	if n := s.HealthyMembers("no-such-cluster"); n != 0 {
		t.Errorf("%d healthy members of a cluster that does not exist", n)
	}

	s.mu.Lock()
	first := s.proc.PID()
	s.mu.Unlock()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the first Envoy has ended", func() bool { return ends.Load() == 1 })
	testkit.Eventually(t, "another Envoy is ready", ready)
	if !log.Contains(`level=WARN msg="envoy ended; starting it again" err="envoy: signal: killed" wait=250ms`) {
		t.Error("the log does not have the restart")
	}

	s.Stop()
	if err := <-done; err != nil {
		t.Errorf("after Stop: %v", err)
	}
	if _, err := s.Ready(); err == nil || ends.Load() != 2 {
		t.Errorf("ready %v after %d ends", err == nil, ends.Load())
	}
	if n := s.HealthyMembers("any"); n != 0 {
		t.Errorf("%d healthy members after the end", n)
	}
}

// TestSupervisorGivesUp: a program that ends at once is started three times.
func TestSupervisorGivesUp(t *testing.T) {
	_, _, done := supervise(t, "/bin/false", "", func() {})

	want := "keep envoy running: the process ended 3 times in a row before it was ready: envoy: exit status 1"
	if err := <-done; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestSupervisorThatCannotStart returns the reason of the last attempt.
func TestSupervisorThatCannotStart(t *testing.T) {
	_, _, done := supervise(t, "/no/such/envoy", "", func() {})

	if err := <-done; err == nil || !strings.Contains(err.Error(), "start /no/such/envoy: ") {
		t.Errorf("error %v", err)
	}
}

// TestSupervisorStoppedBeforeRun starts nothing.
func TestSupervisorStoppedBeforeRun(t *testing.T) {
	logger, _ := logger()
	s := NewSupervisor(SupervisorConfig{Config: Config{Path: "/bin/false", Dir: t.TempDir(), Log: logger}, Hard: context.Background()})

	s.Stop()

	if err := s.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
