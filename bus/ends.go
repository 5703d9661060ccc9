package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stator-project/stator/bus/busv1"
)

// RequestEnd is an entry of an access log that another replica of the router received. It has the same fields
// as messages.Entry, in the same order: the compiler refuses the conversion if they differ.
//
// Entries are passed on whole and not as ids alone, because the decision log and the metrics of a request belong to the
// replica that decided it.
type RequestEnd struct {
	Booking, Decision, Picked, Served string
	Upstream                          bool
	Attempts                          uint32
	FirstByte, LastByte               time.Duration
	FirstToken                        time.Duration
	ResponseBytes                     uint64
	Counted                           bool
	AnswerTokens                      uint64
	Status                            uint32
	Broken, Left                      bool
	RequestID                         string // is not sent, because an end that is sent has its booking or its decision
}

// Gone is an Envoy whose access log was closed some time ago.
type Gone struct {
	// Replica is the one that saw it.
	Replica string
	// Source is the Envoy's name; see package accesslog.
	Source string
	// Ago is the time since the log was closed.
	Ago time.Duration
}

// endsSubject returns the subject of the ends that are for a replica.
func (b *Bus) endsSubject(replica string) string { return b.subject("ends", replica) }

// goneSubject returns the subject of closed access logs.
func (b *Bus) goneSubject() string { return b.subject("gone") }

// PublishEnds passes the ends of requests on to the replica that decided them. Ends that are lost leave bookings
// behind until their engine is empty, so a batch that is too large for a message is an error.
func (b *Bus) PublishEnds(replica string, ends []RequestEnd) error {
	data := encode(endsMessage(ends))
	if len(data) > maxMessage {
		return fmt.Errorf("publish ends: %d ends of %d bytes exceed the %d of a message", len(ends), len(data), maxMessage)
	}
	return b.control.nc.Publish(b.endsSubject(replica), data)
}

// SubscribeEnds calls apply for every end that is for this replica, until ctx ends.
func (b *Bus) SubscribeEnds(ctx context.Context, replica string, apply func(*RequestEnd)) error {
	// Ends are figures and names, and no value of theirs can distort a decision: an unknown id has no booking.
	return b.control.subscribe(ctx, b.endsSubject(replica), func(m *nats.Msg) {
		var received busv1.Ends
		err := decode(&received, m.Data)
		if !b.reader.accept(kindEnds, m.Subject, &received, err) {
			return
		}
		for _, e := range received.Ends {
			end := readEnd(e)
			apply(&end)
		}
	})
}

// PublishGone publishes to all replicas that an Envoy closed its access log. The time is passed on as a duration,
// because clocks of machines differ.
func (b *Bus) PublishGone(g Gone) error {
	return b.control.nc.Publish(b.goneSubject(), encode(goneMessage(&g)))
}

// SubscribeGone calls apply for every access log that was closed, at this replica too, until ctx ends.
func (b *Bus) SubscribeGone(ctx context.Context, apply func(Gone)) error {
	return b.control.subscribe(ctx, b.goneSubject(), func(m *nats.Msg) {
		var received busv1.Gone
		g, err := decodeGone(&received, m.Data)
		if b.reader.accept(kindGone, m.Subject, &received, err) {
			apply(g)
		}
	})
}

// endsMessage returns the message of ends.
func endsMessage(ends []RequestEnd) *busv1.Ends {
	m := &busv1.Ends{Ends: make([]*busv1.RequestEnd, len(ends))}
	for i := range ends {
		e := &ends[i]
		m.Ends[i] = &busv1.RequestEnd{
			Booking: e.Booking, Decision: e.Decision, Picked: e.Picked, Served: e.Served, Upstream: e.Upstream, Attempts: e.Attempts,
			FirstByteNanoseconds: int64(e.FirstByte), LastByteNanoseconds: int64(e.LastByte),
			FirstTokenNanoseconds: int64(e.FirstToken), ResponseBytes: e.ResponseBytes,
			Status: e.Status, Broken: e.Broken, Left: e.Left, Counted: e.Counted, AnswerTokens: e.AnswerTokens,
		}
	}
	return m
}

// readEnd returns the end in a message. All values are figures for logs and metrics, so none is refused.
func readEnd(m *busv1.RequestEnd) RequestEnd {
	return RequestEnd{
		Booking: m.Booking, Decision: m.Decision, Picked: m.Picked, Served: m.Served, Upstream: m.Upstream, Attempts: m.Attempts,
		FirstByte: time.Duration(max(0, m.FirstByteNanoseconds)), LastByte: time.Duration(max(0, m.LastByteNanoseconds)),
		FirstToken: time.Duration(max(0, m.FirstTokenNanoseconds)), ResponseBytes: m.ResponseBytes, Status: m.Status,
		Broken: m.Broken, Left: m.Left, Counted: m.Counted, AnswerTokens: m.AnswerTokens,
	}
}

// goneMessage returns the message of a closed access log.
func goneMessage(g *Gone) *busv1.Gone {
	return &busv1.Gone{Replica: g.Replica, Source: g.Source, AgoNanoseconds: int64(g.Ago)}
}

// decodeGone returns the closed access log in data, by way of the empty message m.
func decodeGone(m *busv1.Gone, data []byte) (Gone, error) {
	if err := decode(m, data); err != nil {
		return Gone{}, err
	}
	// A time in the future would end bookings of an Envoy that lives.
	if m.AgoNanoseconds < 0 {
		return Gone{}, fmt.Errorf("an access log was closed %s ago: it must be in the past", time.Duration(m.AgoNanoseconds))
	}
	return Gone{Replica: m.Replica, Source: m.Source, Ago: time.Duration(m.AgoNanoseconds)}, nil
}
