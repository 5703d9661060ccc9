// Package busproxy forwards between NATS clients and their server, and loses, repeats, delays or cuts off what clients receive.
package busproxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// Fault returns how often a message is forwarded to a client, and whether only after the next one.
type Fault func(subject string, payload []byte) (times int, late bool)

// Proxy is a proxy on loopback. Create it with [New]. All methods are safe for concurrent use.
type Proxy struct {
	ln     net.Listener
	server string
	all    sync.WaitGroup

	mu     sync.Mutex
	fault  Fault      // guarded by mu
	refuse bool       // guarded by mu
	conns  []net.Conn // guarded by mu
}

// New returns a proxy without a fault before the server at ip:port.
func New(server string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{ln: ln, server: server}
	p.all.Go(p.serve)
	return p, nil
}

// URL returns the address for clients.
func (p *Proxy) URL() string { return "nats://" + p.ln.Addr().String() }

// Set replaces the fault. Nil forwards every message once. The proxy calls one fault at a time.
func (p *Proxy) Set(fault Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// Refuse has the proxy break all connections and refuse further ones, or accept them again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refuse = refuse
	p.mu.Unlock()
	if refuse {
		p.Cut()
	}
}

// Cut breaks all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// Close ends the proxy.
func (p *Proxy) Close() {
	_ = p.ln.Close()
	p.Refuse(true)
	p.all.Wait()
}

// join remembers the connections of a client, unless it is refused.
func (p *Proxy) join(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.refuse {
		p.conns = append(p.conns, conns...)
	}
	return !p.refuse
}

func (p *Proxy) serve() {
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
		if !p.join(client, server) {
			_ = client.Close()
			_ = server.Close()
			continue
		}

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
func (p *Proxy) pass(from *bufio.Reader, to io.Writer) {
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
