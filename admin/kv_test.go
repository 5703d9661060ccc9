package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/direct"
	"github.com/stator-project/stator/kvbm/node"
	"github.com/stator-project/stator/kvbm/peers"
	"github.com/stator-project/stator/kvbm/pool"
	"github.com/stator-project/stator/kvbm/session"
)

// fakeStore has a status, and records the last call.
type fakeStore struct {
	status node.Status
	called string
	err    error
}

func (f *fakeStore) Model() string { return f.status.Model }

func (f *fakeStore) Status() node.Status { return f.status }

func (f *fakeStore) Pin(_ context.Context, b node.Blocks, ttl time.Duration) (int, error) {
	f.called = fmt.Sprintf("pin %v%v %v", b.Keys, b.Hashes, ttl)
	return 1, f.err
}

func (f *fakeStore) Prefetch(_ context.Context, b node.Blocks) (int, error) {
	f.called = fmt.Sprintf("prefetch %v%v", b.Keys, b.Hashes)
	return 2, f.err
}

func (f *fakeStore) Flush(_ context.Context, tier string) (map[fleet.Tier]int, error) {
	f.called = "flush " + tier
	return map[fleet.Tier]int{fleet.Host: 3, fleet.Disk: 5}, f.err
}

// exampleStores are one with engines and a bucket that refuses its key, one whose disk is full, and one without engines.
var exampleStores = []admin.KVStore{
	&fakeStore{status: node.Status{
		Model: "sim", State: node.Serving, HostBytes: 1 << 20, ReadyBytes: 1 << 20, Quarantined: 2, Refused: 1,
		Layout: block.Layout{
			Model: "sim", Layers: 1, PageTokens: 16, Outer: 2, Inner: 32, DType: "float16", TPSize: 1, Hashing: "simulated, seed 0",
		},
		Store: kvbm.Stats{
			Slots: pool.Stats{Reset: 100, Active: 10, Inactive: 400, Quarantined: 2, Pinned: 7}, Committed: 900, Found: 300, Fetched: 250,
		},
		Tiers: []node.TierStatus{
			{Tier: "peer", Health: node.Failing, Reason: "1 of 2 nodes do not answer", Blocks: 300, Errors: 2, TierStats: kvbm.TierStats{Loaded: 90}},
			{Tier: "disk", Health: node.Degraded, Blocks: 850, Room: 4000, Pinned: 7, Errors: 1, Reason: "read block 00ff: input/output error",
				TierStats: kvbm.TierStats{Copied: 880, Dropped: 3, Loaded: 70, Waiting: 5}},
			{Tier: "external", Health: node.Failing, Reason: "the store refuses the access key \x1b: check AWS_ACCESS_KEY_ID", Blocks: 12, Errors: 40,
				TierStats: kvbm.TierStats{Copied: 12, Loaded: 4, Waiting: 1}},
		},
		PeerAddress: "10.0.0.1:7600", UnusedPeers: 1,
		Peers: []peers.Status{
			{Address: "10.0.0.1:7600", State: peers.Self},
			{Address: "10.0.0.2:7600", Node: "node-b", State: peers.Usable, Blocks: 300},
			{Address: "node-c:7600", Node: "node-c", State: peers.Failing, Reason: "connection refused: the token is another one (\x1b)"},
			{Address: "10.0.0.4:7600", State: peers.Waiting},
		},
		Engines: []session.Engine{{Name: "sim-0", PID: 4711, Leases: 1}, {Name: "sim-1", PID: 4712}},
		NIXL: &direct.Stats{
			PID: 4713, Restarts: 2, Fences: 1, Held: 3, Transfers: direct.Transfers{NIXLOK: 40, NIXLFailed: 2, TCPOK: 5, TCPFailed: 1}, Peers: []direct.PeerStats{
				{Address: "10.0.0.2:7700", Transport: "nixl"}, {Address: "10.0.0.3:7700", Transport: "tcp", Reason: "the peer answers no calls"}, {Address: "10.0.0.4:7700"},
			},
		},
	}},
	&fakeStore{status: node.Status{Model: "big", State: node.Failed, Reason: "open the disk tier of KV blocks: no space left on device"}},
	&fakeStore{status: node.Status{Model: "idle", State: node.Waiting}},
}

// call sends a POST with a body.
func call(h http.Handler, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// TestKVCalls: calls reach the store of their model, and the answer has what came of it.
func TestKVCalls(t *testing.T) {
	store, other := &fakeStore{status: node.Status{Model: "sim"}}, &fakeStore{status: node.Status{Model: "other"}}
	h := admin.Handler(admin.Sources{KV: []admin.KVStore{other, store}})
	const key = "00112233445566778899aabbccddeeff"
	for _, c := range []struct{ path, body, called, answer string }{
		{"/kv/pin", `{"model": "sim", "keys": ["` + key + `"], "hashes": [18446744073709551615, "0xff", "017"], "ttl": "90m"}`,
			"pin [" + key + "][18446744073709551615 255 17] 1h30m0s", `{"named":4,"pinned":1}`},
		{"/kv/pin", `{"model": "sim", "hashes": [1], "ttl": "0"}`, "pin [][1] 0s", `{"named":1,"pinned":1}`},
		{"/kv/prefetch", `{"model": "sim", "hashes": [1, 2, 3]}`, "prefetch [][1 2 3]", `{"named":3,"in_host_memory":2}`},
		{"/kv/flush", `{"model": "sim"}`, "flush ", `{"left":{"disk":5,"host":3}}`},
		{"/kv/flush", `{"model": "sim", "tier": "disk"}`, "flush disk", `{"left":{"disk":5,"host":3}}`},
	} {
		store.called = ""
		rec := call(h, c.path, c.body)
		if rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != c.answer || store.called != c.called {
			t.Errorf("%s %s: %d %s, called %q", c.path, c.body, rec.Code, rec.Body, store.called)
		}
	}
	if other.called != "" {
		t.Errorf("the store of another model was called: %s", other.called)
	}

	// If there is one store, its model may be left out.
	if rec := call(admin.Handler(admin.Sources{KV: []admin.KVStore{store}}), "/kv/flush", `{}`); rec.Code != 200 {
		t.Errorf("without a model: %d %s", rec.Code, rec.Body)
	}
}

// TestRefusedKVCalls: a wrong call gets a status and a text that names what to change, and nothing is called.
func TestRefusedKVCalls(t *testing.T) {
	store := &fakeStore{status: node.Status{Model: "sim"}}
	h := admin.Handler(admin.Sources{KV: []admin.KVStore{store}})
	const pin = `{"model": "sim", "hashes": [1], "ttl": "1h"}`
	for _, c := range []struct {
		body    string
		headers []string
		status  int
		text    string
	}{
		{pin, []string{"Origin", "http://127.0.0.1:8081"}, 403, "stator kv"},
		{pin, []string{"Sec-Fetch-Site", "none"}, 403, "stator kv"},
		{pin, []string{"Content-Type", "text/plain"}, 415, "application/json"},
		{`{"model": "sim", "hashes": [1], "ttl": "soon"}`, nil, 400, `ttl "soon"`},
		{`{"model": "sim", "hashes": [1]}`, nil, 400, `ttl ""`},
		{`{"model": "sim", "hashes": [-1], "ttl": "1h"}`, nil, 400, "-1 is no hash"},
		{`{"model": "sim", "hashes": ["ff"], "ttl": "1h"}`, nil, 400, `"ff" is no hash`},
		{`{"model": "sim", "keys": ["ff"], "ttl": "1h"}`, nil, 400, "32 hexadecimal digits"},
		{`{"model": "sim", "prompt": "hi", "ttl": "1h"}`, nil, 400, `unknown field "prompt"`},
		{pin + pin, nil, 400, "more than one JSON object"},
		{`{"model": "sim", "keys": ["` + strings.Repeat("f", 1<<20) + `"]}`, nil, 400, "request body too large"},
		{`{"model": "sum", "hashes": [1], "ttl": "1h"}`, nil, 404, `no KV store of model "sum": there is one of sim`},
	} {
		rec := call(h, "/kv/pin", c.body, c.headers...)
		if rec.Code != c.status || !strings.Contains(rec.Body.String(), c.text) {
			t.Errorf("%.80s %s: %d %s", c.body, c.headers, rec.Code, rec.Body)
		}
	}
	if store.called != "" {
		t.Errorf("the store was called: %s", store.called)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/kv/flush", nil))
	if rec.Code != 405 {
		t.Errorf("GET: %d", rec.Code)
	}
	if rec := call(admin.Guard(h, func(string) bool { return false }), "/kv/flush", `{}`); rec.Code != 401 {
		t.Errorf("without the token: %d", rec.Code)
	}
	if rec := call(admin.Handler(admin.Sources{KV: []admin.KVStore{}}), "/kv/flush", `{}`); !strings.Contains(rec.Body.String(), "hostBytes") {
		t.Errorf("without a store: %d %s", rec.Code, rec.Body)
	}

	for err, status := range map[error]int{
		node.ErrBounds: 400, kvbm.ErrNoFlush: 400, node.ErrClosed: 503, node.ErrBusy: 503, errors.New("the disk"): 500,
	} {
		store.err = fmt.Errorf("x: %w", err)
		if rec := call(h, "/kv/pin", pin); rec.Code != status || !strings.Contains(rec.Body.String(), err.Error()) {
			t.Errorf("%v: %d %s", err, rec.Code, rec.Body)
		}
	}
}
