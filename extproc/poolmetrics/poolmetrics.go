// Package poolmetrics exports the figures of InferencePools under the names that the endpoint picker of the Gateway API inference extension
// and the one of llm-d have for them, so that autoscalers that were written for those read them here.
//
//	figure                       from
//	means of pools               the reports of engines; bookings of all routers for engines without a recent one
//	ready endpoints              the fleet
//	requests that wait           this router's queue, the classes together
//	requests that run            this router's bookings
//
// So the sum over all routers is right for the last two, and any router's value for the others.
//
// # Differences from the endpoint pickers
//
// They keep the last means of a pool that has no pod any more, and an autoscaler would act on these for ever: they are 0 here. They divide
// their queue by flows and by numbers for priorities. Stator's classes have names, which are not numbers, so the labels do not vary.
//
// A collector is safe for concurrent use.
package poolmetrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route"
)

// Pool is an InferencePool with the names of its ready endpoints.
type Pool struct {
	Name    string
	Workers []string
}

// collector reads the figures of pools.
type collector struct {
	pools  func() []Pool
	fleet  func() *fleet.Snapshot
	queues func() []route.QueueStats

	mu sync.Mutex
	// served is the pool of each model whose workers were pods of one. It stays while the model has no pod: requests that wait then are the
	// reason to start one. It has at most maxServed entries. It is guarded by mu.
	served map[string]string
}

// maxServed bounds the models whose pools are remembered.
const maxServed = 1024

// New returns a collector of the pools that the process follows. Pools, members and queues are called for each scrape.
func New(pools func() []Pool, members func() *fleet.Snapshot, queues func() []route.QueueStats) prometheus.Collector {
	c := &collector{pools: pools, fleet: members, queues: queues, served: map[string]string{}}
	return metric.Collector(c.collect)
}

// The figures of pools. Each has two names: an older one, by which most manifests know it, and the newer one of llm-d.
var (
	poolUsage = twins("inference_pool_average_kv_cache_utilization", "llm_d_epp_average_kv_cache_utilization",
		"Share of the KV caches in use, as a mean over the ready endpoints of an InferencePool: 0 to 1.", "name")
	poolQueue = twins("inference_pool_average_queue_size", "llm_d_epp_average_queue_size",
		"Requests that wait in engines, as a mean over the ready endpoints of an InferencePool.", "name")
	poolRunning = twins("inference_pool_average_running_requests", "llm_d_epp_average_running_requests",
		"Requests that run in engines, as a mean over the ready endpoints of an InferencePool.", "name")
	poolReady = twins("inference_pool_ready_pods", "llm_d_epp_ready_endpoints",
		"Ready endpoints of an InferencePool that the planner does not drain.", "name")
	modelQueue = twins("inference_extension_flow_control_queue_size", "llm_d_epp_flow_control_queue_size",
		"Requests of a model that wait in this router. A model without a pod has the pool of its last one.",
		"fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
	modelRunning = [2]*prometheus.Desc{
		prometheus.NewDesc("inference_objective_running_requests", "Requests of a model that this router has sent and that have not ended.",
			[]string{"model_name"}, nil),
		prometheus.NewDesc("llm_d_epp_request_running", "Requests of a model that this router has sent and that have not ended.",
			[]string{"model_name", "target_model_name", "fairness_id", "priority"}, nil),
	}
)

// The values of labels of the extension that Stator does not divide by: its queue has classes with names.
const (
	noFlow     = "default-flow"
	noPriority = "0"
)

// twins describes a figure under two names.
func twins(older, newer, help string, labels ...string) [2]*prometheus.Desc {
	return [2]*prometheus.Desc{prometheus.NewDesc(older, help, labels, nil), prometheus.NewDesc(newer, help, labels, nil)}
}

// both sends a figure under two names.
func both(out metric.Scrape, d [2]*prometheus.Desc, v float64, labels ...string) {
	out.Gauge(d[0], v, labels...)
	out.Gauge(d[1], v, labels...)
}

// collect reads the figures.
func (c *collector) collect(out metric.Scrape) {
	members, pools := c.fleet(), c.pools()
	for i := range pools {
		c.collectPool(out, &pools[i], members, time.Now())
	}

	waiting, running := map[string]int{}, map[string]int64{}
	for _, q := range c.queues() {
		waiting[q.Pool] += q.Requests
	}
	for i := range members.Ranks {
		rank := &members.Ranks[i]
		running[rank.Worker.Model] += rank.Load.Own().Requests
		waiting[rank.Worker.Model] += 0 // a model without a queue has a figure, too
	}
	for _, model := range slices.Sorted(maps.Keys(waiting)) {
		both(out, modelQueue, float64(waiting[model]), noFlow, noPriority, c.poolOf(model, pools), model, model)
		out.Gauge(modelRunning[0], float64(running[model]), model)
		out.Gauge(modelRunning[1], float64(running[model]), model, model, noFlow, noPriority)
	}
}

// collectPool sends the figures of a pool. One without a ready endpoint has means of 0.
//
// An engine whose load is not reported has the bookings of routers in its place.
func (c *collector) collectPool(out metric.Scrape, p *Pool, members *fleet.Snapshot, now time.Time) {
	ready, ranks := 0, 0.0
	var usage, queue, running float64
	for _, name := range p.Workers {
		w := members.Worker(name)
		if w == nil {
			continue // its engine has not answered which model it serves
		}
		c.serves(w.Model, p.Name)
		if w.State != fleet.Ready {
			continue
		}
		ready++
		for number := range w.Ranks {
			rank, ok := members.Rank(name, number)
			if !ok {
				continue
			}
			ranks++
			if report, ok := rank.Load.LastReport(); ok && now.Sub(report.At) <= fleet.MaxReportAge {
				usage += report.KVUsage
				queue += float64(report.Waiting)
				running += float64(report.Running)
				continue
			}
			booked := rank.Load.Booked()
			running += float64(booked.Requests)
			if w.Blocks > 0 {
				usage += min(1, float64(booked.DecodeBlocks)/float64(w.Blocks))
			}
		}
	}

	ranks = max(1, ranks)
	both(out, poolReady, float64(ready), p.Name)
	both(out, poolUsage, usage/ranks, p.Name)
	both(out, poolQueue, queue/ranks, p.Name)
	both(out, poolRunning, running/ranks, p.Name)
}

// serves remembers that a model has a worker in a pool. The first pool counts while the model has several.
func (c *collector) serves(model, pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served[model] == "" && len(c.served) < maxServed {
		c.served[model] = pool
	}
}

// poolOf returns the pool of a model: the one in which it had a worker, or the only pool; empty if it is not known.
func (c *collector) poolOf(model string, pools []Pool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pool := c.served[model]; pool != "" || len(pools) != 1 {
		return pool
	}
	return pools[0].Name
}
