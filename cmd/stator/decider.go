package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/stream"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/drift"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/peers"
)

// decider is everything that stands between Envoy's question and its answer.
type decider struct {
	log      *slog.Logger
	fleet    *fleet.Fleet
	index    *kvindex.Index
	feed     *feed.Feed
	router   *route.Router
	extproc  *stream.Server
	accesses *accesslog.Server
	grpc     *grpc.Server
	prepared map[string]*prompt.Model // by path; a model's files are read once
	memory   *prompt.Memory

	blockSizes atomic.Pointer[map[string]int]  // by model
	direct     atomic.Pointer[map[string]bool] // workers whose sockets we read ourselves
	caches     *cacheMetrics
	decisions  *decisionLog // nil for none
	drift      *drift.Detector
	// replica is this process's name among the routers; peers are what the others have booked.
	replica string
	peers   *peers.Receiver
}

func newDecider(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) (*decider, error) {
	d := &decider{log: log, prepared: map[string]*prompt.Model{}, replica: newReplica()}
	d.memory = prompt.NewMemory(prompt.MemoryConfig{MaxBytes: cfg.Prompts.MemoryBytes, Seed: rand.Uint64()})
	d.index = kvindex.New(kvindex.Config{MaxBytes: cfg.Index.MaxBytes})
	d.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) {
		d.router.RankGone(id)
		d.feed.RankGone(id)
	}})
	d.peers = peers.NewReceiver(d.replica, d.fleet)
	d.drift = drift.New(drift.Config{Bound: cfg.Index.DriftRatio, Tokens: int(cfg.Index.DriftTokens)})
	d.feed = feed.New(feed.Config{BlockSize: d.blockSize}, d.fleet, d.index)
	var err error
	if d.decisions, err = openDecisionLog(cfg, log, reg); err != nil {
		return nil, err
	}
	speeds, err := profiled(cfg)
	if err != nil {
		return nil, err
	}
	asked := route.Config{Seed: rand.Uint64(), PredictFor: d.feed.Lifetime, Served: d.served, Speeds: speeds}
	if d.decisions != nil {
		asked.Decided = d.decisions.decided
	}
	d.router = route.New(asked, d.fleet, d.index)
	if err := d.setModels(cfg); err != nil {
		return nil, err
	}
	d.extproc = stream.NewServer(extProcSettings(cfg), d.router, log, reg)
	d.accesses = accesslog.NewServer(d.router, log, reg)
	if d.decisions != nil {
		d.accesses.Ended = d.decisions.ended
	}
	d.grpc = grpc.NewServer(stream.Options(config.MaxBodyBytes)...)
	stream.Register(d.grpc, d.extproc)
	accesslog.Register(d.grpc, d.accesses)
	healthv1.RegisterHealthServer(d.grpc, health.NewServer())
	d.caches = newCacheMetrics(reg)
	reg.MustRegister(stream.NewDriftCollector(d.drift), stream.NewPeersCollector(d.peers))
	reg.MustRegister(stream.NewCollector(d.router, d.feed, d.index, d.memory))
	return d, nil
}

// profiled is what the models' profiles say of how fast their workers are.
func profiled(cfg *config.Config) (map[string]perfmodel.Speed, error) {
	speeds := map[string]perfmodel.Speed{}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		if m.Profile == "" {
			continue
		}
		p, err := perfmodel.LoadProfile(os.DirFS(m.Profile))
		if err != nil {
			return nil, fmt.Errorf("models[%d].profile %s: %w", i, m.Profile, err)
		}
		speeds[m.Name] = p.Speed()
	}
	return speeds, nil
}

// setModels gives the router what the configuration names.
func (d *decider) setModels(cfg *config.Config) error {
	routed, sizes := map[string]*route.ModelConfig{}, map[string]int{}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		sizes[m.Name] = m.BlockSize
		if d.prepared[m.Path] == nil {
			p, err := modelfile.Load(m.Path)
			if err != nil {
				return fmt.Errorf("models[%d].path: %w", i, err)
			}
			d.prepared[m.Path] = p.WithMemory(d.memory)
		}
		p := d.prepared[m.Path]
		by, err := m.Router.CostFunction()
		if err != nil {
			return fmt.Errorf("models[%d].router: %w", i, err)
		}
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			routed[name] = &route.ModelConfig{
				Prompt: p, Pool: m.Name, BlockSize: m.BlockSize, ContextLength: p.ContextLength(),
				Policy: m.Router.Policy, Temperature: m.Router.Temperature, Cost: by,
				Busy: m.Router.Busy.Route(), Queue: queueOf(&m.Router), MaxWait: m.Router.Queue.MaxWait.Std(),
			}
		}
	}
	if err := d.router.SetModels(routed); err != nil {
		return err
	}
	d.blockSizes.Store(&sizes)
	return nil
}

// blockSize is the number of tokens by which prompts for a worker are cut.
func (d *decider) blockSize(w *fleet.Worker) int {
	if sizes := d.blockSizes.Load(); sizes != nil {
		return (*sizes)[w.Model]
	}
	return w.BlockSize
}

func extProcSettings(cfg *config.Config) stream.Settings {
	pools := map[string]string{}
	for i := range cfg.Models {
		for _, alias := range cfg.Models[i].Aliases {
			pools[alias] = cfg.Models[i].Name
		}
	}
	return stream.Settings{
		BodyBytes:      cfg.Gateway.MaxBodyBytes,
		RejectUnknown:  cfg.Gateway.UnknownPaths == "reject",
		DefaultModel:   cfg.Models[0].Name,
		Pools:          pools,
		AffinityHeader: cfg.Gateway.AffinityHeader,
		Hints:          stream.Hints(cfg.Gateway.Hints),
	}
}

// reload takes over what may change without a restart.
func (d *decider) reload(cfg *config.Config) error {
	if err := d.setModels(cfg); err != nil {
		return err
	}
	d.extproc.Reload(extProcSettings(cfg))
	d.router.Wake(time.Now()) // thresholds may have changed for who waits
	return nil
}

// run serves Envoy on ln until ctx ends.
func (d *decider) run(ctx context.Context, ln net.Listener) error {
	return serveGRPC(ctx, d.grpc, ln, func(ctx context.Context) error {
		var all sync.WaitGroup
		all.Go(func() { d.settle(ctx) })
		if d.decisions != nil {
			all.Go(func() { d.decisions.run(ctx) })
		}
		err := d.accesses.Run(ctx)
		all.Wait()
		return err
	})
}

// runInformed serves Envoy once the workers on the bus are known. A router that knows none would
// refuse requests that Envoy, left to itself, serves; so the socket stays closed until then.
func (d *decider) runInformed(ctx context.Context, b *bus.Bus, ln net.Listener, at string, fromFile map[string]bool) error {
	if err := ln.Close(); err != nil { // it has shown that the address is free
		return fmt.Errorf("wait for the fleet: %w", err)
	}
	synced := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	all.Go(func() { logEnd(d.log, "bus", d.followBus(ctx, b, fromFile, func() { close(synced) })) })
	select {
	case <-synced:
	case <-ctx.Done():
		return nil
	}
	ln, err := listen(at, "--listen-address")
	if err != nil {
		return err
	}
	return d.run(ctx, ln)
}

// settleEvery is short against a prefill, because what prefills take is learned from when they
// settle; a round over a thousand bookings takes some ten microseconds.
const settleEvery = 20 * time.Millisecond

// settle moves bookings from prefill to decode as events show that prompts were computed,
// until ctx ends.
func (d *decider) settle(ctx context.Context) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			d.router.SettlePrefills(now)
		case <-ctx.Done():
			return
		}
	}
}

// serveGRPC serves until ctx ends, with a companion that ends with it.
func serveGRPC(ctx context.Context, srv *grpc.Server, ln net.Listener, companion func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		err := companion(ctx)
		srv.Stop() // streams of Envoy never end by themselves
		done <- err
	}()
	err := srv.Serve(ln)
	stop()
	if companionErr := <-done; err == nil {
		err = companionErr
	}
	return err
}

// readyModels is nil when every model has a worker that is ready.
func (d *decider) readyModels() error {
	for _, m := range d.router.Models() {
		if m.Ready == 0 {
			return fmt.Errorf("model %s has no worker that is ready", m.Name)
		}
	}
	return nil
}
