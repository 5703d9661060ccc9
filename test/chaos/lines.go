package main

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/test/busproxy"
)

// misbehaviour changes the answers of a line's engine. Probes of health and metrics pass unchanged: an engine that does not answer them
// is dead, which another fault plays.
type misbehaviour struct {
	name string
	// answer is what each request with a body gets, and hold keeps the connection open after it.
	answer []byte
	hold   bool
	// resets cuts each answer off after a random number of bytes.
	resets bool
}

// misbehaviours are what broken engines do.
var misbehaviours = []misbehaviour{
	{name: "hangs", hold: true},
	{name: "resets at random bytes", resets: true},
	{name: "answers garbage", answer: []byte("\x00\x01\x02 this is no HTTP\r\n\r\n")},
	{name: "lies in content-length", answer: []byte("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n" +
		"data: {}\n\n")},
	{name: "sends headers of 1 MB", answer: append(bytes.Repeat([]byte("x-long: "+strings.Repeat("a", 1000)+"\r\n"), 1000), "\r\n"...)},
	{name: "closes early", answer: []byte("")},
	{name: "answers 500", answer: []byte("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")},
}

func init() {
	// The lines of the headers need a status before them.
	for i := range misbehaviours {
		if bytes.HasPrefix(misbehaviours[i].answer, []byte("x-long")) {
			misbehaviours[i].answer = append([]byte("HTTP/1.1 200 OK\r\n"), misbehaviours[i].answer...)
		}
	}
}

// line is the way to an engine: it passes bytes in both directions.
type line struct {
	engine string
	ln     net.Listener
	all    sync.WaitGroup

	mu    sync.Mutex
	now   misbehaviour // guarded by mu
	rng   *rand.Rand   // guarded by mu
	conns []net.Conn   // guarded by mu
	held  []net.Conn   // guarded by mu; those that wait for an answer that does not come
}

func newLine(address, engine string, seed uint64) (*line, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &line{engine: engine, ln: ln, rng: rand.New(rand.NewPCG(seed, 2))}
	l.all.Go(func() { accept(ln, &l.all, l.pass) })
	return l, nil
}

func (l *line) address() string { return l.ln.Addr().String() }

// set changes the behaviour for new connections. At the end of a misbehaviour the connections without an answer end.
func (l *line) set(m misbehaviour) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = m
	if m.name == "" {
		closeAll(&l.held)
	}
}

func (l *line) close() {
	_ = l.ln.Close()
	l.mu.Lock()
	closeAll(&l.conns)
	l.mu.Unlock()
	l.all.Wait()
}

// keep remembers a connection, so that it can be ended.
func keep(mu *sync.Mutex, list *[]net.Conn, more ...net.Conn) {
	mu.Lock()
	defer mu.Unlock()
	*list = append(*list, more...)
}

func closeAll(list *[]net.Conn) {
	for _, c := range *list {
		_ = c.Close()
	}
	*list = nil
}

// accept gives each connection to a function, until the listener ends.
func accept(ln net.Listener, all *sync.WaitGroup, pass func(net.Conn)) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer func() { _ = conn.Close() }()
			pass(conn)
		})
	}
}

// pass serves one connection.
func (l *line) pass(client net.Conn) {
	keep(&l.mu, &l.conns, client)
	in := bufio.NewReader(client)
	first, err := in.Peek(4)
	if err != nil {
		return
	}
	l.mu.Lock()
	m := l.now
	if m.hold {
		l.held = append(l.held, client)
	}
	after := int64(1 + l.rng.IntN(8000))
	l.mu.Unlock()
	if string(first) == "GET " {
		m = misbehaviour{}
	}
	if m.name != "" && !m.resets {
		_ = client.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, in)
		_, _ = client.Write(m.answer)
		if m.hold {
			_ = client.SetReadDeadline(time.Time{})
			_, _ = io.Copy(io.Discard, client)
		}
		return
	}

	engine, err := net.Dial("tcp", l.engine)
	if err != nil {
		return
	}
	defer func() { _ = engine.Close() }()
	keep(&l.mu, &l.conns, engine)
	l.all.Go(func() {
		_, _ = io.Copy(engine, in)
		_ = engine.Close()
	})
	if !m.resets {
		_, _ = io.Copy(client, engine)
		return
	}
	_, _ = io.CopyN(client, engine, after)
	if tcp, ok := client.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// busFault is a fault of the messages that a router receives.
type busFault struct {
	name string
	// lost, twice and late are shares of the messages.
	lost, twice, late float64
	// cut ends the connection, and refuses further ones.
	cut bool
}

var busFaults = []busFault{
	{name: "loses messages", lost: 0.1},
	{name: "repeats messages", twice: 0.1},
	{name: "delays messages", late: 0.1},
	{name: "cuts a router off", cut: true},
	{name: "loses, repeats and delays messages", lost: 0.1, twice: 0.1, late: 0.05},
}

// fault returns the fault of a proxy before the bus.
func (f busFault) fault(rng *rand.Rand) busproxy.Fault {
	return func(string, []byte) (times int, late bool) {
		switch x := rng.Float64(); {
		case x < f.lost:
			return 0, false
		case x < f.lost+f.twice:
			return 2, false
		default:
			return 1, x > 1-f.late
		}
	}
}
