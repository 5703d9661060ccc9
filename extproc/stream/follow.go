package stream

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
)

// follow answers the messages of the response until Envoy ends the stream, or the response ends.
//
// The receiving goroutine ends with the stream, so after this function has returned, at the latest. There is one because
// Drain must be able to end the stream while a message is awaited: an Envoy without failure_mode_allow cuts the response
// off when the stream fails.
func (d *door) follow() (err error) {
	d.srv.followed.Add(1)
	defer d.srv.followed.Add(-1)
	defer func() {
		if cause := recover(); cause != nil {
			d.OnPanic(cause, debug.Stack(), time.Now())
			err = nil
		}
	}()

	next := make(chan struct{})
	defer close(next)
	received := d.receive(next)
	var cut <-chan struct{} // nil before the server drains
	draining := d.srv.draining
	for d.Phase() == exchange.Following {
		select {
		case r := <-received:
			if r.err != nil {
				d.OnEnd(d.isOver(r.err), time.Now())
				return streamEnd(r.err)
			}
			if err := d.answer(r.msg, time.Now()); err != nil {
				return streamEnd(err)
			}
			next <- struct{}{}
		case <-draining:
			// In this mode Envoy keeps no copy of a piece, so one that is on its way would be missing in an answer that else looks whole.
			if d.responseMode != messages.FullDuplex {
				return nil
			}
			draining, cut = nil, d.srv.cut
		case <-cut:
			return status.Error(codes.Unavailable, "the router stops, and the response takes longer than its drain time")
		}
	}
	return nil
}

// incoming is a message of Envoy, or the error with which the stream has ended.
type incoming struct {
	msg *messages.Request
	err error
}

// receive starts a goroutine that receives messages. It receives the next one after each value of next, and ends when next
// is closed and the stream has ended.
func (d *door) receive(next <-chan struct{}) <-chan incoming {
	out := make(chan incoming, 1)
	go func() {
		var msg messages.Request // not in the budget: Envoy sends pieces, and awaits the reply to each
		defer msg.Release()
		for ok := true; ok; _, ok = <-next {
			err := d.stream.RecvMsg(&msg)
			out <- incoming{&msg, err}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// isOver reports whether the request is over when the stream ends with that error. Envoy closes its half of the stream then. If it has no
// more messages to send, which happens in these modes, it resets the stream, although the request goes on.
func (d *door) isOver(err error) bool {
	return errors.Is(err, io.EOF) || d.mode != messages.FullDuplex && d.mode != messages.None
}

// answer replies to a message of a response, which passes unchanged.
func (d *door) answer(m *messages.Request, now time.Time) error {
	to := m.Kind
	switch m.Kind {
	case messages.ResponseHeaders:
		d.OnResponse(exchange.Response{Status: m.Status, Served: m.Served, EventStream: m.EventStream}, m.EndOfStream, now)
	case messages.ResponseBody:
		if d.observed {
			d.OnUsage(d.usage.read(m.Body))
		}
		d.OnResponseBody(len(m.Body), m.EndOfStream, now)
		if d.responseMode == messages.FullDuplex && !d.observed {
			return d.sendPieces(to, m.Body, m.EndOfStream)
		}
	case messages.ResponseTrailers:
		d.OnResponseBody(0, true, now)
	case messages.Trailers: // of the request, after a body that was whole without them
	default:
		d.srv.notices.logOnce(d.Source(), unexpected(m).Error())
		if !d.observed {
			return unexpected(m)
		}
	}

	if d.observed {
		return nil
	}
	return d.stream.SendMsg(&messages.Response{To: to})
}

// skipsResponse returns the mode in which Envoy is asked to send the bodies of the request and none of the response: the
// end of the stream is the end of the request anyway. Unknown asks for nothing. Envoy cannot leave FullDuplex.
func (d *door) skipsResponse() messages.Mode {
	switch d.responseMode {
	case messages.Streamed, messages.Buffered, messages.BufferedPartial:
		if d.mode == messages.Buffered || d.mode == messages.BufferedPartial {
			return d.mode
		}
	}
	return messages.Unknown
}

const (
	// flushTime is the time that the last messages of streams have to leave the process.
	flushTime = 100 * time.Millisecond
	// drainLook is the pause between two looks at the streams that are left.
	drainLook = 10 * time.Millisecond
)

// Drain ends all streams in a way that lets their requests go on. It is called before the gRPC server stops, which would reset them.
//
//	stream                                 ends
//	before its decision                    with the decision
//	after it, no response passes through   at once
//	a response passes through              with the response
//
// refuse has Envoys open their next streams elsewhere. A stream that is still open when ctx ends fails: then Envoy cuts the response off,
// and the client sees that it is not whole.
func (s *Server) Drain(ctx context.Context, refuse func()) {
	s.drain.Do(func() {
		followed := s.followed.Load() > 0
		refuse()
		close(s.draining)

		look := time.NewTicker(drainLook)
		defer look.Stop()
		for s.streams.Load() > 0 && ctx.Err() == nil {
			select {
			case <-look.C:
			case <-ctx.Done():
			}
		}

		close(s.cut)
		if followed {
			time.Sleep(flushTime)
		}
	})
}
