package serve

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/nixl/wire"
)

var layout = block.Layout{Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 128, DType: "float16", TPSize: 1, Hashing: "h"}

// engine is one whose jobs end when they were polled some times. It counts the open ones.
type engine struct {
	polls  int // that each job takes; 0 ends it in Post
	jobs   int // not closed
	posted int
	fail   error // of jobs
}

func (e *engine) Open(o *wire.Open, memory *os.File) (*wire.Endpoint, error) {
	return &wire.Endpoint{Agent: o.Name}, memory.Close()
}
func (e *engine) AddPeer(*wire.Endpoint) error { return nil }
func (e *engine) Remove(name string) error {
	if name == "known" {
		return errors.New("the cause")
	}
	return Errorf(wire.CodeNoPeer, "there is none")
}

func (e *engine) Job(*wire.Transfer) (Job, error) {
	e.jobs++
	return &job{e: e, left: e.polls}, nil
}

type job struct {
	e    *engine
	left int
}

func (j *job) Post() (bool, error) {
	j.e.posted++
	return j.left == 0, nil
}
func (j *job) Poll() (bool, error) {
	j.left--
	return j.left <= 0, j.e.fail
}
func (j *job) Close() error {
	j.e.jobs--
	return nil
}

// serving runs the loop with an engine until the test ends.
func serving(t *testing.T, e *engine) *wire.Conn {
	t.Helper()

	agent, socket, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := wire.NewConn(socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- Run(conn, e) }()
	t.Cleanup(func() {
		agent.Close()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the loop goes on without its agent")
		}
		if e.jobs != 0 {
			t.Errorf("%d jobs are open", e.jobs)
		}
	})
	return agent
}

// ask sends a request and returns the reply to it.
func ask(t *testing.T, c *wire.Conn, r *wire.Request, file *os.File) *wire.Reply {
	t.Helper()

	r.ID = 7
	if err := c.Send(r, file); err != nil {
		t.Fatal(err)
	}
	var reply wire.Reply
	if _, err := c.Receive(&reply); err != nil {
		t.Fatal(err)
	}
	if reply.ID != 7 {
		t.Errorf("reply %+v", reply)
	}
	return &reply
}

func open() *wire.Request {
	return &wire.Request{Op: wire.OpOpen, Open: &wire.Open{
		Name: "node", Layout: layout, Slots: 4, Stride: layout.Bytes(), Backends: []wire.Backend{{Plugin: "X"}},
	}}
}

func read(local int32) *wire.Request {
	return &wire.Request{Op: wire.OpTransfer, Transfer: &wire.Transfer{
		Peer: "p", Local: []int32{local}, Remote: []int32{1}, TimeoutMicros: 20_000_000,
	}}
}

func peer(l block.Layout) *wire.Request {
	return &wire.Request{Op: wire.OpAddPeer, Peer: &wire.Endpoint{
		Version: wire.EndpointVersion, Agent: "p", Layout: l, Slots: 1, Stride: l.Bytes(), Base: 1, Metadata: []byte("m"),
	}}
}

// TestRequests sends right and wrong requests in order. The loop answers each, and goes on after errors.
func TestRequests(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	other := layout
	other.PageTokens = 32
	e := &engine{}
	c := serving(t, e)

	for _, step := range []struct {
		name    string
		request *wire.Request
		file    *os.File
		code    string
		text    string
	}{
		{"before open", read(1), nil, wire.CodeInvalid, "open comes first"},
		{"open without memory", open(), nil, wire.CodeInvalid, "a file is sent with open"},
		{"open", open(), file, "", ""},
		{"open again", open(), file, wire.CodeInvalid, "once"},
		{"unknown operation", &wire.Request{Op: "x"}, nil, wire.CodeInvalid, `operation "x"`},
		{"another layout", peer(other), nil, wire.CodeInvalid, "pageTokens is 16 here and 32 there"},
		{"peer", peer(layout), nil, "", ""},
		{"peer with a file", peer(layout), file, wire.CodeInvalid, "only"},
		{"transfer", read(3), nil, "", ""},
		{"slot beyond the memory", read(4), nil, wire.CodeInvalid, "local slot 4"},
		{"error with a code", &wire.Request{Op: wire.OpRemovePeer, Name: "f"}, nil, wire.CodeNoPeer, "there is none"},
		{"error of NIXL", &wire.Request{Op: wire.OpRemovePeer, Name: "known"}, nil, wire.CodeBackend, "the cause"},
	} {
		reply := ask(t, c, step.request, step.file)
		if reply.Code != step.code || !strings.Contains(reply.Error, step.text) {
			t.Errorf("%s: code %q, %q; want %q, %q", step.name, reply.Code, reply.Error, step.code, step.text)
		}
	}
	if e.posted != 1 {
		t.Errorf("%d transfers began, want 1", e.posted)
	}
}

// TestJobsArePolled has jobs that take some polls, of which one is abandoned. Both are answered, and both are closed.
func TestJobsArePolled(t *testing.T) {
	e := &engine{polls: 300}
	c := serving(t, e)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	ask(t, c, open(), file)

	for id, cancelled := range []bool{false, true} {
		r := read(1)
		r.ID = uint64(id + 1)
		if err := c.Send(r, nil); err != nil {
			t.Fatal(err)
		}
		if cancelled {
			if err := c.Send(&wire.Request{ID: r.ID, Op: wire.OpCancel}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		var reply wire.Reply
		if _, err := c.Receive(&reply); err != nil {
			t.Fatal(err)
		}
		if reply.Code != "" || !reply.Started {
			t.Errorf("%+v", reply)
		}
	}
}

// TestFailedJob has a job that fails after its beginning, which the reply states.
func TestFailedJob(t *testing.T) {
	e := &engine{polls: 2, fail: errors.New("the peer has gone")}
	c := serving(t, e)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	ask(t, c, open(), file)
	reply := ask(t, c, read(1), nil)
	if reply.Code != wire.CodeBackend || !reply.Started || reply.Error != "the peer has gone" {
		t.Errorf("%+v", reply)
	}
}
