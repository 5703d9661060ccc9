package xds

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stator-project/stator/internal/fleet"
)

// Server serves the results of Build to any number of Envoys over ADS, in both variants of the protocol.
//
// Invariants: the caches have the same configuration, whose fingerprint is pushed. Envoys differ in their listeners
// and in what their versions have; see tables. Resources that did not change keep their versions, so Envoys get only
// differences.
type Server struct {
	log      *slog.Logger
	fleet    *fleet.Fleet
	settings atomic.Pointer[Settings]
	reload   chan struct{} // has a token when settings changed since the last push
	metrics  *metrics
	tooOld   onceEach // Envoys that were refused for their version

	tables    *tables              // listeners, routes and clusters of every Envoy
	endpoints *cachev3.LinearCache // apart, because they change often

	// Written by Run alone.
	clusters map[string][]byte // content of each cluster in the last push
	nudges   map[string]int    // how often the content of a cluster changed
	leavers  *leavers
	pushed   [sha256.Size]byte // fingerprint of the last push
}

// NewServer returns a server without resources. Run makes the first push.
func NewServer(s Settings, f *fleet.Fleet, log *slog.Logger, reg prometheus.Registerer) *Server {
	srv := &Server{
		log:      log,
		fleet:    f,
		reload:   make(chan struct{}, 1),
		metrics:  newMetrics(reg),
		tables:   newTables(),
		clusters: map[string][]byte{},
		nudges:   map[string]int{},
		leavers:  newLeavers(),
		// An Envoy that reconnects sends the versions that it has. Those of an earlier process must not equal
		// ours, so ours begin with the time of the start.
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
	// In an older protocol a request without names means all resources. No Envoy wants that of endpoints.
	named := config.DeactivateLegacyWildcardForTypes([]string{resourcev3.EndpointType})
	discoverygrpc.RegisterAggregatedDiscoveryServiceServer(g, serverv3.NewServer(ctx, mux, s.callbacks(), named))
	endpointgrpc.RegisterEndpointDiscoveryServiceServer(g, serverv3.NewServer(ctx, s.endpoints, s.endpointCallbacks(), named))
}

// A push makes every Envoy rebuild its load balancers. On average there is at most one push in interval. After a
// quiet time there may be burst pushes without a wait, so that a new worker is used at once. Changes within
// together are one push.
const (
	interval = time.Second
	burst    = 4
	together = 20 * time.Millisecond
)

// Run pushes the configuration now, and after every change of the fleet or the settings, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	refill := time.NewTicker(interval)
	defer refill.Stop()

	for allowed := burst; ; {
		// The channel is taken before the snapshot, so a change in between starts another push.
		changed := s.fleet.Changed()
		pushed, later, err := s.push(time.Now())
		if err != nil {
			// The last good configuration stays in force.
			s.log.Error("configuration not pushed", "err", err)
		}
		if pushed {
			allowed--
		}

		var forget <-chan time.Time // when workers that left can be removed
		if later {
			forget = time.After(linger)
		}
		var due <-chan time.Time // set by the first change; see together
		for waiting := true; waiting || allowed == 0; {
			select {
			case <-changed:
				changed = nil // one change is enough for a push
				due = time.After(together)
			case <-s.reload:
				waiting = false
			case <-forget:
				waiting = false
			case <-due:
				waiting = false
			case <-refill.C:
				allowed = min(burst, allowed+1)
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// push builds the configuration and publishes it, unless it equals the last one. Endpoints are published before
// clusters, so that a new cluster finds its endpoints when it asks for them. later reports that another push is
// necessary after linger, to remove workers that have left.
func (s *Server) push(now time.Time) (pushed, later bool, err error) {
	snapshot := s.fleet.Snapshot()
	left, later := s.leavers.update(snapshot, now)
	r, err := Build(*s.settings.Load(), snapshot, left...)
	if err != nil {
		return false, later, err
	}

	s.nudge(r)
	// Most changes of a fleet are changes of load, which are not part of the configuration.
	sum := r.fingerprint()
	if sum == s.pushed {
		return false, later, nil
	}

	members := map[string]types.Resource{}
	for _, e := range r.Endpoints {
		members[e.ClusterName] = e
	}
	// Endpoints of models that were removed are deleted.
	var gone []string
	for name := range s.endpoints.GetResources() {
		if members[name] == nil {
			gone = append(gone, name)
		}
	}
	if err := s.endpoints.UpdateResources(members, gone); err != nil {
		return false, later, fmt.Errorf("update endpoints: %w", err)
	}

	if err := s.tables.set(*s.settings.Load(), r); err != nil {
		return false, later, err
	}

	s.metrics.lastPush.SetToCurrentTime()
	s.pushed = sum
	s.log.Debug("configuration pushed", "clusters", len(r.Clusters))
	return true, later, nil
}

// nudge changes the endpoints of every cluster whose content changed. Envoy warms a changed cluster until it gets
// endpoints. It does not ask for them again, and the cache does not send endpoints with equal content. Without a
// change, the cluster would wait for the initial fetch timeout.
func (s *Server) nudge(r Resources) {
	for _, c := range r.Clusters {
		now := bytesOf(c)
		if last, known := s.clusters[c.Name]; known && string(last) != string(now) {
			s.nudges[c.Name]++
		}
		s.clusters[c.Name] = now
	}

	for _, e := range r.Endpoints {
		n := s.nudges[e.ClusterName]
		if n == 0 || len(e.Endpoints[0].LbEndpoints) == 0 {
			continue
		}
		// Metadata of an endpoint under an unknown name has no effect in Envoy.
		e.Endpoints[0].LbEndpoints[0].Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"stator.nudge": {Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(float64(n))}},
		}}
	}
}
