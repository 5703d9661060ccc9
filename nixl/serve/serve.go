// Package serve is the child's side of transfers: it reads requests from a socket, has an [Engine] carry them out, polls the transfers
// that run, and sends replies.
//
// A transfer that its agent has abandoned is polled on. By its reply the agent learns that the slots are no longer written; to release
// the request would not stop the writes.
//
// # Concurrency
//
// One goroutine reads requests into a bounded queue. All calls of the engine come from the goroutine that called Run, because NIXL is
// not documented to be safe for more. A copy within one host happens in Job.Post, and delays all else for as long.
package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/stator-project/stator/nixl/wire"
)

// Engine carries out transfers. Errors may wrap a [CodeError]; other errors come from the backend.
type Engine interface {
	// Open creates the agent, with the memory of its slots.
	Open(o *wire.Open, memory *os.File) (*wire.Endpoint, error)
	AddPeer(e *wire.Endpoint) error
	Remove(name string) error
	// Job makes a request of a transfer, and does not begin it.
	Job(t *wire.Transfer) (Job, error)
}

// Job is a transfer of an engine.
type Job interface {
	// Post begins it. The bytes may be written until Post or Poll reported that it is done.
	Post() (done bool, err error)
	Poll() (done bool, err error)
	// Close frees a job that is done, or that was not posted.
	Close() error
}

// CodeError is an error with one of the codes of package wire.
type CodeError struct {
	Code string
	Err  error
}

func (e *CodeError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CodeError) Unwrap() error { return e.Err }

// Errorf returns an error with a code.
func Errorf(code, format string, args ...any) error {
	return &CodeError{code, fmt.Errorf(format, args...)}
}

// The pauses between two polls.
const (
	// spinTime is for how long after something happened there is no pause: small transfers last some microseconds.
	spinTime = 100 * time.Microsecond
	// pollPause is the pause while transfers run.
	pollPause = 50 * time.Microsecond
	// idlePause is the pause while there are only abandoned transfers.
	idlePause = time.Millisecond
)

// queued bounds the requests that wait. The agent's writes block beyond it.
const queued = 256

// incoming is a request with the time of its arrival.
type incoming struct {
	wire.Request
	file *os.File // nil without one
	at   time.Time
}

// running is a posted transfer.
type running struct {
	id        uint64
	job       Job
	abandoned bool
}

// server belongs to one goroutine.
type server struct {
	conn      *wire.Conn
	engine    Engine
	open      *wire.Open // nil before it
	running   []*running // in the order of their start, bounded by the agent
	abandoned int        // of the running ones
}

// Run serves requests until the agent closes the socket, which is no error.
func Run(conn *wire.Conn, engine Engine) error {
	s := &server{conn: conn, engine: engine}
	requests := make(chan incoming, queued)
	stopped := make(chan struct{})
	defer close(stopped)
	failed := make(chan error, 1)
	go func() { failed <- receive(conn, requests, stopped) }()

	for active := time.Now(); ; {
		var next <-chan time.Time // never, if no transfer runs
		if len(s.running) > 0 {
			next = after(s.pause(active))
		}
		select {
		case err := <-failed:
			return err
		case r := <-requests:
			if err := s.answer(&r); err != nil {
				return err
			}
			active = time.Now()
		case <-next:
		}

		happened, err := s.poll()
		if err != nil {
			return err
		}
		if happened {
			active = time.Now()
		}
	}
}

// receive passes requests on until the socket ends.
func receive(conn *wire.Conn, requests chan<- incoming, stopped <-chan struct{}) error {
	for {
		var r incoming
		file, err := conn.Receive(&r.Request)
		r.file, r.at = file, time.Now()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case requests <- r:
		case <-stopped:
			return nil
		}
	}
}

// always can be received from at any time.
var always = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// after returns a channel that can be received from after a pause.
func after(pause time.Duration) <-chan time.Time {
	if pause == 0 {
		return always
	}
	return time.After(pause)
}

// pause returns the time until the next poll.
func (s *server) pause(active time.Time) time.Duration {
	switch live := len(s.running) - s.abandoned; {
	case live > 0 && time.Since(active) < spinTime:
		return 0
	case live > 0:
		return pollPause
	}
	return idlePause
}

// reply sends the answer to a request.
func (s *server) reply(id uint64, r wire.Reply, err error) error {
	r.ID = id
	if err != nil {
		r.Code, r.Error = wire.CodeBackend, err.Error()
		var coded *CodeError
		if errors.As(err, &coded) {
			r.Code = coded.Code
		}
	}
	return s.conn.Send(&r, nil)
}

// answer carries a request out. Its error is one of the socket.
func (s *server) answer(r *incoming) error {
	if err := s.check(r); err != nil {
		if r.file != nil {
			_ = r.file.Close()
		}
		return s.reply(r.ID, wire.Reply{}, err)
	}

	switch r.Op {
	case wire.OpOpen:
		endpoint, err := s.engine.Open(r.Open, r.file)
		if err == nil {
			s.open = r.Open
		}
		return s.reply(r.ID, wire.Reply{Endpoint: endpoint}, err)
	case wire.OpAddPeer:
		return s.reply(r.ID, wire.Reply{}, s.addPeer(r.Peer))
	case wire.OpRemovePeer:
		return s.reply(r.ID, wire.Reply{}, s.engine.Remove(r.Name))
	case wire.OpTransfer:
		return s.begin(r)
	default: // cancel
		s.abandon(r.ID)
		return nil
	}
}

// check refuses requests that are wrong, or come in the wrong order.
func (s *server) check(r *incoming) error {
	if err := r.Validate(); err != nil {
		return &CodeError{wire.CodeInvalid, err}
	}
	if (r.Op == wire.OpOpen) != (r.file != nil) {
		return Errorf(wire.CodeInvalid, "%s: a file is sent with %s only", r.Op, wire.OpOpen)
	}
	if (r.Op == wire.OpOpen) != (s.open == nil) {
		return Errorf(wire.CodeInvalid, "%s: open comes first, and once", r.Op)
	}
	return nil
}

// addPeer refuses a peer whose blocks have another layout.
func (s *server) addPeer(e *wire.Endpoint) error {
	if err := s.open.Layout.Fits(&e.Layout); err != nil {
		return &CodeError{wire.CodeInvalid, fmt.Errorf("peer %s: %w", e.Agent, err)}
	}
	return s.engine.AddPeer(e)
}

// begin posts a transfer.
func (s *server) begin(r *incoming) error {
	t := r.Transfer
	if err := wire.CheckIndices("local", t.Local, s.open.Slots); err != nil {
		return s.reply(r.ID, wire.Reply{}, &CodeError{wire.CodeInvalid, err})
	}
	if waited := time.Since(r.at); waited > time.Duration(t.TimeoutMicros)*time.Microsecond {
		return s.reply(r.ID, wire.Reply{}, Errorf(wire.CodeTimeout, "the transfer waited %v for others, longer than its timeout", waited))
	}
	job, err := s.engine.Job(t)
	if err != nil {
		return s.reply(r.ID, wire.Reply{}, err)
	}

	current := &running{id: r.ID, job: job}
	done, err := job.Post()
	if done || err != nil {
		return s.finish(current, err)
	}
	s.running = append(s.running, current)
	return nil
}

// finish sends the result of a transfer that has ended.
func (s *server) finish(r *running, err error) error {
	if closing := r.job.Close(); closing != nil && err == nil {
		fmt.Fprintln(os.Stderr, "stator-transfer: close a request:", closing)
	}
	return s.reply(r.id, wire.Reply{Started: true}, err)
}

// abandon polls a transfer less often from now on.
func (s *server) abandon(id uint64) {
	for _, r := range s.running {
		if r.id == id && !r.abandoned {
			r.abandoned = true
			s.abandoned++
		}
	}
}

// poll looks after all transfers, and reports whether something happened.
func (s *server) poll() (happened bool, err error) {
	left := s.running[:0]
	for _, r := range s.running {
		done, failure := r.job.Poll()
		if !done && failure == nil {
			left = append(left, r)
			continue
		}
		happened = true
		if r.abandoned {
			s.abandoned--
		}
		if err == nil {
			err = s.finish(r, failure)
		}
	}
	clear(s.running[len(left):])
	s.running = left
	return happened, err
}
