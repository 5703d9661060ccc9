package main

import (
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kvsource"
)

func TestRankEndpoint(t *testing.T) {
	tests := []struct {
		events, replay string
		rank           int
		want           kvsource.Found
		bind           bool
		err            string
	}{
		{"tcp://a:5557", "tcp://a:6000", 0, kvsource.Found{Endpoint: "tcp://a:5557", Replay: "tcp://a:6000"}, false, ""},
		{"tcp://a:5557", "tcp://a:6000", 3, kvsource.Found{Rank: 3, Endpoint: "tcp://a:5560", Replay: "tcp://a:6003"}, false, ""},
		{"bind:tcp://*:5557", "", 1, kvsource.Found{Rank: 1, Endpoint: "tcp://*:5558"}, true, ""},
		{"http://a:8000/kv_cache_events", "", 0, kvsource.Found{Endpoint: "http://a:8000/kv_cache_events"}, false, ""},
		{"ipc:///run/kv", "", 1, kvsource.Found{}, false, `worker w: kvEvents: "ipc:///run/kv" has no port to raise for rank 1: use tcp://host:port`},
		{"tcp://a:1", "tcp://a", 1, kvsource.Found{}, false, `worker w: kvReplay: "tcp://a" has no port to raise for rank 1: use tcp://host:port`},
	}
	for _, tt := range tests {
		got, bind, err := rankEndpoint(fleet.Worker{Name: "w", KVEvents: tt.events, KVReplay: tt.replay}, tt.rank)
		if err != nil || tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s rank %d: error %v, want %s", tt.events, tt.rank, err, tt.err)
			}
			continue
		}
		if got != tt.want || bind != tt.bind {
			t.Errorf("%s rank %d: %+v %v", tt.events, tt.rank, got, bind)
		}
	}
}
