package stream

import (
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// onBodyMessage handles a message with the body, or with a piece of it.
func (x *exchange) onBodyMessage(m *messages.Request, now time.Time) (reply, error) {
	switch {
	case x.phase != wantBody:
		return reply{}, status.Error(codes.InvalidArgument, "a body arrived before the headers: set request_header_mode to SEND")
	case x.mode == messages.FullDuplex:
		return x.onPiece(m.Body, m.EndOfStream, now), nil
	case x.mode == messages.BufferedPartial && !m.EndOfStream:
		x.noteUnread()
		return x.onBody(m.Body, now), nil
	case x.mode == messages.Buffered, m.EndOfStream: // in mode Buffered the body is complete, even if trailers follow it
		return x.onBody(m.Body, now), nil
	}
	return reply{}, status.Error(codes.InvalidArgument, "the body arrived in pieces: set request_body_mode to BUFFERED")
}

// onPiece handles a piece of the body in mode FullDuplex. Envoy forgets it, so all pieces are sent back after the decision.
func (x *exchange) onPiece(piece []byte, end bool, now time.Time) reply {
	limit := x.srv.settings.Load().BodyBytes
	if int64(len(x.gathered)+len(piece)) > limit {
		return x.answerWith(tooLarge(limit))
	}
	if !x.srv.bodies.reserve(len(piece)) {
		return x.answerWith(overloaded())
	}
	x.held += len(piece)
	x.gathered = append(x.gathered, piece...)
	if !end {
		return reply{silent: true}
	}
	return x.onBody(x.gathered, now)
}

// onTrailers handles the trailers of a request, which end its body.
func (x *exchange) onTrailers(m *messages.Request, now time.Time) (reply, error) {
	if x.phase != wantBody || x.mode != messages.FullDuplex {
		return reply{}, unexpected(m)
	}
	x.trailers = true
	return x.onBody(x.gathered, now), nil
}

// unexpected returns the error for a message that cannot be used.
func unexpected(m *messages.Request) error {
	return status.Errorf(codes.InvalidArgument, "message %s is not expected: set request_header_mode to SEND, "+
		"request_body_mode to BUFFERED and all other modes to SKIP or NONE", m)
}

// drop forgets the pieces of the body.
func (x *exchange) drop() {
	x.srv.bodies.free(x.held)
	x.held, x.gathered = 0, nil
}

// decideUnread returns the decision about a request whose body does not arrive before its headers go to a worker. It goes by
// load alone. With several pools no one knows which of them has its model.
func (x *exchange) decideUnread(now time.Time) reply {
	x.noteUnread()
	if x.srv.settings.Load().SeveralPools {
		return x.answerWith(refusal(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.ServerError, Code: "no_decision",
			Message: fmt.Sprintf("The gateway cannot read which model is asked for: its filter sends bodies in mode %s. The operator must "+
				"set request_body_mode to BUFFERED or FULL_DUPLEX_STREAMED.", x.mode)}, outcomeUnread))
	}
	return x.decide(nil, now) // its booking would have no id in Envoy's access log
}

// noteUnread counts a request whose prompt is not read, and logs the setting that is the reason.
func (x *exchange) noteUnread() {
	x.unread = true
	x.srv.metrics.unread.WithLabelValues(x.mode.String()).Inc()
	x.srv.notices.add(x.source, unreadNotices[x.mode])
}

// unreadModes are the modes in which bodies may not be read. Their notices are made once, and not for each request.
var (
	unreadModes   = []messages.Mode{messages.None, messages.Streamed, messages.BufferedPartial}
	unreadNotices = noticesOf(unreadModes)
)

// noticesOf returns the texts of the log about these modes.
func noticesOf(modes []messages.Mode) map[messages.Mode]string {
	texts := map[messages.Mode]string{}
	for _, m := range modes {
		texts[m] = fmt.Sprintf("this Envoy sends bodies in mode %s, so prompts are not read and requests go by load; set "+
			"request_body_mode of the filter to BUFFERED or FULL_DUPLEX_STREAMED", m)
	}
	return texts
}

// send sends a reply to the message of that phase.
func (x *exchange) send(stream grpc.ServerStream, r reply, answered phase) error {
	switch {
	case r.silent:
		return nil
	case x.mode == messages.FullDuplex && answered == wantBody && r.answer == nil:
		return x.sendBack(stream, r)
	}
	return stream.SendMsg(x.srv.toMessage(r, answered))
}

// pieceBytes is the size of the pieces that are sent back. Envoy asks for at most 64 KiB.
const pieceBytes = 60 << 10

// sendBack sends the reply to the headers, which Envoy has kept, and then the body in pieces.
func (x *exchange) sendBack(stream grpc.ServerStream, r reply) error {
	body := x.gathered
	if r.body != nil {
		body = r.body
		r.body = nil // Envoy removes content-length in this mode
	}
	r.booking = x.booking
	if err := stream.SendMsg(x.srv.toMessage(r, wantHeaders)); err != nil {
		return err
	}

	for len(body) > pieceBytes {
		if err := stream.SendMsg(&messages.Response{To: messages.Body, NewBody: body[:pieceBytes], Piece: true}); err != nil {
			return err
		}
		body = body[pieceBytes:]
	}
	err := stream.SendMsg(&messages.Response{To: messages.Body, NewBody: body, Piece: true, EndOfStream: !x.trailers})
	if err == nil && x.trailers {
		err = stream.SendMsg(&messages.Response{To: messages.Trailers})
	}
	return err
}
