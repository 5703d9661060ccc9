package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/stator-project/stator/test/loopback"
	"github.com/stator-project/stator/test/process"
)

// relayBytes is the first argument of this program as the empty proxy. Pairs of addresses follow: its own, and the engine's behind it.
const relayBytes = "relay-bytes"

// serveBytes is a process between Envoy and engines that does nothing but read and write. It shows what the hop through Go costs.
func serveBytes(ctx context.Context, pairs []string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		ln, err := net.Listen("tcp", pairs[i])
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = ln.Close() })
		go func() {
			for {
				client, err := ln.Accept()
				if err != nil {
					return
				}
				go relayConnection(client, pairs[i+1])
			}
		}()
	}
	<-ctx.Done()
	return nil
}

// relayConnection relays a connection until one side ends it.
func relayConnection(client net.Conn, address string) {
	defer func() { _ = client.Close() }()
	engine, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = engine.Close() }()
	go relayPieces(engine, client)
	relayPieces(client, engine)
}

// relayPieces writes what it reads. Unlike io.Copy it does not splice, which takes more system calls for small pieces.
func relayPieces(to, from net.Conn) {
	defer func() { _ = to.Close() }()
	piece := make([]byte, 16<<10)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// startEmpty starts engines, the empty proxy in front of them, and a gateway.
func (o *options) startEmpty(ctx context.Context) (g *process.Gateway, proxy int, stop func(), err error) {
	var children []*process.Child
	folder, err := os.MkdirTemp("", "stator-benchmigration-")
	stop = func() {
		if g != nil {
			g.Stop()
		}
		for _, c := range children {
			c.Stop()
		}
		_ = os.RemoveAll(folder)
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	start := func(program string, args ...string) {
		if err != nil {
			return
		}
		var c *process.Child
		c, err = process.StartChild(args[0], filepath.Join(folder, "log"), nil, program, args...)
		if err == nil {
			children = append(children, c)
		}
	}
	address := func() (a string) {
		if err == nil {
			a, err = loopback.Address()
		}
		return a
	}

	var keys strings.Builder
	_, _ = keys.WriteString("  workers:\n")
	args := []string{relayBytes}
	for i := range o.engines {
		front, engine := address(), address()
		events, replay := "tcp://"+address(), "tcp://"+address()
		args = append(args, front, engine)
		start(o.stator, "sim", "--listen-address", engine, "--max-num-seqs", maxSeqs, "--kv-events", events, "--kv-replay", replay)
		_, _ = fmt.Fprintf(&keys, "  - {name: e%d, engine: sim, address: %q, kvEvents: %q, kvReplay: %q}\n", i, front, events, replay)
	}
	self, selfErr := os.Executable()
	if err == nil {
		err = selfErr
	}
	start(self, args...)
	if err != nil {
		return nil, 0, nil, err
	}
	proxy = children[len(children)-1].PID()
	g, err = o.startGateway(ctx, keys.String())
	return g, proxy, stop, err
}
