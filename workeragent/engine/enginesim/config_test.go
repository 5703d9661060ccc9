package enginesim_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stator-project/stator/workeragent/engine/enginesim"
)

// TestConfigurationErrorsAreReportedTogether checks that New reports all settings that it cannot use.
func TestConfigurationErrorsAreReportedTogether(t *testing.T) {
	_, err := enginesim.New(enginesim.Config{Replay: "ipc://replay", Rank: -1})
	if err == nil {
		t.Fatal("an empty configuration is accepted")
	}
	for _, want := range []string{
		"model name is empty", "model and vocabulary are required", `endpoint "ipc://replay" must look like tcp://127.0.0.1:5557`,
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
