package kvsource

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/go-zeromq/zmq4"
)

// accept binds the event socket and reads from the engine that connects to it, until the socket
// fails or ctx ends. A restarted engine may connect before the loss of its old connection shows, so
// a new connection ends the one before. A peer that does not greet can delay the next one, for
// Config.Timeout at most.
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

	var reader sync.WaitGroup // of the present connection
	defer reader.Wait()
	var current net.Conn
	for {
		raw, err := l.Accept()
		if current != nil {
			current.Close()
			reader.Wait()
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		current = raw
		reader.Go(func() { s.readAccepted(ctx, raw) })
	}
}

// readAccepted reads from one engine until its connection breaks.
func (s *Source) readAccepted(ctx context.Context, raw net.Conn) {
	z, conn, err := greet(ctx, raw, zmq4.Sub, true, &s.cfg)
	if err == nil {
		err = s.readEvents(ctx, z, conn, func() {})
	}
	if s.connected() {
		s.lost(err, false)
		s.consumer.Connected(false)
	}
}
