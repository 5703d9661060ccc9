package xds

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverygrpc "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointgrpc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/config"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/stator-project/stator/internal/fleet"
)

// Server serves the results of Build to any number of Envoys over ADS, in both variants of the protocol.
//
// Invariants: the caches have the same configuration. Envoys differ in their listeners and in the fields of their versions; see
// tables. Resources that did not change keep their versions, so Envoys get only differences. A change of the fleet rebuilds the
// endpoints of the pools that it changes, and nothing else.
type Server struct {
	log      *slog.Logger
	fleet    *fleet.Fleet
	settings atomic.Pointer[Settings]
	reload   chan struct{} // has a token when settings changed since the last push
	metrics  *metrics
	tooOld   onceEach // Envoys that were refused for their version

	tables    *tables              // listeners, routes and clusters of every Envoy
	endpoints *cachev3.LinearCache // apart, because they change often

	status *journal // for the status pages

	// Used by Run alone.
	applied   Settings          // the last ones from which tables could be built
	pools     map[string]*pool  // by the name of the cluster; for the models of applied
	clusters  map[string][]byte // content of each cluster in the last tables
	next      *Resources        // tables that the next push publishes; nil for none
	tablesSum [sha256.Size]byte // fingerprint of the last tables
}

// NewServer returns a server without resources. Run makes the first push.
func NewServer(s Settings, f *fleet.Fleet, log *slog.Logger, reg prometheus.Registerer) *Server {
	srv := &Server{
		log:      log,
		fleet:    f,
		reload:   make(chan struct{}, 1),
		metrics:  newMetrics(reg),
		tables:   newTables(),
		status:   newJournal(),
		clusters: map[string][]byte{},
		// An Envoy that reconnects sends the versions that it has. Versions of an earlier process must not
		// equal ours, so ours begin with the time of the start.
		endpoints: cachev3.NewLinearCache(resourcev3.EndpointType, cachev3.WithVersionPrefix(strconv.FormatInt(time.Now().UnixNano(),
			36)+"-")),
	}
	srv.settings.Store(&s)
	return srv
}

// Options returns the options of a gRPC server for Envoys. Envoys send pings to detect half-open connections (see
// Bootstrap). By default grpc-go treats more than one ping in five minutes as abuse and closes the connection.
func Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: pingInterval / 2, PermitWithoutStream: true,
	})}
}

// Reload replaces the settings. Run pushes the new configuration.
func (s *Server) Reload(n Settings) {
	s.settings.Store(&n)
	select {
	case s.reload <- struct{}{}:
	default: // a push is due already
	}
}

// Register adds the discovery services to g: ADS, and endpoints alone for Envoys that another control plane configures. Their
// streams end with ctx.
func (s *Server) Register(ctx context.Context, g *grpc.Server) {
	classify := func(url string) string {
		if url == resourcev3.EndpointType {
			return "endpoints"
		}
		return "tables"
	}

	// Two caches behind one stream: each type of resource is in one of them.
	mux := &cachev3.MuxCache{
		Classify:      func(r *cachev3.Request) string { return classify(r.GetTypeUrl()) },
		ClassifyDelta: func(r *cachev3.DeltaRequest) string { return classify(r.GetTypeUrl()) },
		Caches:        map[string]cachev3.Cache{"tables": s.tables.cache, "endpoints": s.endpoints},
	}
	// In an older protocol a request without names means all resources. No Envoy wants all endpoints.
	named := config.DeactivateLegacyWildcardForTypes([]string{resourcev3.EndpointType})
	discoverygrpc.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(ctx, mux, s.callbacks(false, s.asked, s.left), named))
	endpointgrpc.RegisterEndpointDiscoveryServiceServer(g, serverv3.NewServer(ctx, s.endpoints, s.endpointCallbacks(), named))
}

// together is the time that a push waits after a change, because one change is often followed by others. They are one push.
const together = 20 * time.Millisecond

// Run pushes the configuration now, and after every change of the fleet or the settings, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	s.reconfigure()
	for {
		// The channel is taken before the snapshot, so a change in between starts another push.
		changed := s.fleet.Changed()
		next := s.push(s.fleet.Snapshot(), time.Now())

		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-changed:
			select {
			case <-time.After(together):
			case <-ctx.Done():
				return nil
			}
		case <-s.reload:
			s.reconfigure()
		case <-due:
		case <-ctx.Done():
			return nil
		}
	}
}

// reconfigure builds the listeners, routes and clusters of the settings, which the next push publishes if they differ from the last
// ones. After an error the last settings stay in force.
func (s *Server) reconfigure() {
	settings := *s.settings.Load()
	r, err := buildTables(settings)
	if err != nil {
		s.status.fail(partTables, err.Error(), time.Now())
		s.log.Error("configuration not pushed; the last one stays in force", "err", err)
		return
	}
	if s.next == nil {
		s.status.succeed(partTables)
	}

	pools := map[string]*pool{}
	for _, m := range settings.Models {
		p := s.pools[PoolName(m)]
		if p == nil {
			p = newPool(m)
		}
		p.again = p.again || !slices.Equal(settings.Relays, s.applied.Relays)
		pools[PoolName(m)] = p
	}
	for name := range s.pools {
		if pools[name] == nil {
			s.status.succeed(name) // a cluster that is gone has no failure
		}
	}
	s.pools = pools
	s.applied = settings
	if sum := r.fingerprint(); sum != s.tablesSum {
		s.tablesSum, s.next = sum, &r
		s.findChanged(r.Clusters)
	}
}

// findChanged has the endpoints of every cluster whose content has changed published once more.
func (s *Server) findChanged(clusters []*clusterv3.Cluster) {
	for _, c := range clusters {
		now := bytesOf(c)
		last, known := s.clusters[c.Name]
		s.clusters[c.Name] = now
		p := s.pools[c.Name]
		if p != nil && known && string(last) != string(now) {
			p.nudges++
			p.again = true
		}
	}
}

// push publishes the changes that may be published at this time, and returns when there is more; zero means after the next
// change. Endpoints are published before clusters, so that a new cluster finds its endpoints when it asks for them.
func (s *Server) push(snapshot *fleet.Snapshot, now time.Time) (next time.Time) {
	members := map[string]types.Resource{}
	workers := byModel(snapshot)
	for _, model := range s.applied.Models {
		p := s.pools[PoolName(model)]
		due := p.observe(workers[model], now)
		if p.again && s.next != nil {
			due = now // its cluster waits for it
		}
		if due.IsZero() || due.After(now) {
			next = earliest(next, due)
			continue
		}
		if e := s.build(p, now); e != nil {
			members[e.ClusterName] = e
		}
		next = earliest(next, p.observe(workers[model], now))
	}

	if err := s.publish(members); err != nil {
		s.status.fail(partTables, err.Error(), now)
		s.log.Error("configuration not pushed to all Envoys; the next change tries again", "err", err)
	}
	return next
}

// build returns the endpoints of a pool, or nil if they are invalid. Envoys then keep their present endpoints.
func (s *Server) build(p *pool, now time.Time) *endpointv3.ClusterLoadAssignment {
	e, err := p.build(&s.applied, now)
	if err == nil {
		p.wasPublished(now)
		s.status.succeed(PoolName(p.model))
		return e
	}

	if p.failed != err.Error() {
		s.log.Error("endpoints not pushed; the last ones stay in force", "cluster", PoolName(p.model), "err", err)
	}
	p.wasRefused(err.Error(), now)
	s.status.fail(PoolName(p.model), err.Error(), now)
	return nil
}

// publish puts endpoints and new tables into the caches. Endpoints of models that were removed are deleted.
func (s *Server) publish(members map[string]types.Resource) error {
	var gone []string
	if s.next != nil {
		for name := range s.endpoints.GetResources() {
			if s.pools[name] == nil {
				gone = append(gone, name)
			}
		}
	}
	if len(members) == 0 && len(gone) == 0 && s.next == nil {
		return nil
	}

	s.metrics.lastPush.SetToCurrentTime()
	s.log.Debug("configuration pushed", "endpoints", len(members), "tables", s.next != nil)
	if err := s.endpoints.UpdateResources(members, gone); err != nil {
		return fmt.Errorf("update endpoints: %w", err)
	}
	if s.next == nil {
		return nil
	}
	if err := s.tables.setTables(s.applied, *s.next); err != nil {
		return err
	}
	s.next = nil
	s.status.succeed(partTables)
	return nil
}

// earliest returns the earlier of two times. Zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
