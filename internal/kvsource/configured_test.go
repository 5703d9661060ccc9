package kvsource_test

import (
	"testing"

	"github.com/stator-project/stator/internal/kvsource"
)

// TestConfiguredSocketRaisesPorts: rank n publishes at the ports of rank 0 plus n, or at paths that end in _dpn.
func TestConfiguredSocketRaisesPorts(t *testing.T) {
	for _, tt := range []struct {
		events, replay string
		rank           int
		want           kvsource.Socket
		err            string
	}{
		{"tcp://a:5557", "tcp://a:6000", 0, kvsource.Socket{Endpoint: "tcp://a:5557", Replay: "tcp://a:6000"}, ""},
		{"tcp://a:5557", "tcp://a:6000", 3, kvsource.Socket{Rank: 3, Endpoint: "tcp://a:5560", Replay: "tcp://a:6003"}, ""},
		{"bind:tcp://*:5557", "", 1, kvsource.Socket{Rank: 1, Endpoint: "tcp://*:5558", Bind: true}, ""},
		{"http://a:8000/kv_cache_events", "", 0, kvsource.Socket{Endpoint: "http://a:8000/kv_cache_events"}, ""},
		{"ipc:///run/kv", "ipc:///run/replay", 0, kvsource.Socket{Endpoint: "ipc:///run/kv", Replay: "ipc:///run/replay"}, ""},
		{"ipc:///run/kv", "ipc:///run/replay", 2, kvsource.Socket{Rank: 2, Endpoint: "ipc:///run/kv_dp2", Replay: "ipc:///run/replay_dp2"}, ""},
		{"tcp://a:1", "tcp://a", 1, kvsource.Socket{}, `kvReplay: "tcp://a" has no port to raise for rank 1: use tcp://host:port`},
	} {
		got, err := kvsource.ConfiguredSocket(tt.events, tt.replay, tt.rank)
		if err != nil || tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s rank %d: error %v, want %s", tt.events, tt.rank, err, tt.err)
			}
			continue
		}
		if got != tt.want {
			t.Errorf("%s rank %d: %+v", tt.events, tt.rank, got)
		}
	}

	if !kvsource.Discovered("auto") || kvsource.Discovered("tcp://auto:1") {
		t.Error("only auto means that the engine is asked")
	}
}
