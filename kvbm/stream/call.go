package stream

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// The greatest sizes of a message and of its answer in bytes.
const (
	MostCall   = 64 << 10
	MostAnswer = 1 << 20
)

// mostCalls bounds the calls of a connection that wait for their turn at a server. The bound of clients is lower.
const mostCalls = 64

// The first bytes of an answer after its id.
const (
	answered = 0
	declined = 1 // a text follows
)

const answerHeader = 4 + 1

var (
	// ErrNoCalls is the error of a call to a peer that answers none.
	ErrNoCalls = errors.New("the peer answers no calls")
	// ErrDeclined is the error of a call that the peer has answered with an error, whose text follows.
	ErrDeclined = errors.New("the peer declines")
)

// Calls answers the calls of one connection. All of them come from one goroutine.
type Calls interface {
	// Call returns the answer to a message, of at most [MostAnswer] bytes. The client gets the text of an error.
	Call(message []byte) (answer []byte, err error)
	// Close is called once, after the last Call.
	Close()
}

// call is a message that waits for its answer. The mutex of its connection guards it until done is closed.
type call struct {
	answer []byte
	err    error
	done   chan struct{}
}

// Call sends a message of 1 to [MostCall] bytes, and returns the answer. Their content is the business of the packages that use calls.
// The error is ErrNoCalls, ErrDeclined, the reason for which a connection was refused, an error of the network, or one of ctx. A message
// that met the end of a connection is sent again, so the peer may get it twice.
func (c *Client) Call(ctx context.Context, message []byte) (answer []byte, err error) {
	if len(message) == 0 || len(message) > MostCall {
		return nil, fmt.Errorf("call a peer: a message has %d bytes, and must have 1 to %d", len(message), MostCall)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	select {
	case c.calling <- struct{}{}:
		defer func() { <-c.calling }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d calls: %w", c.cfg.Requests, ctx.Err())
	}

	failed, err := c.send(ctx, func(conn *connection) (err error) {
		answer, err = conn.call(ctx, message)
		return err
	})
	return answer, cmp.Or(err, failed)
}

// call sends a message, and waits for the answer until ctx ends.
func (c *connection) call(ctx context.Context, message []byte) ([]byte, error) {
	if !c.answersCalls {
		return nil, ErrNoCalls
	}
	x := &call{done: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.lastCall++
	id := c.lastCall
	c.calls[id] = x
	c.mu.Unlock()

	frame := binary.LittleEndian.AppendUint32(appendFrame(nil, kindCall, 4+len(message)), id)
	if err := c.write(ctx, append(frame, message...)); err != nil && ctx.Err() == nil {
		c.closeFor(fmt.Errorf("call a peer: %w", err))
	}
	select {
	case <-x.done:
		return x.answer, x.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
	return nil, fmt.Errorf("wait for the answer to a call: %w", ctx.Err())
}

// readAnswer receives the answer to a call. One that is not awaited any more is dropped.
func (c *connection) readAnswer(r *bufio.Reader, length int) error {
	content := make([]byte, length)
	if _, err := io.ReadFull(r, content); err != nil {
		return err
	}
	id := binary.LittleEndian.Uint32(content)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.received++
	x := c.calls[id]
	switch {
	case x == nil && id > c.lastCall:
		return fmt.Errorf("%w: an answer to call %d, which was not made", ErrProtocol, id)
	case x == nil:
		return nil
	}
	delete(c.calls, id)
	x.answer = content[answerHeader:]
	if content[4] != answered {
		x.answer = nil
		x.err = fmt.Errorf("%w: %q", ErrDeclined, content[answerHeader:])
	}
	close(x.done)
	return nil
}

// failCalls ends all calls with the error of the connection.
//
// Requires: mu.
func (c *connection) failCalls() {
	for _, x := range c.calls {
		x.err = c.err
		close(x.done)
	}
	clear(c.calls)
}

// incomingCall is a call that waits for its turn.
type incomingCall struct {
	id      uint32
	message []byte
}

// answerCall answers the first call that waits.
func (s *session) answerCall() (was bool, err error) {
	s.mu.Lock()
	if len(s.waiting) == 0 {
		s.mu.Unlock()
		return false, nil
	}
	first := s.waiting[0]
	s.waiting = s.waiting[1:]
	s.mu.Unlock()

	status := byte(answered)
	answer, err := s.calls.Call(first.message)
	if err == nil && len(answer) > MostAnswer {
		err = fmt.Errorf("the answer has %d bytes, more than %d", len(answer), MostAnswer)
	}
	if err != nil {
		status = declined
		text := err.Error()
		answer = []byte(text[:min(len(text), mostText)])
	}
	header := binary.LittleEndian.AppendUint32(appendFrame(nil, kindAnswer, answerHeader+len(answer)), first.id)
	return true, s.send(net.Buffers{append(header, status), answer})
}
