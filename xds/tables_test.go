package xds

import (
	"strings"
	"testing"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/internal/fleet"
)

// Each Envoy gets listeners with its node id, whether it connects before the first push or after it, and all else is the
// same. A node id that two Envoys have is found, and the tables of an Envoy go with its last stream.
func TestTablesOfNodes(t *testing.T) {
	s := Settings{Listen: "127.0.0.1:80", TrustedListen: "127.0.0.1:81", ExtProc: []string{"127.0.0.1:9002"}, Models: []string{"m"}, SessionHeaders: []string{"x"}}
	r, err := Build(s, fleet.New(fleet.Hooks{}).Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	x := newTables()
	join := func(stream int64, node string, want bool) {
		t.Helper()
		if shared, err := x.join(streamID{number: stream}, edge{node, newestVersion}); shared != want || err != nil {
			t.Errorf("stream %d of %s: shared %v, want %v, %v", stream, node, shared, want, err)
		}
	}
	join(1, "edge-early", false)
	if err := x.setTables(s, r); err != nil {
		t.Fatal(err)
	}
	join(2, "edge-late", false)
	join(3, "edge-late", true)
	join(3, "edge-late", false) // a further message of the same stream
	join(4, "edge-late", false) // it is known already
	x.leave(streamID{number: 4})

	routes := map[string]bool{}
	for _, node := range []string{"edge-early", "edge-late"} {
		snap, err := x.cache.GetSnapshot(edge{node, newestVersion}.key())
		if err != nil {
			t.Fatal(err)
		}
		listeners := snap.GetResources(resourcev3.ListenerType)
		if len(listeners) != 2 {
			t.Errorf("%s has %d listeners", node, len(listeners))
		}
		for name, l := range listeners {
			// Once for decisions, once for the access log.
			if raw, _ := proto.Marshal(l); strings.Count(string(raw), node) != 2 {
				t.Errorf("listener %s of %s does not carry its node id twice", name, node)
			}
		}
		for _, m := range snap.GetResources(resourcev3.RouteType) {
			routes[string(bytesOf(m))] = true
		}
	}
	if len(routes) != 1 {
		t.Errorf("%d kinds of routes", len(routes))
	}

	x.leave(streamID{number: 2})
	if _, err := x.cache.GetSnapshot(edge{"edge-late", newestVersion}.key()); err != nil {
		t.Error("the tables went with the first of two streams")
	}
	x.leave(streamID{number: 3})
	if _, err := x.cache.GetSnapshot(edge{"edge-late", newestVersion}.key()); err == nil {
		t.Error("the tables of an Envoy that has gone are kept")
	}
}
