package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// clients keep connections to one gateway open for as long as they are needed: the time to open
// them must not count.
type clients struct {
	address string
	streams []*stream
}

// stream is one connection with one request at a time.
type stream struct {
	conn net.Conn
	in   *bufio.Reader
	head []byte
	body []byte
	took []time.Duration
}

func dial(address string, n int) (*clients, error) {
	c := &clients{address: address}
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			c.close()
			return nil, fmt.Errorf("connect to gateway: %w", err)
		}
		c.streams = append(c.streams, &stream{conn: conn, in: bufio.NewReader(conn)})
	}

	return c, nil
}

func (c *clients) close() {
	for _, s := range c.streams {
		_ = s.conn.Close()
	}
}

// sendAll sends n requests and returns when all are answered: how long that took, and how long
// each of them. appendBody makes the body of request i, which is not timed.
func (c *clients) sendAll(ctx context.Context, n int, appendBody func(dst []byte, i int) []byte) (wall time.Duration, took []time.Duration,
	err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()

	for _, s := range c.streams {
		all.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				s.body = appendBody(s.body[:0], i)
				if err := s.send(c.address); err != nil {
					cancel(err)
				}
			}
		})
	}

	all.Wait()
	wall = time.Since(began)

	for _, s := range c.streams {
		took = append(took, s.took...)
		s.took = s.took[:0]
	}
	return wall, took, context.Cause(ctx)
}

// send sends the body and reads the answer, which must be a worker's.
func (s *stream) send(host string) error {
	s.head = fmt.Appendf(s.head[:0], "POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\n"+
		"accept: application/json\r\nauthorization: Bearer "+clientKey+"\r\nx-tenant: "+clientTenant+"\r\nuser-agent: benchrequest\r\n"+
		"content-length: %d\r\n\r\n", host, len(s.body))
	began := time.Now()
	if err := s.conn.SetDeadline(began.Add(time.Minute)); err != nil {
		return err
	}

	out := net.Buffers{s.head, s.body}
	if _, err := out.WriteTo(s.conn); err != nil {
		return fmt.Errorf("send request: %w", err)
	}

	resp, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}

	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}

	s.took = append(s.took, time.Since(began))
	if resp.StatusCode != http.StatusOK || string(body) != answer {
		return fmt.Errorf("the gateway answered %s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
