package extproc

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// busProxy forwards between a NATS client and its server. A fault function can drop, repeat or delay the
// messages that the client receives.
type busProxy struct {
	t      *testing.T
	ln     net.Listener
	server string
	all    sync.WaitGroup

	mu    sync.Mutex
	fault func(subject string, payload []byte) (times int, late bool) // guarded by mu
	conns []net.Conn                                                  // guarded by mu
}

// newBusProxy returns a proxy without a fault.
func newBusProxy(t *testing.T, server string) *busProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &busProxy{t: t, ln: ln, server: server}
	p.all.Go(p.serve)
	t.Cleanup(func() {
		_ = ln.Close()
		p.cut()
		p.all.Wait()
	})
	return p
}

func (p *busProxy) url() string { return "nats://" + p.ln.Addr().String() }

// set replaces the fault function. It returns how often a message is forwarded, and whether only after
// the next one. Nil forwards every message once.
func (p *busProxy) set(fault func(subject string, payload []byte) (times int, late bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// cut breaks all connections.
func (p *busProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *busProxy) serve() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.all.Go(func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		})
		p.all.Go(func() {
			p.pass(bufio.NewReader(server), client)
			_ = client.Close()
		})
	}
}

// pass forwards the server's messages one by one.
func (p *busProxy) pass(from *bufio.Reader, to io.Writer) {
	var waiting []byte
	for {
		frame, subject, payload, err := readFrame(from)
		if err != nil {
			return
		}
		times, late := 1, false
		p.mu.Lock()
		if p.fault != nil && subject != "" {
			times, late = p.fault(subject, payload)
		}
		p.mu.Unlock()
		out := bytes.Repeat(frame, times)
		if late {
			waiting = append(waiting, out...)
			continue
		}
		if _, err := to.Write(append(out, waiting...)); err != nil {
			return
		}
		waiting = nil
	}
}

// readFrame reads a line, and the payload that follows it if it begins a message.
func readFrame(from *bufio.Reader) (frame []byte, subject string, payload []byte, err error) {
	frame, err = from.ReadBytes('\n')
	if err != nil {
		return nil, "", nil, err
	}
	words := strings.Fields(string(frame))
	if len(words) < 4 || words[0] != "MSG" && words[0] != "HMSG" {
		return frame, "", nil, nil
	}
	n, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return nil, "", nil, err
	}
	payload = make([]byte, n+2)
	if _, err := io.ReadFull(from, payload); err != nil {
		return nil, "", nil, err
	}
	return append(frame, payload...), words[1], payload[:n], nil
}
