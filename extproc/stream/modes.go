package stream

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/grpcserve"
)

// onBody handles a message with the body, or with a piece of it.
func (d *door) onBody(m *messages.Request, now time.Time) (exchange.Reply, error) {
	switch {
	case d.passing:
		return d.pass(messages.Body, m.EndOfStream)
	case d.Phase() != exchange.WantBody:
		return exchange.Reply{}, status.Error(codes.InvalidArgument, "a body arrived before the headers: set request_header_mode to SEND")
	case d.mode == messages.FullDuplex:
		return d.OnPiece(m.Body, m.EndOfStream, now), nil
	case d.mode == messages.BufferedPartial && !m.EndOfStream && !exchange.IsWhole(m.Body): // else trailers follow the whole body
		d.noteUnread()
		return d.OnBody(m.Body, false, now), nil
	case d.mode == messages.Buffered, d.mode == messages.BufferedPartial, m.EndOfStream: // trailers may follow a whole body
		return d.OnBody(m.Body, true, now), nil
	}
	return exchange.Reply{}, status.Error(codes.InvalidArgument, "the body arrived in pieces: set request_body_mode to BUFFERED")
}

// onTrailers handles the trailers of a request, which end its body.
func (d *door) onTrailers(m *messages.Request, now time.Time) (exchange.Reply, error) {
	if d.passing {
		return d.pass(messages.Trailers, true)
	}
	if d.Phase() != exchange.WantBody || d.mode != messages.FullDuplex {
		return exchange.Reply{}, unexpected(m)
	}
	d.trailers = true
	return d.OnPiece(nil, true, now), nil
}

// pass answers a piece of a body in mode Streamed, or the trailers after it: Envoy forwards them as they are. The decision was made
// with the headers. If the stream ended then, Envoy 1.40 would send pieces twice on a route with a retry policy.
func (d *door) pass(to messages.Kind, end bool) (exchange.Reply, error) {
	if end {
		d.endWithLast()
	}
	err := d.stream.SendMsg(&messages.Response{To: to})
	return exchange.Reply{Silent: true, Last: end || err != nil}, nil // an error means that the client has left
}

// unexpected returns the error for a message that cannot be used.
func unexpected(m *messages.Request) error {
	return status.Errorf(codes.InvalidArgument, "message %s is not expected: set request_header_mode to SEND, "+
		"request_body_mode to BUFFERED and all other modes to SKIP or NONE", m)
}

// noteUnread counts a request whose prompt is not read, and logs the setting that is the reason.
func (d *door) noteUnread() {
	d.srv.metrics.unread.WithLabelValues(d.mode.String()).Inc()
	d.srv.notices.logOnce(d.Source(), unreadNotices[d.mode])
}

// unreadModes are the modes in which bodies may not be read. Their texts are made once, and not for each request.
var (
	unreadModes   = []messages.Mode{messages.None, messages.Streamed, messages.BufferedPartial}
	unreadNotices = textsOf("this Envoy sends bodies in mode %s, so prompts are not read and requests go by load; set " +
		"request_body_mode of the filter to BUFFERED or FULL_DUPLEX_STREAMED")
	unreadReasons = textsOf("its filter sends bodies in mode %s. The operator must set request_body_mode to BUFFERED or " +
		"FULL_DUPLEX_STREAMED")
)

// textsOf returns a text about each of these modes.
func textsOf(format string) map[messages.Mode]string {
	texts := map[messages.Mode]string{}
	for _, m := range unreadModes {
		texts[m] = fmt.Sprintf(format, m)
	}
	return texts
}

// send sends a reply to the event of that phase.
func (d *door) send(r exchange.Reply, answered exchange.Phase) error {
	switch {
	case r.Silent, d.observed:
		return nil
	case d.mode == messages.FullDuplex && answered == exchange.WantBody && r.Answer == nil:
		return d.sendBack(r)
	}
	if r.Last && !r.Follow {
		d.endWithLast()
	}
	m := toMessage(r, answered, d.foreign)
	if r.Follow && answered == exchange.WantHeaders {
		m.(*messages.Response).SkipResponse = d.skipsResponse()
	}
	return d.stream.SendMsg(m)
}

// pieceBytes is the size of the pieces that are sent back. Envoy asks for at most 64 KiB.
const pieceBytes = 60 << 10

// sendBack sends the reply to the headers, which Envoy has kept, and then the body in pieces.
func (d *door) sendBack(r exchange.Reply) error {
	body := d.Gathered()
	if r.Body != nil {
		body = r.Body
		r.Body = nil // Envoy removes content-length in this mode
	}
	r.Booking = d.Booking()
	if err := d.stream.SendMsg(toMessage(r, exchange.WantHeaders, d.foreign)); err != nil {
		return err
	}

	body, err := d.sendFullPieces(messages.Body, body)
	if err != nil {
		return err
	}
	if !r.Follow {
		d.endWithLast()
	}
	err = d.stream.SendMsg(&messages.Response{To: messages.Body, NewBody: body, Piece: true, EndOfStream: !d.trailers})
	if err != nil || !d.trailers {
		return err
	}
	return d.stream.SendMsg(&messages.Response{To: messages.Trailers})
}

// endWithLast has the end of the stream reach Envoy together with the next message, which is the last one. In this mode Envoy keeps no
// copy of a piece of the response that it has sent, so one that it sends to an ending stream would be missing in the client's answer.
func (d *door) endWithLast() {
	if d.responseMode == messages.FullDuplex {
		grpcserve.EndTogether(d.stream.Context())
	}
}

// sendPieces sends a part of a body in pieces. end means that it is the last part.
func (d *door) sendPieces(to messages.Kind, body []byte, end bool) error {
	body, err := d.sendFullPieces(to, body)
	if err != nil {
		return err
	}
	return d.stream.SendMsg(&messages.Response{To: to, NewBody: body, Piece: true, EndOfStream: end})
}

// sendFullPieces sends pieces of a body until one is left, which it returns.
func (d *door) sendFullPieces(to messages.Kind, body []byte) (last []byte, err error) {
	for len(body) > pieceBytes {
		if err := d.stream.SendMsg(&messages.Response{To: to, NewBody: body[:pieceBytes], Piece: true}); err != nil {
			return nil, err
		}
		body = body[pieceBytes:]
	}
	return body, nil
}
