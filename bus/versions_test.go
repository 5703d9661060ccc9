package bus_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/route/peers"
	"github.com/stator-project/stator/test/testkit"
)

// newField is the number and name of a field that the next release adds to every message.
const (
	newFieldNumber = 1000
	newFieldName   = "added_later"
)

// nextRelease returns the schema that a release after this one has of a message: every message has one more field.
func nextRelease(t *testing.T, of proto.Message) protoreflect.MessageDescriptor {
	t.Helper()

	schemas := &descriptorpb.FileDescriptorSet{}
	for _, file := range []protoreflect.FileDescriptor{busv1.File_bus_proto, busv1.File_bus_hot_proto} {
		schema := protodesc.ToFileDescriptorProto(file)
		for _, m := range schema.MessageType {
			m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
				Name: proto.String(newFieldName), Number: proto.Int32(newFieldNumber),
				Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			})
		}
		schemas.File = append(schemas.File, schema)
	}

	files, err := protodesc.NewFiles(schemas)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := files.FindDescriptorByName(of.ProtoReflect().Descriptor().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return newer.(protoreflect.MessageDescriptor)
}

// asNextRelease returns the bytes that the next release would send for a message: the same values, and
// its new field set in the message and in everything inside it.
func asNextRelease(t *testing.T, m proto.Message) []byte {
	t.Helper()

	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	newer := dynamicpb.NewMessage(nextRelease(t, m))
	if err := proto.Unmarshal(data, newer); err != nil {
		t.Fatal(err)
	}
	setNewField(newer)

	data, err = proto.Marshal(newer)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func setNewField(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := range v.List().Len() {
				setNewField(v.List().Get(i).Message())
			}
		default:
			setNewField(v.Message())
		}
		return true
	})
	m.Set(m.Descriptor().Fields().ByName(newFieldName), protoreflect.ValueOfString("new"))
}

// TestThisReleaseReadsTheNext plays every message that a newer release publishes. The new fields are
// skipped, every other value arrives, the messages are counted, and one warning for each kind is logged.
func TestThisReleaseReadsTheNext(t *testing.T) {
	server := embed(t, -1)
	defer server.Close()
	log := &testkit.Log{}
	reg := prometheus.NewRegistry()
	b := testkit.JoinBus(t, bus.Config{URL: server.URL(), Log: log.Logger(), Metrics: reg})
	newer, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()

	events := make(chan string, 10)
	running(t, func(ctx context.Context) error {
		return b.SubscribeEvents(ctx, func(e *feed.Message) { events <- show(e) })
	})
	loads := make(chan bus.Load, 10)
	running(t, func(ctx context.Context) error {
		return b.SubscribeLoad(ctx, func(l bus.Load) { loads <- l })
	})
	bookings := make(chan *peers.Update, 10)
	running(t, func(ctx context.Context) error {
		return b.SubscribeBookings(ctx, func(u *peers.Update) { bookings <- u })
	})
	publish := func(subject string, m proto.Message) {
		if err := newer.Publish("stator.v1.test."+subject, asNextRelease(t, m)); err != nil {
			t.Fatal(err)
		}
	}

	testkit.Eventually(t, "events of the next release arrive", func() bool {
		publish("kv._", &busv1.Events{Batches: []*busv1.Batch{{Worker: "w", Seq: 3, Events: []*busv1.Event{{Hashes: []uint64{7}}}}}})
		return len(events) > 0
	})
	want := show(&feed.Message{Worker: "w", Seq: 3, Batch: &kvevent.Batch{Events: []kvevent.Event{{Hashes: []kvevent.EngineHash{7}}}}})
	if got := <-events; got != want {
		t.Errorf("events %s, want %s", got, want)
	}

	testkit.Eventually(t, "a load of the next release arrives", func() bool {
		publish("load.w", &busv1.Load{Worker: "w", Running: 2})
		return len(loads) > 0
	})
	if got := <-loads; got != (bus.Load{Worker: "w", Running: 2}) {
		t.Errorf("load %+v", got)
	}

	testkit.Eventually(t, "bookings of the next release arrive", func() bool {
		publish("book.r", &busv1.Bookings{Replica: "r", Seq: 1, Ranks: []*busv1.RankAmount{{Worker: "w", Requests: 4}}})
		return len(bookings) > 0
	})
	if got := <-bookings; got.Replica != "r" || len(got.Ranks) != 1 || got.Ranks[0].Amount != (fleet.Amount{Requests: 4}) {
		t.Errorf("bookings %+v", got)
	}

	for _, kind := range []string{"events", "load", "bookings"} {
		if n := countOf(t, reg, "stator_bus_unknown_fields_total", kind); n < 1 {
			t.Errorf("%g messages of kind %s with unknown fields were counted", n, kind)
		}
		warning := `msg="bus message has fields of a newer release, which were skipped; run the same release everywhere" kind=` + kind
		if !log.Contains(warning) {
			t.Errorf("no warning for kind %s", kind)
		}
	}
}

// TestTheNextReleaseReadsThis decodes messages of this release with the schema of the next: every value
// arrives, and the new field is absent.
func TestTheNextReleaseReadsThis(t *testing.T) {
	sent := &busv1.Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 2, Weight: 3}
	data, err := proto.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}

	newer := dynamicpb.NewMessage(nextRelease(t, sent))
	if err := proto.Unmarshal(data, newer); err != nil {
		t.Fatal(err)
	}
	if newer.Has(newer.Descriptor().Fields().ByName(newFieldName)) {
		t.Error("the new field has a value")
	}
	back, err := proto.Marshal(newer)
	if err != nil {
		t.Fatal(err)
	}
	var again busv1.Worker
	if err := proto.Unmarshal(back, &again); err != nil || !proto.Equal(&again, sent) {
		t.Errorf("worker %v became %v, %v", sent, &again, err)
	}
}

// TestUnreadableMessagesAreCounted sends bytes that are no message, and values out of range: each is
// dropped and counted, and the log has one line a minute for each kind.
func TestUnreadableMessagesAreCounted(t *testing.T) {
	server := embed(t, -1)
	defer server.Close()
	log := &testkit.Log{}
	reg := prometheus.NewRegistry()
	b := testkit.JoinBus(t, bus.Config{URL: server.URL(), Log: log.Logger(), Metrics: reg})
	raw, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	running(t, func(ctx context.Context) error {
		return b.SubscribeEvents(ctx, func(e *feed.Message) { t.Errorf("%s was applied", show(e)) })
	})

	bad := [][]byte{
		{1, 0x9f},
		events(t, &busv1.Batch{Worker: "w", State: 9}),
		events(t, &busv1.Batch{Worker: "A worker"}),
		events(t, &busv1.Batch{Worker: "w", Rank: fleet.MaxRanks}),
		events(t, &busv1.Batch{Worker: "w", Events: []*busv1.Event{{Kind: 9}}}),
		events(t, &busv1.Batch{Worker: "w", Events: []*busv1.Event{{Tier: 9}}}),
		events(t, &busv1.Batch{Worker: "w", Events: []*busv1.Event{{Window: 1 << 31}}}),
		events(t, &busv1.Batch{Worker: "w", Events: []*busv1.Event{{Hashes: []uint64{1, 2}, Blocks: []uint64{1}}}}),
	}
	testkit.Eventually(t, "the messages are counted", func() bool {
		for _, data := range bad {
			if err := raw.Publish("stator.v1.test.kv._", data); err != nil {
				t.Fatal(err)
			}
		}
		return countOf(t, reg, "stator_bus_unreadable_messages_total", "events") >= float64(2*len(bad))
	})

	if !log.Contains(`msg="bus message dropped" kind=events subject=stator.v1.test.kv._ err=`) {
		t.Error("the log does not have the reason")
	}
	if n := log.Count("bus message dropped"); n != 1 {
		t.Errorf("%d lines in the log, want 1", n)
	}
}

// events returns the bytes of a message with one batch.
func events(t *testing.T, b *busv1.Batch) []byte {
	t.Helper()

	return marshal(t, &busv1.Events{Batches: []*busv1.Batch{b}})
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()

	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// countOf returns the value of a counter with the label kind; 0 when there is none yet.
func countOf(t *testing.T, reg *prometheus.Registry, name, kind string) float64 {
	t.Helper()

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == kind {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestMetricsAreWellNamed holds the names to Prometheus's conventions.
func TestMetricsAreWellNamed(t *testing.T) {
	server := embed(t, -1)
	defer server.Close()
	reg := prometheus.NewRegistry()
	testkit.JoinBus(t, bus.Config{URL: server.URL(), Metrics: reg})

	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
