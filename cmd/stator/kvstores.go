package main

import (
	"cmp"
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

// kvStores returns the stores of KV blocks of the models whose engines a node launches, and the announcer by which they find the stores
// of other nodes.
func kvStores(cfg *config.Config, launches []engine.Launch, name string, site *engine.Site, b *bus.Bus, log *slog.Logger,
	reg prometheus.Registerer) (all []*node.Node, found *announce.Announcer, err error) {
	found = announce.New(b, name)
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
			return nil, nil, fmt.Errorf("token of the nodes that share KV blocks of %s: %w", m.Name, err)
		}

		n, err := node.New(node.Config{
			Model: m.Name, Socket: site.KVStore(m.Name), HostBytes: k.HostBytes,
			DiskDir: k.DiskPath, DiskBytes: k.DiskBytes, DiskWrite: writePolicy(k.DiskWrite),
			Object:       object.S3Config{Endpoint: k.Endpoint, Bucket: k.Bucket, Region: k.Region, PathStyle: k.PathStyle},
			ObjectPrefix: k.Prefix, ObjectBytes: k.ObjectBytes, ObjectWrite: writePolicy(k.ObjectWrite), Node: nodeName(name),
			PeerToken: token, Peers: k.Peers, PeerListen: k.PeerListen, PeerAddress: k.PeerAddress, Host: site.Host,
			NIXL:   kvNIXL(k),
			Served: func(address string) { found.Serve(m.Name, address) },
			Log:    log, Metrics: reg,
		})
		if err != nil {
			return nil, nil, fmt.Errorf("store of KV blocks of %s: %w", m.Name, err)
		}
		all = append(all, n)
		if token != "" {
			found.Follow(m.Name, n)
		}
	}
	return all, found, nil
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

// reportedStore returns a function for agents that returns what routers need to know of a model's store.
func reportedStore(stores []*node.Node) func(model string) fleet.Store {
	return func(model string) (none fleet.Store) {
		for _, s := range stores {
			if s.Model() == model {
				return s.Report()
			}
		}
		return none
	}
}

// kvSources returns stores as the admin port has them.
func kvSources(stores []*node.Node) []admin.KVStore {
	all := make([]admin.KVStore, len(stores))
	for i, s := range stores {
		all[i] = s
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
