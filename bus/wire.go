package bus

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stator-project/stator/internal/metric"
)

// maxMessage is the largest message in bytes that NATS servers accept by default.
const maxMessage = 1 << 20

// hotMessage is a message of bus_hot.proto: its generated code allocates less than package proto does.
type hotMessage interface {
	MarshalVT() ([]byte, error)
	UnmarshalVT([]byte) error
}

// kind names the messages of one sort in metrics and logs.
type kind string

// The kinds. They are the values of the label kind, so their number is bounded.
const (
	kindWorker   kind = "worker"
	kindLoad     kind = "load"
	kindEvents   kind = "events"
	kindReplay   kind = "replay"
	kindSnapshot kind = "snapshot"
	kindBookings kind = "bookings"
	kindPlan     kind = "plan"
	kindEnds     kind = "ends"
	kindGone     kind = "gone"
	kindDemand   kind = "demand"
	kindSlots    kind = "slots"
	kindKVStores kind = "kv_stores"
	kindDrains   kind = "drains"
	kindHere     kind = "here"
	kindSpent    kind = "spent"

	kindAssignment kind = "assignment"
)

// The kinds of warnings that are about no message.
const (
	warnAway       kind = "away"
	warnSlow       kind = "slow"
	warnPermission kind = "permission"
	warnLifetime   kind = "lifetime"
	warnKVStores   kind = "kv_stores"
	warnDrains     kind = "drains"
	warnParts      kind = "parts"
)

// encode returns the bytes of a message. The messages have no field whose value could be refused, so an error is a mistake
// in this program.
func encode(m proto.Message) []byte {
	var data []byte
	var err error
	if hot, isHot := m.(hotMessage); isHot {
		data, err = hot.MarshalVT()
	} else {
		data, err = proto.Marshal(m)
	}
	if err != nil {
		panic(fmt.Sprintf("bus: encode %T: %v", m, err))
	}
	return data
}

// errServerAnswer is returned for bytes of the server's own interface.
var errServerAnswer = errors.New("decode: an answer of the NATS server, and not a message")

// isServerAnswer reports whether data is JSON, as the server's answers are. A client can have the server send an answer,
// with parts that the client chose, to any subject. None of our messages begins so: it would be a group, which no
// field is.
func isServerAnswer(data []byte) bool { return len(data) > 0 && data[0] == '{' }

// decode fills m from data. m must be empty.
func decode(m proto.Message, data []byte) error {
	if isServerAnswer(data) {
		return errServerAnswer
	}

	// UnmarshalVT adds to the values that are there, so lists of a message that is not empty would grow.
	var err error
	if hot, isHot := m.(hotMessage); isHot {
		err = hot.UnmarshalVT(data)
	} else {
		err = proto.Unmarshal(data, m)
	}
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// hasUnknown reports whether a message, or a message in it, has fields that this release does not have. A newer release sent it.
// Unmarshalling keeps such fields aside, where nothing reads them.
func hasUnknown(m proto.Message) bool {
	if hot, isHot := m.(interface{ HasUnknown() bool }); isHot {
		return hot.HasUnknown()
	}
	return reflectUnknown(m.ProtoReflect())
}

// reflectUnknown is hasUnknown for all messages. It is slower than the methods HasUnknown.
func reflectUnknown(m protoreflect.Message) bool {
	unknown := len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := range v.List().Len() {
				unknown = unknown || reflectUnknown(v.List().Get(i).Message())
			}
		default:
			unknown = unknown || reflectUnknown(v.Message())
		}
		return !unknown
	})
	return unknown
}

// reader counts the messages that this release does not fully understand. Messages of a newer release
// may have fields that this one does not have: they are skipped, and the rest is used. Messages that
// cannot be used at all are dropped. Both are counted always and logged once a minute for each kind,
// because a cluster under way to a new release sends many of them.
//
// All methods are safe for concurrent use.
type reader struct {
	cfg           *Config // for its log
	unreadable    *prometheus.CounterVec
	unknownFields *prometheus.CounterVec
	dropped       prometheus.Counter
	warnings      warnings
}

// warnings limits equal warnings to one a minute. It is safe for concurrent use.
type warnings struct {
	// One entry for each kind and warning, so the map is bounded by the kinds.
	mu     sync.Mutex
	logged map[logKey]time.Time // guarded by mu
}

// logKey names a warning.
type logKey struct {
	kind    kind
	dropped bool // the message was dropped; else fields of it were skipped
}

// logEvery is the least time between two equal warnings about messages of one kind.
const logEvery = time.Minute

// newReader returns a reader that has counted nothing. Its counters are registered in cfg.Metrics.
func newReader(cfg *Config) *reader {
	part := metric.For(orUnread(cfg.Metrics), "bus")

	return &reader{
		cfg: cfg,
		unreadable: part.Counters("unreadable_messages_total",
			"Messages on the bus that could not be decoded or had values out of range; they were dropped.", "kind"),
		unknownFields: part.Counters("unknown_fields_total",
			"Messages on the bus with fields that this release does not have; the fields were skipped.", "kind"),
		dropped: part.Counter("dropped_event_messages_total",
			"Messages with KV events that were dropped because this router reads them too slowly; their ranks are recovered."),
		warnings: warnings{logged: map[logKey]time.Time{}},
	}
}

// accept reports whether a message can be used: it has no error. It counts m otherwise, and when it has fields that were skipped.
func (r *reader) accept(k kind, subject string, m proto.Message, err error) bool {
	if err != nil {
		r.refuse(k, subject, err)
		return false
	}
	if hasUnknown(m) {
		r.skipped(k, subject)
	}
	return true
}

// skipped counts a message with fields that were skipped.
func (r *reader) skipped(k kind, subject string) {
	r.unknownFields.WithLabelValues(string(k)).Inc()

	if r.warnings.due(logKey{k, false}) {
		r.cfg.Log.Warn("bus message has fields of a newer release, which were skipped; run the same release everywhere",
			"kind", string(k), "subject", subject)
	}
}

// refuse counts a message that cannot be used.
func (r *reader) refuse(k kind, subject string, err error) {
	r.unreadable.WithLabelValues(string(k)).Inc()
	if r.warnings.due(logKey{k, true}) {
		r.cfg.Log.Warn("bus message dropped", "kind", string(k), "subject", subject, "err", err)
	}
}

// due reports whether a warning was not logged in the last minute, and notes that it is logged now.
func (w *warnings) due(key logKey) bool {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()

	last, logged := w.logged[key]
	if logged && now.Sub(last) < logEvery {
		return false
	}

	w.logged[key] = now
	return true
}
