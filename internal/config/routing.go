package config

import (
	"fmt"

	"github.com/stator-project/stator/internal/route/cost"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
)

// Router configures how a worker is chosen.
type Router struct {
	// Policy is the rule of choice: kv (lowest cost), round-robin, random, power-of-two (the less loaded of two that are drawn),
	// least-loaded, direct (the worker that the request names) or session (rendezvous hashing of the session
	// by gateway.sessions).
	Policy string `yaml:"policy"`
	// DecodePolicy is the policy for decode workers, of a model with prefill and decode workers.
	DecodePolicy string `yaml:"decodePolicy" default:"policy"`
	// Prefill selects the workers that compute the prompts of such a model: "auto" compares the costs of both ways,
	// "remote" selects a prefill worker if one is ready and free, and "local" the decode worker.
	Prefill string `yaml:"prefill"`
	// Temperature spreads the choices of the policy kv. 0 always takes the cheapest worker. 1 chooses with
	// probability exp(-cost), costs scaled to 0..1.
	Temperature float64 `yaml:"temperature"`
	// Cost is the function by which the policy kv judges workers. "delay" estimates by how much the delays of the
	// request and of all others grow together if it goes there. "dynamo" is NVIDIA Dynamo's function.
	Cost string `yaml:"cost"`
	// Weights replaces weights of the cost by name. "delay" has firstToken, interference, evict and
	// decode; "dynamo" has prefillLoadScale, overlap, overlapDecay, decode and requests; both have
	// tier.device, tier.host, tier.disk and tier.external. Dynamo's prefillLoadScale of 1 is better raised to
	// 16, for more cache hits and shorter queues. "stator replay" shows what weights do to a trace.
	Weights map[string]float64 `yaml:"weights" default:"the function's"`
	// Busy sets when a rank takes no more requests. A bound that is not set is no bound.
	Busy Busy `yaml:"busy"`
	// Queue sets how requests wait while all ranks that may take them are busy.
	Queue Queue `yaml:"queue"`
}

// CostFunction returns the function that cost and weights name.
func (r *Router) CostFunction() (cost.Function, error) { return cost.New(r.Cost, r.Weights) }

// Busy sets when a rank takes no more requests.
type Busy struct {
	// PrefillTokens bounds the prompt tokens of a rank that are not computed yet: with more it is busy. A
	// higher bound fills the engines' own queues, in which no request can overtake another. 0 is no bound.
	PrefillTokens int64 `yaml:"prefillTokens"`
	// PrefillShare sets the same bound as a share of maxNumBatchedTokens, such as 0.8. 0 is no bound.
	PrefillShare float64 `yaml:"prefillShare"`
	// MaxNumBatchedTokens is the engines' setting max_num_batched_tokens, which prefillShare needs.
	MaxNumBatchedTokens int64 `yaml:"maxNumBatchedTokens"`
	// KVUsage bounds the share of a rank's KV cache that is in use, 0 to 1, by the engine's report or by the
	// router's bookings. A rank above it is busy until both are below nine tenths of it. 0 is no bound.
	KVUsage float64 `yaml:"kvUsage"`
	// Status is the HTTP status of a refusal because all ranks are busy: 429, 503 or 529.
	Status int `yaml:"status"`
}

// Route returns the thresholds as the router takes them.
func (b *Busy) Route() serving.Busy {
	return serving.Busy{
		PrefillTokens: b.PrefillTokens, PrefillShare: b.PrefillShare, MaxNumBatchedTokens: b.MaxNumBatchedTokens,
		KVUsage: b.KVUsage, Status: b.Status,
	}
}

// Queue sets how requests wait while all ranks that may take them are busy. When it changes, requests that
// wait keep their place.
type Queue struct {
	// MaxWait is the longest time that a request may wait. 0s means that no request waits: one that finds all
	// ranks busy is refused. It must be at least 10s less than gateway.idleTimeout, because Envoy ends the
	// request there.
	MaxWait Duration `yaml:"maxWait"`
	// Hold is the longest time that a request may wait for an engine that starts because of models[].idleAfter. It must be longer than a
	// start, and at least 10s less than gateway.idleTimeout. 0s means that such a request is refused. It
	// starts an engine all the same.
	Hold Duration `yaml:"hold" default:"5m, or less if gateway.idleTimeout asks for it"`
	// Requests bounds how many requests may wait, at least 1. The request that reaches a limit is accepted, and
	// the next one is refused.
	Requests int `yaml:"requests"`
	// Tokens bounds the prompt tokens of waiting requests. 0 is no bound.
	Tokens int `yaml:"tokens"`
	// CachedTokens bounds the cached prompt tokens of waiting requests, as counted when they came. 0 is no
	// bound.
	CachedTokens int `yaml:"cachedTokens"`
	// Order is the order within the queue. "fcfs" serves first the request that came first; a priority is a
	// head start in seconds. "lcfs" serves first the request that came last. "wspt" serves first the
	// request with the fewest tokens to compute, weighed by priority.
	Order string `yaml:"order"`
	// Fair serves tenants alike, by tokens to compute. A tenant is the header x-stator-tenant if
	// gateway.hints is "headers", else "user" in the body.
	Fair bool `yaml:"fair"`
	// Programs has a step of a program of an agent whose context is not cached wait while the contexts of other programs fill the caches of
	// the workers. All steps of a program wait for that for at most half of maxWait. A program is a session: see gateway.sessions. It needs
	// workers whose cache sizes are known.
	Programs bool `yaml:"programs"`
	// Classes share ranks by deficit round robin. Requests that name no class go to the first one.
	Classes []Class `yaml:"classes" default:"one class"`
}

// Class is a share of the ranks, for requests that wait.
type Class struct {
	// Name is the name that requests give in nvext.router.class or the header x-stator-class.
	Name string `yaml:"name" default:"required"`
	// Quantum is the class's share against others', in prompt tokens to compute at each of its turns.
	Quantum int `yaml:"quantum"`
	// Order is the order within the class: "fcfs", "lcfs" or "wspt".
	Order string `yaml:"order" default:"the queue's"`
	// Requests bounds how many requests of this class may wait. 0 is no bound but the queue's.
	Requests int `yaml:"requests"`
	// Tokens bounds the prompt tokens of waiting requests of this class. 0 is no bound but the queue's.
	Tokens int `yaml:"tokens"`
	// CachedTokens bounds the cached prompt tokens of waiting requests of this class. 0 is no bound but the
	// queue's.
	CachedTokens int `yaml:"cachedTokens"`
}

// busy checks mistakes that only the file can have, and leaves the rest to the owner of the thresholds.
func (v *validator) busy(b *Busy, path string) {
	v.is(b.PrefillShare <= maxPrefillShare, path+".prefillShare", "must be at most %d", maxPrefillShare)
	v.is(b.Status != 0, path+".status", "is 0: use 429, 503 or 529")
	owned := b.Route()
	v.owned(owned.Validate(), path)
}

func (v *validator) queue(r *Router, path string) {
	q := &r.Queue
	isBounded := r.Busy.PrefillTokens > 0 || r.Busy.PrefillShare > 0 || r.Busy.KVUsage > 0
	v.is(q.MaxWait == 0 || q.MaxWait >= minWait, path+".maxWait", "must be 0s, or at least %s", minWait)
	v.is(q.MaxWait == 0 || isBounded || q.Programs, path+".maxWait", "has no effect until router.busy sets when a rank is busy")
	v.is(q.Hold == 0 || q.Hold >= minWait, path+".hold", "must be 0s, or at least %s", minWait)
	v.is(q.MaxWait > 0 || !q.Programs, path+".programs", "has no effect until router.queue.maxWait is set")
	v.order(q.Order, path)
	v.is(q.Requests >= 1, path+".requests", "must be at least 1")
	v.is(q.Tokens >= 0 && q.CachedTokens >= 0, path, "must not have negative limits")

	seen := map[string]bool{}
	for i := range q.Classes {
		c, at := &q.Classes[i], fmt.Sprintf("%s.classes[%d]", path, i)
		v.name(c.Name, at)
		v.is(!seen[c.Name], at+".name", "is there twice")
		seen[c.Name] = true
		v.is(c.Quantum >= 1 && c.Quantum <= queue.MaxQuantum, at+".quantum", "must lie between 1 and %d", queue.MaxQuantum)
		v.order(c.Order, at)
		v.is(c.Requests >= 0 && c.Tokens >= 0 && c.CachedTokens >= 0, at, "must not have negative limits")
	}
}

func (v *validator) order(name, path string) {
	_, err := queue.ParseOrder(name)
	v.is(err == nil && name != "", path+".order", "is %q: use fcfs, lcfs or wspt", name)
}
