package transfer

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stator-project/stator/nixl/serve"
	"github.com/stator-project/stator/nixl/wire"
)

// fakeChild is set in the environment of a child that runs the fake engine in place of stator-transfer.
const fakeChild = "STATOR_TEST_FAKE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(fakeChild) != "" {
		runFake()
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// runFake serves the real protocol with a fake engine.
func runFake() {
	conn, err := wire.NewConn(os.NewFile(3, "socket"))
	if err == nil {
		err = serve.Run(conn, &fakeEngine{peers: map[string]bool{}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// fakeEngine has peers that behave as the first word of their names asks for:
//
//	copy     reads fill local slots with the number of the remote slot, at once
//	late     the same, 300 ms later
//	stuck    transfers never end, but all fail when a peer with the name unstick is added
//	fails    transfers fail after their beginning
//	refuses  transfers fail before it
//	blocks   the child does nothing else for 300 ms
//	crashes  the child ends
type fakeEngine struct {
	memory  []byte
	open    *wire.Open
	peers   map[string]bool
	failing bool
}

func (e *fakeEngine) Open(o *wire.Open, memory *os.File) (*wire.Endpoint, error) {
	defer memory.Close()
	data, err := unix.Mmap(int(memory.Fd()), 0, o.Slots*o.Stride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	e.memory, e.open = data, o
	return &wire.Endpoint{
		Version: wire.EndpointVersion, Agent: o.Name, Layout: o.Layout, Slots: o.Slots, Stride: o.Stride, Base: 1 << 30, Metadata: []byte("m"),
	}, nil
}

func (e *fakeEngine) AddPeer(endpoint *wire.Endpoint) error {
	e.peers[endpoint.Agent] = true
	e.failing = e.failing || endpoint.Agent == "unstick"
	return nil
}

func (e *fakeEngine) Remove(name string) error {
	if !e.peers[name] {
		return serve.Errorf(wire.CodeNoPeer, "no peer %s", name)
	}
	delete(e.peers, name)
	return nil
}

func (e *fakeEngine) Job(t *wire.Transfer) (serve.Job, error) {
	if !e.peers[t.Peer] {
		return nil, serve.Errorf(wire.CodeNoPeer, "no peer %s", t.Peer)
	}
	kind, _, _ := strings.Cut(t.Peer, "-")
	if kind == "refuses" {
		return nil, errors.New("the fake refuses")
	}
	return &fakeJob{e: e, t: t, kind: kind}, nil
}

type fakeJob struct {
	e      *fakeEngine
	t      *wire.Transfer
	kind   string
	posted time.Time
}

func (j *fakeJob) Post() (bool, error) {
	j.posted = time.Now()
	switch j.kind {
	case "crashes":
		fmt.Fprintln(os.Stderr, "assertion of the fake")
		os.Exit(7)
	case "blocks":
		time.Sleep(300 * time.Millisecond)
	case "late", "stuck", "fails":
		return false, nil
	}
	j.fill()
	return true, nil
}

func (j *fakeJob) Poll() (bool, error) {
	switch {
	case j.kind == "fails" || j.kind == "stuck" && j.e.failing:
		fmt.Fprintln(os.Stderr, "cause of the fake")
		return true, errors.New("the fake failed")
	case j.kind == "late" && time.Since(j.posted) > 300*time.Millisecond:
		j.fill()
		return true, nil
	}
	return false, nil
}

// fill writes the number of the remote slot to the local one.
func (j *fakeJob) fill() {
	size := j.e.open.Layout.Bytes()
	for i, s := range j.t.Local {
		slot := j.e.memory[int(s)*j.e.open.Stride:][:size]
		for k := range slot {
			slot[k] = byte(j.t.Remote[i])
		}
	}
}

func (j *fakeJob) Close() error { return nil }
