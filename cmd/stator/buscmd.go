package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/listen"
)

const busAbout = `Runs the message bus, an embedded NATS server that keeps its data in memory. Any NATS server with
JetStream can be used instead. Beyond loopback it needs --users, --tls-cert and --tls-key; docs/security.md
describes the roles of users.`

// anyPort is the number by which NATS chooses a free port. With port 0 it would use 4222.
const anyPort = -1

// busFlags are the flags of "stator bus".
type busFlags struct {
	at, users  string
	print      bool
	door       bus.EmbedConfig // TLS, insecure and cluster
	leaseTTL   time.Duration
	logOptions *cli.LogFlags
}

func readBusFlags(env environment, args []string) (*busFlags, error) {
	f := cli.New(env.out, env.err, "bus", busAbout)
	o := &busFlags{}
	f.StringVar(&o.at, "listen-address", "127.0.0.1:4222", "`address` for the other parts")
	f.StringVar(&o.users, "users", "", "`file` with users and their roles; see docs/security.md")
	f.BoolVar(&o.print, "print-permissions", false, "print the permissions of --users for another NATS server, and end")
	f.StringVar(&o.door.TLSCert, "tls-cert", "", "`file` with the certificate of the server, in PEM")
	f.StringVar(&o.door.TLSKey, "tls-key", "", "`file` with its key, in PEM")
	f.StringVar(&o.door.ClientCA, "client-ca", "", "`file` with the CA of clients, in PEM: each needs a certificate")
	f.BoolVar(&o.door.Insecure, "insecure", false, "listen beyond loopback without users or TLS, on a network that you trust")
	f.StringVar(&o.door.Cluster, "cluster", config.DefaultCluster, "`name` of the cluster of --users: bus.cluster of its members")
	f.DurationVar(&o.leaseTTL, "lease-ttl", config.DefaultLeaseTTL.Std(), "lifetime of leases with --users: bus.leaseTTL of the members")
	o.logOptions = cli.AddLogFlags(f)

	return o, f.Read(args)
}

func runBus(ctx context.Context, env environment, args []string) error {
	o, err := readBusFlags(env, args)
	if err != nil {
		return err
	}
	log, err := o.logOptions.Logger(env.err)
	if err != nil {
		return err
	}
	if err := o.readUsers(); err != nil {
		return err
	}
	if o.print {
		return bus.WritePermissions(env.out, o.door.Users, o.door.Cluster)
	}

	if err := o.resolve(); err != nil {
		return err
	}
	if o.door.Insecure {
		log.Warn("--insecure: everyone who reaches the bus may be able to add workers and receive prompts", "address", o.at)
	}
	dir, err := makeRunFolder(log)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	o.door.Dir = filepath.Join(dir, "nats")
	o.door.Log = log
	return o.serve(ctx, log)
}

// serve runs the server until ctx ends.
func (o *busFlags) serve(ctx context.Context, log *slog.Logger) error {
	e, err := bus.Embed(o.door)
	if err != nil {
		return err
	}
	defer e.Close()

	// Most roles may not create buckets, so the owner of the server does.
	if len(o.door.Users) > 0 {
		owner, err := bus.Connect(ctx, bus.Config{
			Embedded: e, Cluster: o.door.Cluster, LeaseTTL: o.leaseTTL, Name: "stator-bus", Log: log,
		})
		if err != nil {
			return err
		}
		defer owner.Close()
		if err := owner.CreateBuckets(ctx); err != nil {
			return err
		}
	}

	log.Info("serving", "part", "bus", "url", e.URL())
	<-ctx.Done()
	log.Info("stopped", "part", "bus")
	return nil
}

// readUsers reads the file of users, if there is one.
func (o *busFlags) readUsers() error {
	if o.users == "" {
		return nil
	}
	data, err := os.ReadFile(o.users)
	if err != nil {
		return fmt.Errorf("--users: %w", err)
	}
	o.door.Users, err = bus.ParseUsers(data)
	if err != nil {
		return fmt.Errorf("--users %s: %w", o.users, err)
	}
	return nil
}

// resolve checks the address, before anything is started.
func (o *busFlags) resolve() error {
	address, err := net.ResolveTCPAddr("tcp", o.at)
	if err != nil {
		return fmt.Errorf("--listen-address: %w", err)
	}
	o.door.Host = address.IP.String()
	if address.IP == nil {
		o.door.Host = net.IPv4zero.String() // an address without a host
	}
	o.door.Port = address.Port
	if address.Port == 0 {
		o.door.Port = anyPort
	}

	if err := o.door.Validate(); err != nil {
		return err
	}
	return listen.Check(o.at, "--listen-address")
}
