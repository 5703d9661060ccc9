package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/cli"
)

// otherRouters connects a router with its replicas, without a bus of their own.
type otherRouters struct {
	addresses cli.List
	service   string
	listen    string
	server    *bus.Embedded // nil for a router alone
	bus       *bus.Bus      // nil for a router alone
}

func (r *otherRouters) addFlags(f *cli.Flags) {
	f.Var(&r.addresses, "peers",
		"`address` of the other routers, host:port, for the exchange of bookings without a bus; a name stands for all its addresses, such "+
			"as that of a headless Service, this router's among them; may be given more than once")
	f.StringVar(&r.service, "peers-service", "",
		"`name` of the Service of the routers in Kubernetes, instead of --peers: its EndpointSlices have their addresses")
	f.StringVar(&r.listen, "peers-address", "",
		"`ip:port` at which the others reach this router (default the port of --peers, or 6222, at every IP)")
}

// join starts the server for the other routers, and joins it. It does not wait for them.
func (r *otherRouters) join(ctx context.Context, p *process) error {
	switch {
	case len(r.addresses) == 0 && r.listen == "" && r.service == "":
		return nil
	case r.service != "" && len(r.addresses) > 0:
		return errors.New("--peers-service and --peers exclude each other: the addresses are either found or given")
	case p.bus != nil:
		return errors.New("--peers and a bus exclude each other: routers with a bus tell each other there")
	}
	cfg := bus.PeersConfig{Peers: r.addresses}
	var err error
	cfg.Host, cfg.Port, err = r.listenAt()
	if err != nil {
		return err
	}
	cfg.TLS, err = p.doors.ForPeers(cfg.Host, p.log)
	if err != nil {
		return err
	}

	r.server, err = bus.EmbedPeers(cfg)
	if err != nil {
		return fmt.Errorf("--peers: %w", err)
	}
	r.bus, err = bus.Connect(ctx, bus.Config{
		Embedded: r.server, Cluster: p.cfg.Bus.Cluster, LeaseTTL: p.cfg.Bus.LeaseTTL.Std(), Name: "stator-" + p.name,
		Log: p.log, Metrics: p.reg,
	})
	if err != nil {
		r.close()
		return err
	}
	p.log.Info("replicas of the router are looked for", "peers", r.addresses.String()+r.service, "listen", r.server.PeersAddress())
	if r.service != "" {
		return r.followService(p, cfg.Port)
	}
	return nil
}

// followService has the server connect to the pods of the Service, also of later ones.
func (r *otherRouters) followService(p *process, port int) error {
	client, err := kubernetes.NewClient(p.pools.api)
	if err != nil {
		return err
	}
	namespace := cmp.Or(p.pools.namespace, client.Namespace())
	p.part(func(ctx context.Context) error {
		kubernetes.FollowService(ctx, client, namespace, r.service, p.log, func(ips []string) {
			var peers []string
			for _, ip := range ips {
				peers = append(peers, net.JoinHostPort(ip, strconv.Itoa(port)))
			}
			if err := r.server.SetPeers(peers); err != nil {
				p.log.Error("replicas of the router not found", "err", err)
			}
		})
		return nil
	})
	return nil
}

// defaultPeers is the address for other routers if only their Service is named. The port is NATS's own for that purpose.
const defaultPeers = ":6222"

// listenAt returns the address of the server.
func (r *otherRouters) listenAt() (host string, port int, err error) {
	at := r.listen
	if at == "" && r.service != "" {
		at = defaultPeers
	}
	if at == "" {
		_, of, _ := net.SplitHostPort(r.addresses[0])
		at = ":" + of
	}
	host, text, err := net.SplitHostPort(at)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 1 {
		return "", 0, fmt.Errorf("--peers and --peers-address need addresses such as stator-peers:6222 and 10.0.0.1:6222; %q is none", at)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return host, port, nil
}

// close leaves the other routers.
func (r *otherRouters) close() {
	if r.bus != nil {
		r.bus.Close()
	}
	if r.server != nil {
		r.server.Close()
	}
}
