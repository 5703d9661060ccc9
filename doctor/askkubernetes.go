package doctor

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Cluster names what to look at in a Kubernetes cluster.
type Cluster struct {
	Client    *kubernetes.Client
	Namespace string
	// Service is the name of the Service of the routers.
	Service string
}

// kubernetesTimeout bounds all reads of the API.
const kubernetesTimeout = 30 * time.Second

// clusterSeen holds the answers of an API server, and of the engines in the pods.
type clusterSeen struct {
	namespace, service string

	pools    []kubernetes.Pool
	poolsErr error
	services map[string]kubernetes.Service // the routers' and the pickers', by their names
	answers  map[kubernetes.Endpoint]answerSeen
	// refused are workers that cannot be used, and found the others. They are those of a router with the same configuration.
	refused error
	found   []fleet.Worker
	unread  map[string]bool // the models whose prompts are not read, because no path of theirs is known
}

// answerSeen is an engine's answer to the question what it is, or the reason why it has none.
type answerSeen struct {
	identity engineprobe.Identity
	err      error
}

// askCluster reads the pools of a namespace and asks their engines what they are. It returns the configuration of a router of them, too.
func askCluster(ctx context.Context, client *http.Client, at *Cluster, base *config.Config) (*clusterSeen, *config.Config) {
	ctx, cancel := context.WithTimeout(ctx, kubernetesTimeout)
	defer cancel()
	c := &clusterSeen{namespace: at.Namespace, service: at.Service, answers: map[kubernetes.Endpoint]answerSeen{}}
	c.services = map[string]kubernetes.Service{}
	c.pools, c.poolsErr = at.Client.Pools(ctx, at.Namespace)
	if c.poolsErr != nil {
		return c, base
	}
	names := []string{at.Service}
	for i := range c.pools {
		names = append(names, c.pools[i].Picker.Name)
	}
	for _, name := range names {
		if _, asked := c.services[name]; !asked && name != "" {
			c.services[name] = at.Client.Service(ctx, at.Namespace, name)
		}
	}

	c.identify(ctx, client)
	with, err := base.With(c.workers())
	c.refused, c.found = err, with.Found
	c.unread = map[string]bool{}
	for i := range with.Models {
		c.unread[with.Models[i].Name] = with.Models[i].Path == ""
	}
	return c, with
}

// identify asks the engines of all pools what they are, some at a time.
func (c *clusterSeen) identify(ctx context.Context, client *http.Client) {
	asked := map[kubernetes.Endpoint]bool{} // two pools may have the same pods
	for e := range c.endpoints {
		asked[e] = true
	}
	all := slices.Collect(maps.Keys(asked))

	var mu sync.Mutex
	AskEach(len(all), maxAsked, func(i int) {
		id, err := engineprobe.Identify(ctx, client, all[i].Address)
		mu.Lock()
		defer mu.Unlock()
		c.answers[all[i]] = answerSeen{id, err}
	})
}

// endpoints iterates over the engines of all pools.
func (c *clusterSeen) endpoints(yield func(kubernetes.Endpoint) bool) {
	for i := range c.pools {
		for _, p := range c.pools[i].Pods {
			for _, e := range p.Endpoints {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// workers returns the engines that have answered, as a router finds them.
func (c *clusterSeen) workers() (all []config.Found) {
	done := map[string]bool{}
	for e := range c.endpoints {
		a := c.answers[e]
		if a.err != nil || done[e.Name] {
			continue
		}
		done[e.Name] = true
		id := &a.identity
		all = append(all, config.Found{
			Name: e.Name, Address: e.Address, Role: e.Role, Revision: e.Revision, Epoch: e.Epoch, Engine: id.Kind, Ranks: id.Ranks,
			BlockSize: id.BlockSize, MaxRequests: e.MaxRequests, Model: id.Name, Root: id.Root, Aliases: id.Aliases,
		})
	}
	return all
}

// examineCluster looks at the pools of a cluster, and at their engines in the way in which those of a router are looked at.
func examineCluster(ctx context.Context, cfg Config) Diagnosis {
	at := newEngineAt(cfg.Engines)
	c, fleetOf := askCluster(ctx, at.client, cfg.Kubernetes, cfg.Fleet)
	d := diagnoseCluster(c)
	if len(c.found) == 0 {
		return d
	}

	o := &observation{}
	for i := range fleetOf.Models {
		m := &fleetOf.Models[i]
		if slices.ContainsFunc(c.found, func(w fleet.Worker) bool { return w.Model == m.Name }) {
			o.models = append(o.models, loadModel(ctx, m))
		}
	}
	for i := range c.found {
		w := &c.found[i]
		o.workers = append(o.workers, workerSeen{
			name: w.Name, model: w.Model, address: w.Address, kind: engines.Of(w.Engine), fromFile: true, inRouter: true,
			kvEvents: w.KVEvents, kvReplay: w.KVReplay, ranks: w.Ranks, blocks: w.Blocks,
			role: w.Role.String(), transfer: w.Transfer.String(), transferAt: w.TransferAt,
		})
	}
	o.askWorkers(ctx, at, cfg.Wait)
	ofEngines := diagnose(o)
	d.Checks += ofEngines.Checks
	d.Workers = ofEngines.Workers
	d.Findings = append(d.Findings, joinEqual(ofEngines.Findings)...)
	d.looked += " and " + count(d.Workers, "engine")
	return d
}
