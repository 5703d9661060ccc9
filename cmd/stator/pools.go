package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/extproc"
	"github.com/stator-project/stator/extproc/poolmetrics"
	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/enginetls"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/internal/route/handoff"
)

// pools are the workers that a part finds in a Kubernetes cluster, beside those of its configuration file.
type pools struct {
	names, selector, ports, namespace, api string
	source                                 *kubernetes.Source // nil without these flags
	client                                 *kubernetes.Client // of the source, and home the namespace whose pods have short names
	home                                   string
	// reachesRelay means that the gateway sends requests to the relay of routers, which is no endpoint of an InferencePool. It is
	// true for a control plane, whose pools have the relay.
	reachesRelay bool
	// changed is closed at the first change after await has looked. follow begins with it.
	changed <-chan struct{}

	mu     sync.Mutex              // held while a configuration is made and applied
	base   *config.Config          // of the file
	models map[string]config.Found // that were found, without their workers
	logged string                  // the last error of a worker, which is not logged twice
}

// addFlags adds the flags that select pods.
func (p *pools) addFlags(f *cli.Flags) {
	f.StringVar(&p.names, "inference-pool", "",
		"`name` of an InferencePool whose pods are workers, or namespace/name; may be a list with commas. Models, block sizes and KV "+
			"events are asked of the engines, so no --config is needed")
	f.StringVar(&p.selector, "pod-selector", "",
		"`labels` of pods that are workers, such as app=vllm, in a cluster without InferencePools; with --pod-ports")
	f.StringVar(&p.ports, "pod-ports", "8000", "`ports` of the engines in each pod of --pod-selector, with commas")
	f.StringVar(&p.namespace, "namespace", "", "`namespace` of the pods (default that of this process's pod)")
	f.StringVar(&p.api, "kubernetes-api", "", kubernetesAPIUsage)
}

const kubernetesAPIUsage = "`url` of an API server that asks for no token, such as http://127.0.0.1:8001 of kubectl proxy " +
	"(default that of this process's pod, by its service account)"

// wanted reports whether the flags select pods.
func (p *pools) wanted() bool { return p.names != "" || p.selector != "" }

// open reads the flags, and prepares the source.
func (p *pools) open(engines *enginetls.Client, log *slog.Logger, reg prometheus.Registerer) error {
	client, err := kubernetes.NewClient(p.api)
	if err != nil {
		return err
	}
	namespace := p.namespace
	if namespace == "" {
		namespace = client.Namespace()
	}
	selections, err := p.selections(namespace)
	if err != nil {
		return err
	}
	p.models = map[string]config.Found{}
	p.client, p.home = client, selections[0].Namespace
	p.source = kubernetes.New(kubernetes.Config{Client: client, Selections: selections, Log: log, Engines: engines, Metrics: reg})
	return nil
}

// selections returns what the flags select.
func (p *pools) selections(home string) ([]kubernetes.Selection, error) {
	var all []kubernetes.Selection
	for name := range strings.SplitSeq(p.names, ",") {
		namespace, pool, isFull := strings.Cut(name, "/")
		if !isFull {
			namespace, pool = home, name
		}
		if name != "" {
			all = append(all, kubernetes.Selection{Namespace: namespace, Pool: pool})
		}
	}
	if p.selector != "" {
		ports, err := readPorts(p.ports)
		if err != nil {
			return nil, err
		}
		all = append(all, kubernetes.Selection{Namespace: home, Labels: p.selector, Ports: ports})
	}

	for _, s := range all {
		if s.Namespace == "" {
			return nil, errors.New("name the namespace of the pods with --namespace: this process runs in no pod")
		}
	}
	return all, nil
}

// members returns the InferencePools with their endpoints.
func (p *pools) members() (all []poolmetrics.Pool) {
	for _, pool := range p.source.Pools() {
		all = append(all, poolmetrics.Pool{Name: pool.Name, Workers: pool.Workers})
	}
	return all
}

func readPorts(text string) (ports []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		port, err := strconv.ParseUint(field, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("--pod-ports is %q: use ports with commas, such as 8000 or 8000,8001", text)
		}
		ports = append(ports, int(port))
	}
	return ports, nil
}

// await returns the configuration with the workers that are there now, as soon as all pods have been listed and their engines were
// asked.
func (p *pools) await(ctx context.Context, base *config.Config, log *slog.Logger) (*config.Config, error) {
	p.base = base
	for {
		p.changed = p.source.Changed()
		if p.source.Synced() {
			return p.composed(log), nil
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// maxKnownModels bounds the models without workers that stay known.
const maxKnownModels = 256

// composed returns the configuration of the file with the workers that are there now. A model whose last worker is gone stays
// known: its requests are answered with 503, as those of a model that comes back. Models are in the order of their names, so that all
// replicas have the same first one, which gets the requests that name none.
func (p *pools) composed(log *slog.Logger) *config.Config {
	var workers []config.Found
	for _, w := range p.source.Workers() {
		f := config.Found{
			Name: w.Name, Address: w.Address, Role: w.Role, Revision: w.Revision, Epoch: w.Epoch,
			Engine: w.Engine.Kind, Ranks: w.Engine.Ranks, BlockSize: w.Engine.BlockSize, MaxRequests: w.MaxRequests,
			Model: w.Engine.Name, Root: w.Engine.Root, Aliases: w.Engine.Aliases, Taints: w.Taints, PlaceFrom: w.PlaceFrom,
		}
		workers = append(workers, f)
		if _, known := p.models[f.Model]; known || len(p.models) < maxKnownModels {
			f.Name, f.Address = "", ""
			f.Taints = ""
			p.models[f.Model] = f
		}
	}

	var found []config.Found
	for _, name := range slices.Sorted(maps.Keys(p.models)) {
		found = append(found, p.models[name])
	}
	found = append(found, workers...)

	cfg, err := p.base.With(found)
	err = errors.Join(err, p.withoutRelayed(cfg))
	text := fmt.Sprint(err)
	if err != nil && text != p.logged {
		log.Warn("workers left out", "err", err)
	}
	p.logged = text
	return cfg
}

// withoutRelayed removes the workers with a role whose transfer needs the relay, and returns why. istiod's pools and those like
// them have pods alone, and ignore a pick of another address: requests would be spread over all pods, and prefill workers would
// answer 400.
func (p *pools) withoutRelayed(cfg *config.Config) error {
	if p.names == "" || p.reachesRelay || cfg.Gateway.Sidecars {
		return nil
	}
	var refused []string
	cfg.Found = slices.DeleteFunc(cfg.Found, func(w fleet.Worker) bool {
		isRefused := w.Role != fleet.Aggregated && handoff.IsConcurrent(w.Transfer)
		if isRefused {
			refused = append(refused, fmt.Sprintf("%s (%s, transfer %s)", w.Name, w.Role, w.Transfer))
		}
		return isRefused
	})
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("workers with roles are refused: %s: both engines get their requests at once, from the relay, and the relay is no "+
		"endpoint of an InferencePool: if the gateway's pool is of type ORIGINAL_DST, or has its endpoints from stator xds, say so with "+
		"--pool-reaches-relay and --relay-address", strings.Join(refused[:min(len(refused), mostNamed)], ", "))
}

// mostNamed bounds the workers that a line of the log names.
const mostNamed = 8

// gather is the time for which changes are gathered before they are applied together. Rollouts change many pods at once.
const gather = 100 * time.Millisecond

// follow applies the configuration again after each change of the pods since await, until ctx ends.
func (p *pools) follow(ctx context.Context, log *slog.Logger, apply func(*config.Config) error) error {
	changed := p.changed
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
		_ = backoff.Sleep(ctx, gather)
		changed = p.source.Changed()

		p.mu.Lock()
		err := apply(p.composed(log))
		p.mu.Unlock()
		if err != nil {
			log.Error("workers of the cluster not changed", "err", err)
		}
	}
}

// rebase replaces the configuration of the file.
func (p *pools) rebase(base *config.Config, log *slog.Logger, apply func(*config.Config) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.base
	p.base = base
	err := apply(p.composed(log))
	if err != nil {
		p.base = before
	}
	return err
}

// findWorkers adds the workers of the cluster to the configuration, and waits until they are there.
func (p *process) findWorkers(ctx context.Context) (err error) {
	if !p.pools.wanted() {
		return nil
	}
	if err := p.pools.open(p.engines, p.log, p.reg); err != nil {
		return err
	}
	run, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.pools.source.Run(run)
	}()
	p.stopPools = func() {
		stop()
		<-done
	}

	p.show(func() error {
		return fmt.Errorf("waiting for the pods of the cluster: %w", errors.Join(p.pools.source.Err(), errUnasked))
	})
	p.cfg, err = p.pools.await(ctx, p.cfg, p.log)
	return err
}

// findWorkersOf is findWorkers for a router, whose health is served at an address meanwhile; empty for none.
func (p *process) findWorkersOf(ctx context.Context, healthAt string) error {
	if healthAt != "" && p.pools.wanted() {
		ln, err := listen.On(healthAt, "--health-address")
		if err != nil {
			return err
		}
		defer extproc.ServeStart(ln, p.log)()
	}
	return p.findWorkers(ctx)
}

var errUnasked = errors.New("engines are asked which model they serve")

// followConfig applies changes of the configuration file and of the cluster's pods, until ctx ends.
func (p *process) followConfig(ctx context.Context, apply func(*config.Config) error) error {
	if p.pools.source == nil {
		return p.followed.Follow(ctx, apply)
	}
	var all sync.WaitGroup
	defer all.Wait()
	if p.file != "" {
		all.Go(func() {
			_ = p.followed.Follow(ctx, func(base *config.Config) error { return p.pools.rebase(base, p.log, apply) })
		})
	}
	return p.pools.follow(ctx, p.log, apply)
}

// foundNone returns why no model is known yet; nil if one is. It is for parts whose models come from the cluster.
func (p *process) foundNone() error {
	if p.pools.source == nil {
		return nil
	}
	p.pools.mu.Lock()
	defer p.pools.mu.Unlock()
	if len(p.pools.models) > 0 || len(p.pools.base.Models) > 0 {
		return nil
	}
	return errors.Join(errors.New("no pod of the cluster is ready and has answered which model it serves"), p.pools.source.Err())
}
