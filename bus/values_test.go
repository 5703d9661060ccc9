package bus

import (
	"math"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// editedWorker returns a valid worker's message after an edit.
func editedWorker(edit func(*busv1.Worker)) *busv1.Worker {
	m := workerMessage(&sampleWorker)
	edit(m)
	return m
}

// editedSnapshot returns a valid snapshot's reply after an edit.
func editedSnapshot(edit func(*busv1.SnapshotReply)) *busv1.SnapshotReply {
	m := snapshotReply(&sampleSnapshot, &busv1.SnapshotRequest{})
	edit(m)
	return m
}

// TestValuesOutOfRange: each message with one value out of range is refused, with an error that names the
// value and the accepted range.
func TestValuesOutOfRange(t *testing.T) {
	worker := func(m *busv1.Worker) error { _, err := decodeWorker(&busv1.Worker{}, encode(m)); return err }
	load := func(m *busv1.Load) error { _, err := decodeLoad(&busv1.Load{}, encode(m)); return err }
	plan := func(m *busv1.Plan) error { _, err := decodePlan(&busv1.Plan{}, encode(m)); return err }
	spent := func(tenants ...*busv1.TenantSpent) error {
		_, err := decodeSpent(&busv1.Spent{}, encode(&busv1.Spent{Tenants: tenants}))
		return err
	}
	snapshot := func(m *busv1.SnapshotReply) error { _, _, err := readSnapshot(m); return err }

	for want, err := range map[string]error{
		"role is 9: it must be at most 3":                     worker(editedWorker(func(m *busv1.Worker) { m.Role = 9 })),
		"state is 9: it must be at most 3":                    worker(editedWorker(func(m *busv1.Worker) { m.State = 9 })),
		"blocks is 2147483648: it must be at most 2147483647": worker(editedWorker(func(m *busv1.Worker) { m.Blocks = 1 << 31 })),
		"block size is 65537: it must be at most 65536":       worker(editedWorker(func(m *busv1.Worker) { m.BlockSize = 1<<16 + 1 })),
		"max_model_len is 1073741825: it must be at most 1073741824": worker(editedWorker(func(m *busv1.Worker) {
			m.MaxModelLen = fleet.MaxContext + 1
		})),
		"max_requests is 1048577: it must be at most 1048576": worker(editedWorker(func(m *busv1.Worker) { m.MaxRequests = fleet.MaxSlots + 1 })),

		"rank is 1024: it must be less than 1024":                                       load(&busv1.Load{Rank: fleet.MaxRanks}),
		"KV usage is 1.5: it must lie between 0 and 1":                                  load(&busv1.Load{KvUsage: 1.5}),
		"1001 tokens of an answer in a step: there must be at most 1000":                load(&busv1.Load{StepTokens: 1001}),
		"loads of tier 0: tiers are 1 to 3":                                             load(&busv1.Load{Tiers: []*busv1.TierLoad{{TokenNanoseconds: 1}}}),
		"loads of tier 4: tiers are 1 to 3":                                             load(&busv1.Load{Tiers: []*busv1.TierLoad{{Tier: 4, TokenNanoseconds: 1}}}),
		"tier 1 loads in -1ns and 0s a token: times are 0 to 1h0m0s":                    load(&busv1.Load{Tiers: []*busv1.TierLoad{{Tier: 1, WaitNanoseconds: -1}}}),
		"the memory of other nodes loads in 0s and -1ns a token: times are 0 to 1h0m0s": load(&busv1.Load{Peers: &busv1.TierLoad{TokenNanoseconds: -1}}),
		"KV usage is NaN: it must lie between 0 and 1":                                  load(&busv1.Load{KvUsage: math.NaN()}),
		"2147483648 running and 0 waiting requests: there must be at most 1073741824":   load(&busv1.Load{Running: 1 << 31}),

		"pool 0: role is 9: it must be at most 3":                                plan(&busv1.Plan{Pools: []*busv1.Pool{{Role: 9}}}),
		"pool 0: a start takes 86400001 ms: there must be at most 86400000":      plan(&busv1.Plan{Pools: []*busv1.Pool{{StartUpMilliseconds: 86_400_001}}}),
		"pool 0: 0 replicas, 2147483648 ready: there must be at most 2147483647": plan(&busv1.Plan{Pools: []*busv1.Pool{{Ready: 1 << 31}}}),

		"an access log was closed -1ns ago: it must be in the past": func() error {
			_, err := decodeGone(&busv1.Gone{}, encode(goneMessage(&Gone{Ago: -1})))
			return err
		}(),

		`tenant "a" has used 1152921504606846977 and 0 tokens: sums are at most 1152921504606846976`: spent(
			&busv1.TenantSpent{Tenant: "a", DayTokens: 1<<60 + 1}),
		`tenant "a" is there twice, longer than 128 bytes, or no UTF-8`:    spent(&busv1.TenantSpent{Tenant: "a"}, &busv1.TenantSpent{Tenant: "a"}),
		`tenant "\xff" is there twice, longer than 128 bytes, or no UTF-8`: spent(&busv1.TenantSpent{Tenant: "\xff"}),

		"a snapshot without an id": snapshot(editedSnapshot(func(m *busv1.SnapshotReply) { m.Snapshot.Id = 0 })),
		"a dump of 1073741825 bytes: it must have at most 1073741824": snapshot(editedSnapshot(func(m *busv1.SnapshotReply) {
			m.Snapshot.Size = maxDump + 1
		})),
		"a first page of 4 bytes of a dump of 5": snapshot(editedSnapshot(func(m *busv1.SnapshotReply) { m.Snapshot.Size = 5 })),
		"the engine's clock is +Inf":             snapshot(editedSnapshot(func(m *busv1.SnapshotReply) { m.Snapshot.Seconds = math.Inf(1) })),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := snapshot(editedSnapshot(func(m *busv1.SnapshotReply) { m.Snapshot.BlockSize = 1<<16 + 1 })); err == nil {
		t.Error("a snapshot of blocks of 65,537 tokens is accepted")
	}
}

// TestRequestsNeedAReplySubject: an agent answers on subjects of its node, and to inboxes of routers of earlier releases. It may write
// to its leases and events too, but not because a request names them.
func TestRequestsNeedAReplySubject(t *testing.T) {
	b := &Bus{cfg: Config{Cluster: "test"}}
	var request busv1.ReplayRequest
	for reply, want := range map[string]string{
		"":                            "a request must name a reply subject",
		"$KV.stator-test-workers.a.w": "is none for answers",
		"stator.v1.test.kv.a":         "is none for answers",
		"stator.v1.test.answer.b.x":   "is none for answers",
		"stator.v1.test.answer.a.x":   "",
		"_INBOX.router.x":             "",
	} {
		err := b.decodeRequest(&request, "a.w", &nats.Msg{Reply: reply})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", reply, err)
		}
	}
	if err := b.decodeRequest(&request, "w", &nats.Msg{Reply: b.newAnswer("w")}); err != nil {
		t.Errorf("an agent without a node: %v", err)
	}
	if err := b.decodeRequest(&request, "a.w", &nats.Msg{Reply: b.newAnswer("a.w"), Data: []byte{1, 0x9f}}); err == nil {
		t.Error("bytes that are no message are accepted")
	}
}

// TestWorkerKeepsItsMaxModelLen: the length and the adapters survive the way over the bus. An agent of before these fields
// sends none, and its worker has none.
func TestWorkerKeepsItsMaxModelLen(t *testing.T) {
	for _, length := range []int{0, 1, fleet.MaxContext} {
		sent := sampleWorker
		sent.MaxModelLen = length
		sent.Adapters, _ = fleet.NewAdapters(nil)
		got, err := decodeWorker(&busv1.Worker{}, encode(workerMessage(&sent)))
		if err != nil || got != sent {
			t.Errorf("worker %+v became %+v, %v", sent, got, err)
		}
	}

	const older = "\x0a\x01w\x12\x01m\x22\x0b10.0.0.1:80\x38\x01" // name, model, address and ranks
	got, err := decodeWorker(&busv1.Worker{}, []byte(older))
	if want := (fleet.Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1}); err != nil || got != want {
		t.Errorf("the worker of an older agent is %+v, %v", got, err)
	}
}
