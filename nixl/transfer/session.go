package transfer

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/nixl/wire"
)

// session is one run of the child.
//
//	event                                    effect
//	the socket ends, or has garbage          the child gets a second to end, and is killed
//	the process has ended                    all slots are free, gone is closed, and all callers return err
//	end is called                            the child is killed, and then the same
//	Config.MaxReconnects is reached          worn is closed: new transfers are refused, and the supervisor ends the child
//
// One goroutine, live, reads all replies and waits for the process. It has ended when gone is closed.
type session struct {
	cfg      *Config
	conn     *wire.Conn
	process  *child.Process
	output   lastLines
	endpoint *wire.Endpoint
	worn     chan struct{} // closed when the child has to be replaced, and gets no new transfers
	gone     chan struct{} // closed when the process has ended and the slots are free
	err      error         // why; valid once gone is closed

	mu         sync.Mutex
	lastID     uint64                     // of calls and transfers, which share their numbers
	calls      map[uint64]chan wire.Reply // of requests other than transfers
	slots      *slotTable
	reconnects int
	ended      bool // the process is gone
}

// exitTime bounds the life of a child after it has closed its socket, to print the reason.
const exitTime = time.Second

// startSession starts a child and opens its agent.
func startSession(ctx context.Context, cfg *Config, name string) (*session, error) {
	conn, socket, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	s := &session{
		cfg: cfg, conn: conn, worn: make(chan struct{}), gone: make(chan struct{}), calls: map[uint64]chan wire.Reply{},
		slots: newSlotTable(cfg.MaxTransfers),
	}
	s.process, err = child.Start(child.Config{
		Path: cfg.Program, Args: []string{"--library", cfg.Library}, Env: cfg.Env, Files: []*os.File{socket}, Line: s.output.addLine,
	})
	_ = socket.Close()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	go s.live()

	ctx, cancel := context.WithTimeout(ctx, cfg.StartTime)
	defer cancel()
	open := &wire.Open{
		Name: name, Layout: cfg.Layout, Slots: cfg.Slots, Stride: cfg.Stride, Backends: cfg.Backends,
	}
	reply, err := s.call(ctx, &wire.Request{Op: wire.OpOpen, Open: open}, cfg.Memory)
	if err == nil && reply.Endpoint == nil {
		err = fmt.Errorf("%w: the answer to open lacks the endpoint", ErrBackend)
	}
	if err != nil {
		s.killChild()
		return nil, err
	}
	s.endpoint = reply.Endpoint
	return s, nil
}

// killChild kills the child and returns when it is gone.
func (s *session) killChild() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	s.process.Stop(now)
	<-s.gone
}

// live reads replies until the child has ended. Only then are the slots free: a socket can be closed while the process lives.
func (s *session) live() {
	reading := s.passReplies()
	// A child that crashes closes the socket first, and its own status has the reason, which the status of a kill lacks.
	select {
	case <-s.process.Exited():
	case <-time.After(exitTime): // it has closed the socket, or sent garbage, and lives on
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	s.process.Stop(now)
	_ = s.conn.Close()

	cause := cmp.Or(s.process.Wait(), reading)
	s.err = fmt.Errorf("%w: %w%s", ErrEnded, cause, s.output.text())
	s.mu.Lock()
	s.slots.freeAll()
	s.ended = true
	s.mu.Unlock()
	close(s.gone)
}

// passReplies passes replies on until the socket ends.
func (s *session) passReplies() error {
	for {
		var r wire.Reply
		file, err := s.conn.Receive(&r)
		if file != nil {
			_ = file.Close() // a child sends none
		}
		if err != nil {
			return err
		}

		s.mu.Lock()
		if answer := s.calls[r.ID]; answer != nil {
			answer <- r // buffered, and there is one reply
			delete(s.calls, r.ID)
		} else {
			s.slots.settle(r.ID, r)
		}
		s.mu.Unlock()
	}
}

// maxCalls bounds the calls that wait for replies.
const maxCalls = 1024

// call sends a request other than a transfer and waits for its reply. A reply after the end of ctx is dropped, and the request may have
// had its effect.
func (s *session) call(ctx context.Context, r *wire.Request, file *os.File) (*wire.Reply, error) {
	answer := make(chan wire.Reply, 1)
	s.mu.Lock()
	if len(s.calls) >= maxCalls {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %d calls wait for stator-transfer", ErrTooMany, maxCalls)
	}
	s.lastID++
	r.ID = s.lastID
	s.calls[r.ID] = answer
	s.mu.Unlock()

	defer func() {
		s.mu.Lock()
		delete(s.calls, r.ID)
		s.mu.Unlock()
	}()
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := s.send(r, file); err != nil {
		return nil, err
	}
	select {
	case reply := <-answer:
		return &reply, s.explain(&reply)
	case <-s.gone:
		return nil, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the answer of stator-transfer to %s: %w%s", r.Op, context.Cause(ctx), s.output.text())
	}
}

// send sends a request. A child that does not read is killed, because its socket is full of requests.
func (s *session) send(r *wire.Request, file *os.File) error {
	err := s.conn.Send(r, file)
	if err == nil {
		return nil
	}
	select {
	case <-s.gone:
	case <-time.After(s.cfg.StartTime):
		return err
	}
	return s.err
}

// outputTime bounds the time that the cause of an error may take on its way through the pipe of standard error, which the reply
// overtakes.
const outputTime = 20 * time.Millisecond

// explain returns the error of a reply. For errors of NIXL it has the last lines of the child's output, the only place with the cause.
func (s *session) explain(r *wire.Reply) error {
	err := replyError(r)
	if r.Code != wire.CodeBackend {
		return err
	}
	time.Sleep(outputTime)
	return fmt.Errorf("%w%s", err, s.output.text())
}

// transfer runs a transfer, as [Helper.Transfer] describes it.
func (s *session) transfer(ctx context.Context, what Transfer) error {
	request := &wire.Request{Op: wire.OpTransfer, Transfer: &wire.Transfer{
		Peer: what.Peer, Write: what.Write, Local: what.Local, Remote: what.Remote, TimeoutMicros: what.Timeout.Microseconds(),
	}}
	if err := request.Transfer.Validate(s.cfg.Slots); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}

	x, err := s.begin(request, what)
	if err != nil {
		return err
	}

	// The time is measured here and not in the child, which may be stopped, or copy another transfer's blocks within one call of NIXL.
	late := time.NewTimer(what.Timeout)
	defer late.Stop()
	if err := s.send(request, nil); err != nil {
		return s.giveUp(request.ID, x, err)
	}
	select {
	case reply := <-x.ended:
		return s.result(x, &reply)
	case <-s.gone:
		return s.err
	case <-late.C:
		err = fmt.Errorf("%w: %v", ErrDeadline, what.Timeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return s.giveUp(request.ID, x, err)
}

// begin reserves the slots of a transfer and chooses its number. The process may have ended since the caller got this session: the check is
// under the mutex that live holds when it frees the slots, so no slot is reserved after that.
func (s *session) begin(request *wire.Request, what Transfer) (*tracked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, s.err
	}
	select {
	case <-s.worn:
		return nil, ErrStarting
	default:
	}
	s.lastID++
	request.ID = s.lastID
	return s.slots.begin(request.ID, what)
}

// result returns the error of a transfer that has ended, or nil.
func (s *session) result(x *tracked, r *wire.Reply) error {
	err := s.explain(r)
	if err != nil && r.Started {
		return &Failure{Err: err, Slots: x.Local, Safe: x.safe}
	}
	return err
}

// giveUp abandons a transfer. One that has ended in this moment keeps its own result: the reply was entered under the mutex, so either
// the table has it as abandoned and a later reply frees the slots, or the reply is in the channel.
func (s *session) giveUp(id uint64, x *tracked, because error) error {
	s.mu.Lock()
	isAbandoned := s.slots.abandon(id)
	s.mu.Unlock()
	select {
	case reply := <-x.ended:
		return s.result(x, &reply)
	default:
	}

	if !isAbandoned {
		return because // the child is gone, and the slots are free
	}
	// The child polls the transfer on, so that its end becomes known. An error of the socket ends the child, and frees the slots.
	_ = s.conn.Send(&wire.Request{ID: id, Op: wire.OpCancel}, nil)
	return &Failure{Err: because, Slots: x.Local, Safe: x.safe}
}

// lastLines keeps the end of the child's output.
type lastLines struct {
	mu    sync.Mutex
	lines []string
}

// The bounds of the output that is kept.
const (
	keptLines  = 8
	keptLength = 400
)

// addLine keeps a line.
func (l *lastLines) addLine(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(line) > keptLength {
		line = line[:keptLength] + "…"
	}
	if len(l.lines) == keptLines {
		l.lines = append(l.lines[:0], l.lines[1:]...)
	}
	l.lines = append(l.lines, line)
}

// text returns the lines for the end of an error.
func (l *lastLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return ""
	}
	return "; last output:\n  " + strings.Join(l.lines, "\n  ")
}
