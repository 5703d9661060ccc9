package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/listen"
)

const busAbout = `Runs the message bus, an embedded NATS server that keeps its data in memory. Any NATS server with
JetStream can be used instead.`

// anyPort is the number by which NATS chooses a free port. With port 0 it would use 4222.
const anyPort = -1

func runBus(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "bus", busAbout)
	at := f.String("listen-address", "127.0.0.1:4222", "`address` for the other parts")
	lf := cli.AddLogFlags(f)
	if err := f.Read(args); err != nil {
		return err
	}
	log, err := lf.Logger(env.err)
	if err != nil {
		return err
	}
	if err := listen.Check(*at, "--listen-address"); err != nil {
		return err
	}

	address, err := net.ResolveTCPAddr("tcp", *at)
	if err != nil {
		return fmt.Errorf("--listen-address: %w", err)
	}
	removeStaleFolders(log)
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", runFolder, os.Getpid()))
	if err != nil {
		return fmt.Errorf("make a folder for the bus: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if address.Port == 0 {
		address.Port = anyPort
	}
	e, err := bus.Embed(bus.EmbedConfig{Host: address.IP.String(), Port: address.Port, Dir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}

	log.Info("serving", "part", "bus", "url", e.URL())
	<-ctx.Done()
	e.Close()
	log.Info("stopped", "part", "bus")
	return nil
}
