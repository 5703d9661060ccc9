package kvsource

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/go-zeromq/zmq4"
)

// accept binds the event socket and hears the engine that connects to it, until the socket
// fails or ctx ends. An engine that is started anew may be here before its old connection is
// seen to be gone, so a new connection ends the one before. Between two a peer that does not
// greet holds the others up for Config.Timeout at most.
func (s *Source) accept(ctx context.Context, bound func()) error {
	address, err := bindAddress(s.cfg.Endpoint)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	bound()
	s.cfg.Logger.Debug("waiting for the engine to connect", "endpoint", s.cfg.Endpoint, "rank", s.cfg.Rank)
	var one sync.WaitGroup // the connection at hand
	defer one.Wait()
	var current net.Conn
	for {
		raw, err := l.Accept()
		if current != nil {
			current.Close()
			one.Wait()
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		current = raw
		one.Go(func() { s.hearAccepted(ctx, raw) })
	}
}

// hearAccepted hears one engine until its connection breaks.
func (s *Source) hearAccepted(ctx context.Context, raw net.Conn) {
	z, conn, err := greet(ctx, raw, zmq4.Sub, true, &s.cfg)
	if err == nil {
		err = s.hear(ctx, z, conn, func() {})
	}
	if up := s.connected(); up {
		s.lost(err, false)
		s.cfg.Connected(false)
	}
}
