package bus

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/peers"
)

// The samples have a value in every field.
var (
	sampleWorker = fleet.Worker{
		Name: "w", Model: "m", Role: fleet.Prefill, Address: "10.0.0.1:80", Engine: "vllm", Epoch: 7, Ranks: 2, Weight: 3,
		State: fleet.Ready, KVEvents: "tcp://10.0.0.1:5557", KVReplay: "tcp://10.0.0.1:5558", Blocks: 100, BlockSize: 16, Taints: "a=b,",
		MaxModelLen: 4096, Adapters: "\npoet\n", MaxRequests: 64,
	}
	sampleLoad = Load{
		Worker: "w", Rank: 1, Epoch: 5, Running: 3, Waiting: 2, KVUsage: 0.5, PrefixQueries: 1 << 40, PrefixHits: 7, Gaps: 9, GapTime: 5,
	}
	sampleBatch = kvevent.Batch{Rank: 1, Seconds: 12.5, Unknown: 2, Events: []kvevent.Event{
		{Kind: kvevent.Stored, Tier: fleet.Host, Hashes: []kvevent.EngineHash{1, 2}, Parent: 9, HasParent: true,
			Blocks: []blockhash.Block{3, 1 << 63}, BlockSize: 16, Window: 128, Group: 2},
		{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{7}},
		{Kind: kvevent.Cleared},
	}}
	sampleEvents   = feed.Message{Worker: "w", Rank: 1, Epoch: 5, Seq: 3, Batch: &sampleBatch}
	sampleMark     = feed.Message{Worker: "w", Rank: 1, Epoch: 5, Seq: 4, Mark: true, Batch: &kvevent.Batch{}}
	sampleSnapshot = feed.Snapshot{ID: 1, Epoch: 2, Next: 3, Seconds: 1.5, Complete: true, BlockSize: 16, Dump: []byte("dump")}
	sampleUpdate   = peers.Update{Replica: "r", Seq: 7, Full: true, Digest: 9, Ranks: []peers.RankAmount{
		{Worker: "w", Epoch: 2, Rank: 1, Amount: fleet.Amount{Requests: 3, PrefillTokens: 400, DecodeBlocks: 50, PrefillTime: 6}},
	}}
	sampleEnd = RequestEnd{Booking: "b", Decision: "d", Picked: "p", Served: "s", Upstream: true, Attempts: 2, FirstByte: 3, LastByte: 4, FirstToken: 6,
		ResponseBytes: 5, Status: 503, Broken: true, Left: true, Counted: true, AnswerTokens: 7}
	sampleGone = Gone{Replica: "r", Source: "s", Ago: 5}

	sampleDemand = Demand{Replica: "r", Models: []ModelDemand{{
		Model: "m", Requests: 9, PromptTokens: 900, PromptSquares: 1e5, CachedTokens: 80, Ended: 7, ResponseBytes: 6000, ResponseSquares: 5e7,
		PrefillNanoseconds: 5e6, PrefillTokenNanoseconds: 1.5e4, PrefillsObserved: 40, Waiting: 3, WaitingTokens: 200,
		Streams: 6, Late: 2, Timed: 4, Slow: 1,
	}}}
	samplePlan = plan.Plan{Term: 7, Pools: []plan.Pool{{
		Model: "m", Role: fleet.Decode, Replicas: 3, Ready: 1, Reason: "because",
		Workers: []plan.Planned{{Name: "n.a", Weight: 90}, {Name: "n.b", Weight: 1, Drain: true}}, Unknown: []string{"demand"}, StartUp: 1500 * time.Millisecond,
	}}}
	sampleSlots = Slots{Node: "n", Slots: []Slot{{Name: "n.a", Model: "m", Role: fleet.Prefill, Running: true}, {Name: "n.b", Model: "m"}}}

	sampleDrains = []Drain{{Name: "n", At: time.UnixMilli(5000)}, {Name: "n.a", At: time.UnixMilli(6000), Over: true}}

	sampleKVStores = KVStores{Node: "n", Stores: []KVStore{{Model: "m", Address: "10.0.0.1:7600"}, {Model: "o", Address: "n.example:1"}}}

	sampleSpent = Spent{Day: 20786, Month: 24321, Tokens: map[string][2]int64{"": {1, 2}, "red": {1 << 60, 0}}}

	sampleAssignment = Assignment{
		Term: 7, Node: "n", Run: []string{"n.a"}, Busy: []string{"n.b"}, Free: []string{"n.c"}, Drain: time.Minute,
	}
)

// FuzzMessages: a message that a reader accepts survives the way through the writer and the reader
// again, and a refused batch leaves no events behind.
func FuzzMessages(f *testing.F) {
	f.Add(encode(workerMessage(&sampleWorker)))
	f.Add(encode(loadMessage(&sampleLoad)))
	f.Add(encode(planMessage(samplePlan)))
	f.Add(EncodeBatch(&sampleEvents))
	f.Add(EncodeBatch(&sampleMark))
	f.Add(appendBatch(nil, EncodeBatch(&sampleEvents)))
	f.Add(encodeReplay([][]byte{EncodeBatch(&sampleEvents)}, feed.Position{Epoch: 5, Next: 4, State: feed.Exact}))
	f.Add(encode(snapshotReply(&sampleSnapshot, &busv1.SnapshotRequest{})))
	f.Add(encode(bookingsMessage(&sampleUpdate)))
	f.Add(encode(endsMessage([]RequestEnd{sampleEnd})))
	f.Add(encode(goneMessage(&sampleGone)))
	f.Add(encode(demandMessage(&sampleDemand)))
	f.Add(encode(slotsMessage(&sampleSlots)))
	f.Add(encode(assignmentMessage(&sampleAssignment)))
	f.Add(encode(kvStoresMessage(&sampleKVStores)))
	f.Add(encode(drainsMessage(sampleDrains)))
	f.Add(encode(spentMessage(&sampleSpent)))
	f.Add([]byte{1, 0x9f})

	f.Fuzz(func(t *testing.T, data []byte) {
		checkWorker(t, data)
		checkLoad(t, data)
		checkPlan(t, data)
		checkSnapshot(t, data)
		checkBookings(t, data)
		checkEnds(t, data)
		checkDemand(t, data)
		checkSlots(t, data)
		checkKVStores(t, data)
		checkDrains(t, data)
		checkSpent(t, data)
		checkEvents(t, data)
	})
}

// FuzzReplicaSubject: the end of any subject is a worker and an epoch, or an error. What is read is what was written.
func FuzzReplicaSubject(f *testing.F) {
	b := &Bus{cfg: Config{Cluster: "c"}}
	prefix := b.subject("index", "r") + "."
	for _, text := range []string{"w.7", "node.local.18446744073709551615", "w.", ".7", "7", "w.-1", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		worker, epoch, err := readReplicaSubject(text)
		if err != nil {
			return
		}
		written := strings.TrimPrefix(b.replicaSubject("r", worker, epoch), prefix)
		again, sameEpoch, err := readReplicaSubject(written)
		if worker == "" || again != worker || sameEpoch != epoch || err != nil {
			t.Fatalf("%q has %q and %d, and then %q and %d: %v", text, worker, epoch, again, sameEpoch, err)
		}
	})
}

func checkWorker(t *testing.T, data []byte) {
	w, err := decodeWorker(&busv1.Worker{}, data)
	if err != nil {
		return
	}
	again, err := decodeWorker(&busv1.Worker{}, encode(workerMessage(&w)))
	if err != nil || again != w {
		t.Fatalf("worker %+v became %+v, %v", w, again, err)
	}
}

func checkLoad(t *testing.T, data []byte) {
	l, err := decodeLoad(&busv1.Load{}, data)
	if err != nil {
		return
	}
	again, err := decodeLoad(&busv1.Load{}, encode(loadMessage(&l)))
	if err != nil || again != l {
		t.Fatalf("load %+v became %+v, %v", l, again, err)
	}
}

func checkPlan(t *testing.T, data []byte) {
	p, err := decodePlan(&busv1.Plan{}, data)
	if err != nil {
		return
	}
	again, err := decodePlan(&busv1.Plan{}, encode(planMessage(p)))
	if err != nil || !reflect.DeepEqual(again, p) {
		t.Fatalf("plan %+v became %+v, %v", p, again, err)
	}
}

func checkDemand(t *testing.T, data []byte) {
	d, err := decodeDemand(&busv1.Demand{}, data)
	if err != nil {
		return
	}
	again, err := decodeDemand(&busv1.Demand{}, encode(demandMessage(d)))
	if err != nil || !reflect.DeepEqual(again, d) {
		t.Fatalf("demand %+v became %+v, %v", d, again, err)
	}
}

func checkKVStores(t *testing.T, data []byte) {
	s, err := decodeKVStores(&busv1.KVStores{}, data)
	if err != nil {
		return
	}
	again, err := decodeKVStores(&busv1.KVStores{}, encode(kvStoresMessage(&s)))
	if err != nil || !reflect.DeepEqual(again, s) {
		t.Fatalf("stores %+v became %+v, %v", s, again, err)
	}
}

func checkDrains(t *testing.T, data []byte) {
	list, err := decodeDrains(&busv1.Drains{}, data, time.Now())
	if err != nil {
		return
	}
	again, err := decodeDrains(&busv1.Drains{}, encode(drainsMessage(list)), time.Now())
	if err != nil || !reflect.DeepEqual(again, list) {
		t.Fatalf("drains %+v became %+v, %v", list, again, err)
	}
}

func checkSpent(t *testing.T, data []byte) {
	s, err := decodeSpent(&busv1.Spent{}, data)
	if err != nil {
		return
	}
	again, err := decodeSpent(&busv1.Spent{}, encode(spentMessage(&s)))
	if err != nil || !reflect.DeepEqual(again, s) {
		t.Fatalf("used tokens %+v became %+v, %v", s, again, err)
	}
}

func checkSnapshot(t *testing.T, data []byte) {
	var reply busv1.SnapshotReply
	if decode(&reply, data) != nil || reply.Snapshot == nil {
		return
	}
	s, size, err := readSnapshot(&reply)
	if err != nil || size != len(s.Dump) { // the rest of the dump is on other pages
		return
	}

	again, length, err := readSnapshot(snapshotReply(s, &busv1.SnapshotRequest{}))
	if err != nil || length != size || !bytes.Equal(again.Dump, s.Dump) {
		t.Fatalf("snapshot %+v became %+v, %v", s, again, err)
	}
	again.Dump = s.Dump
	if !reflect.DeepEqual(again, s) {
		t.Fatalf("snapshot %+v became %+v", s, again)
	}
}

func checkSlots(t *testing.T, data []byte) {
	if s, err := decodeSlots(&busv1.Slots{}, data); err == nil {
		again, err := decodeSlots(&busv1.Slots{}, encode(slotsMessage(&s)))
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("slots %+v became %+v, %v", s, again, err)
		}
	}
	if a, err := decodeAssignment(&busv1.Assignment{}, data); err == nil {
		again, err := decodeAssignment(&busv1.Assignment{}, encode(assignmentMessage(&a)))
		if err != nil || !reflect.DeepEqual(again, a) {
			t.Fatalf("assignment %+v became %+v, %v", a, again, err)
		}
	}
}

func checkBookings(t *testing.T, data []byte) {
	var m, second busv1.Bookings
	if decode(&m, data) != nil {
		return
	}
	u := readBookings(&m)
	if err := decode(&second, encode(bookingsMessage(u))); err != nil || !reflect.DeepEqual(readBookings(&second), u) {
		t.Fatalf("bookings %+v became %+v, %v", u, readBookings(&second), err)
	}
}

func checkEvents(t *testing.T, data []byte) {
	_, _ = eachField(data, func(_ protowire.Number, value []byte) error {
		checkBatch(t, value)
		return nil
	})
	checkBatch(t, data)
}

func checkBatch(t *testing.T, data []byte) {
	var d, second batchDecoder
	e, _, err := d.decode("n", data)
	if err != nil {
		if len(d.batch.Events) != 0 {
			t.Fatal("refused events were left in the batch")
		}
		return
	}

	first := EncodeBatch(&e)
	again, _, err := second.decode("n", first)
	if err != nil || again.Worker != e.Worker || !bytes.Equal(EncodeBatch(&again), first) {
		t.Fatalf("events do not survive a round trip: %v", err)
	}
}

// TestUnknownFieldsAreFoundAtAnyDepth sets a field that this release does not have in each message, and in messages inside others.
func TestUnknownFieldsAreFoundAtAnyDepth(t *testing.T) {
	for _, m := range []proto.Message{
		&busv1.Worker{}, &busv1.Load{}, &busv1.Batch{}, &busv1.ReplayRequest{}, &busv1.Position{}, &busv1.SnapshotRequest{},
		&busv1.SnapshotReply{}, &busv1.Bookings{}, &busv1.Ends{}, &busv1.Gone{}, &busv1.Plan{}, &busv1.Leader{}, &busv1.Demand{},
		&busv1.Slots{}, &busv1.Assignment{}, &busv1.KVStores{}, &busv1.Here{},
		&busv1.Load{Tiers: []*busv1.TierLoad{{}, {}}}, &busv1.Load{Peers: &busv1.TierLoad{}}, &busv1.Batch{Events: []*busv1.Event{{}, {}}},
		&busv1.SnapshotReply{Snapshot: &busv1.Snapshot{}}, &busv1.Bookings{Ranks: []*busv1.RankAmount{{}}},
		&busv1.Bookings{Prompts: []*busv1.SentPrompt{{}}},
		&busv1.Ends{Ends: []*busv1.RequestEnd{{}, {}}}, &busv1.Plan{Pools: []*busv1.Pool{{}, {Workers: []*busv1.PlannedWorker{{}, {}}}}},
		&busv1.Demand{Models: []*busv1.ModelDemand{{}, {}}}, &busv1.Slots{Slots: []*busv1.Slot{{}}}, &busv1.KVStores{Stores: []*busv1.KVStore{{}}},
	} {
		name := m.ProtoReflect().Descriptor().Name()
		if hasUnknown(m) {
			t.Errorf("%s %v has an unknown field", name, m)
		}

		innermost := m.ProtoReflect()
		for inner := innermost; inner != nil; inner = lastInside(innermost) {
			innermost = inner
		}
		innermost.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1))
		if !hasUnknown(m) {
			t.Errorf("%s: the unknown field of %v in it is not found", name, innermost.Descriptor().Name())
		}
	}
}

// lastInside returns the last message in a field of m; nil if there is none.
func lastInside(m protoreflect.Message) (last protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			last = v.List().Get(v.List().Len() - 1).Message()
		default:
			last = v.Message()
		}
		return true
	})
	return last
}

// TestAnyTextCanBeSent: a text that is not UTF-8, which a client can put into a request, arrives as it is.
func TestAnyTextCanBeSent(t *testing.T) {
	for _, m := range []proto.Message{&busv1.Demand{Replica: "\xff"}, &busv1.Ends{Ends: []*busv1.RequestEnd{{Booking: "\xff"}}}} {
		got := m.ProtoReflect().New().Interface()
		if err := decode(got, encode(m)); err != nil || !proto.Equal(got, m) {
			t.Errorf("%v became %v, %v", m, got, err)
		}
	}
}

// BenchmarkEvents: what does it cost to write and to read one batch of four stored and four removed
// blocks, without the network?
//
//	go test -run - -bench Events ./bus
func BenchmarkEvents(b *testing.B) {
	var batch kvevent.Batch
	for i := range 4 {
		batch.Events = append(batch.Events, kvevent.Event{
			Hashes: []kvevent.EngineHash{kvevent.EngineHash(i)}, Blocks: []blockhash.Block{blockhash.Block(i)}, BlockSize: 16,
		}, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{kvevent.EngineHash(i)}})
	}
	e := feed.Message{Worker: "w", Epoch: 1, Batch: &batch}

	b.Run("op=write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			EncodeBatch(&e)
		}
	})
	b.Run("op=read", func(b *testing.B) {
		data := EncodeBatch(&e)
		var d batchDecoder
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := d.decode("n", data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestEndsAreWhole: an end loses nothing on its way over the bus, but the id of the request, which needs no bus.
func TestEndsAreWhole(t *testing.T) {
	var received busv1.Ends
	if err := decode(&received, encode(endsMessage([]RequestEnd{sampleEnd}))); err != nil {
		t.Fatal(err)
	}
	if got := readEnd(received.Ends[0]); got != sampleEnd {
		t.Errorf("%+v became %+v", sampleEnd, got)
	}
	for v, i := reflect.ValueOf(sampleEnd), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() && v.Type().Field(i).Name != "RequestID" {
			t.Errorf("%s is not tested", v.Type().Field(i).Name)
		}
	}
}

func checkEnds(t *testing.T, data []byte) {
	var m, second busv1.Ends
	if decode(&m, data) == nil {
		var ends []RequestEnd
		for _, e := range m.Ends {
			ends = append(ends, readEnd(e))
		}
		if err := decode(&second, encode(endsMessage(ends))); err != nil || len(second.Ends) != len(ends) {
			t.Fatalf("%d ends became %d, %v", len(ends), len(second.Ends), err)
		}
		for i, e := range second.Ends {
			if readEnd(e) != ends[i] {
				t.Fatalf("end %+v became %+v", ends[i], readEnd(e))
			}
		}
	}

	g, err := decodeGone(&busv1.Gone{}, data)
	if err != nil {
		return
	}
	again, err := decodeGone(&busv1.Gone{}, encode(goneMessage(&g)))
	if err != nil || again != g {
		t.Fatalf("%+v became %+v, %v", g, again, err)
	}
}
