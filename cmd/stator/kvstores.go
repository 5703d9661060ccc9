package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/announce"
	"github.com/stator-project/stator/kvbm/node"
	"github.com/stator-project/stator/kvbm/object"
	"github.com/stator-project/stator/workeragent/engine"
)

// kvStores are the stores of KV blocks of the models whose engines a node launches, and the announcer by which they find the stores
// of other nodes.
type kvStores struct {
	all   []*node.Node
	found *announce.Announcer
}

func newKVStores(cfg *config.Config, launches []engine.Launch, name string, site *engine.Site, b *bus.Bus, log *slog.Logger,
	reg prometheus.Registerer) (s kvStores, err error) {
	s.found = announce.New(b, name)
	launched := map[string]bool{}
	for i := range launches {
		launched[launches[i].Model] = launched[launches[i].Model] || launches[i].KVStore
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		if !launched[m.Name] {
			continue
		}
		k := &m.KV
		token, err := peerToken(k)
		if err != nil {
			return s, fmt.Errorf("token of the nodes that share KV blocks of %s: %w", m.Name, err)
		}

		n, err := node.New(node.Config{
			Model: m.Name, Socket: site.KVStore(m.Name), HostBytes: k.HostBytes,
			DiskDir: k.DiskPath, DiskBytes: k.DiskBytes, DiskWrite: writePolicy(k.DiskWrite),
			Object:       object.S3Config{Endpoint: k.Endpoint, Bucket: k.Bucket, Region: k.Region, PathStyle: k.PathStyle},
			ObjectPrefix: k.Prefix, ObjectBytes: k.ObjectBytes, ObjectWrite: writePolicy(k.ObjectWrite), Node: nodeName(name),
			PeerToken: token, Peers: k.Peers, PeerListen: k.PeerListen, PeerAddress: k.PeerAddress, Host: site.Host,
			NIXL:   kvNIXL(k),
			Served: func(address string) { s.found.Serve(m.Name, address) },
			Log:    log, Metrics: reg,
		})
		if err != nil {
			return s, fmt.Errorf("store of KV blocks of %s: %w", m.Name, err)
		}
		s.all = append(s.all, n)
		if token != "" {
			s.found.Follow(m.Name, n)
		}
	}
	return s, nil
}

// addParts adds the parts of a process that run the stores.
func (s *kvStores) addParts(part func(func(context.Context) error), b *bus.Bus, name string) {
	part(s.found.Run)
	if len(s.all) > 0 {
		part(func(ctx context.Context) error { return b.HoldPart(ctx, bus.PartStore, name) })
	}
	for _, n := range s.all {
		part(n.Run)
	}
}

// peerToken returns the token of the nodes that send each other blocks; empty without a file.
func peerToken(k *config.KV) (string, error) {
	if k.PeerTokenFile == "" {
		return "", nil
	}
	return listen.ReadToken(k.PeerTokenFile)
}

// kvNIXL returns the path of the library for copies from other nodes by NIXL; nil without such copies.
func kvNIXL(k *config.KV) *node.NIXL {
	if k.PeerTransport != config.PeerNIXL {
		return nil
	}
	return &node.NIXL{Library: k.NIXLLibrary}
}

// report returns what routers need to know of a model's store.
func (s *kvStores) report(model string) (none fleet.Store) {
	for _, n := range s.all {
		if n.Model() == model {
			return n.Report()
		}
	}
	return none
}

// sources returns the stores as the admin port has them.
func (s *kvStores) sources() []admin.KVStore {
	all := make([]admin.KVStore, len(s.all))
	for i, n := range s.all {
		all[i] = n
	}
	return all
}

func writePolicy(name string) kvbm.Policy {
	if name == config.WriteReused {
		return kvbm.WriteReused
	}
	return kvbm.WriteAll
}

// nodeName returns the name under which a node writes objects: its own name, or the host's. Characters that object names cannot have
// become underscores.
func nodeName(name string) string {
	hostname, _ := os.Hostname() // without one the name below serves
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '_'
	}, cmp.Or(name, hostname, "node"))
	return clean[:min(len(clean), 63)]
}
