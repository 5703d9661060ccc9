package enginesim_test

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stator-project/stator/enginesim"
)

// TestConfigurationErrorsAreReportedTogether checks that New reports all settings that it cannot use.
func TestConfigurationErrorsAreReportedTogether(t *testing.T) {
	_, err := enginesim.New(enginesim.Config{Replay: "udp://replay", Rank: -1})
	if err == nil {
		t.Fatal("an empty configuration is accepted")
	}
	for _, want := range []string{
		"model name is empty", "model and vocabulary are required", `endpoint "udp://replay" must look like tcp://127.0.0.1:5557 or ipc:///run/events.sock`,
		"replay needs events", "rank is -1: it must not be negative",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

// TestTakenSocketIsAnError binds an engine where another program listens. The error names the socket, and the
// sockets that were bound before are closed again.
func TestTakenSocketIsAnError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()

	for want, change := range map[string]func(*enginesim.Config){
		"listen for HTTP: ":                  func(c *enginesim.Config) { c.Listen = address },
		"listen for tcp://" + address + ": ": func(c *enginesim.Config) { c.Events = "tcp://" + address },
	} {
		cfg := enginesim.Config{ModelName: "tiny", Model: letters{}, Vocabulary: letters{}}
		change(&cfg)
		sim, err := enginesim.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := sim.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if sim.Addr() != "" {
			t.Errorf("the HTTP socket is still bound at %s", sim.Addr())
		}
	}
}

// TestUnixSocketsOfEvents binds Unix sockets for events, even if a killed engine has left its own. Another kind of
// file stays.
func TestUnixSocketsOfEvents(t *testing.T) {
	dir := t.TempDir()
	left, err := net.Listen("unix", dir+"/events")
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = left.Close()

	r := start(t, func(c *enginesim.Config) { c.Events, c.Replay = "ipc://"+dir+"/events", "ipc://"+dir+"/replay" })
	if r.EventsEndpoint() != "ipc://"+dir+"/events" || r.ReplayEndpoint() != "ipc://"+dir+"/replay" {
		t.Errorf("events at %s, replay at %s", r.EventsEndpoint(), r.ReplayEndpoint())
	}
	for _, path := range []string{"/events", "/replay"} {
		conn, err := net.Dial("unix", dir+path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}

	file := dir + "/file"
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := enginesim.New(enginesim.Config{ModelName: "tiny", Model: letters{}, Vocabulary: letters{}, Events: "ipc://" + file})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err == nil {
		t.Error("a socket replaced a file")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
