package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engineprobe"
)

// follow follows one selection until ctx ends.
func (s *Source) follow(ctx context.Context, g *group) {
	var questions sync.WaitGroup
	defer questions.Wait()
	g.ask = func(at Endpoint) *engine {
		inner, stop := context.WithCancel(ctx)
		e := &engine{Endpoint: at, stop: stop}
		questions.Go(func() { s.ask(inner, e) })
		return e
	}

	if g.Pool == "" {
		s.followPods(ctx, g, g.Labels, g.Ports)
		return
	}
	s.followPool(ctx, g)
}

// followPool follows an InferencePool and its pods until ctx ends. A pool that is deleted leaves its workers, because a mistake there would
// stop all traffic.
func (s *Source) followPool(ctx context.Context, g *group) {
	// The pods are selected by labels and ports, which stay when the pool is deleted. Only the follower's goroutine uses them.
	var labels string
	var ports []int
	var pods sync.WaitGroup
	stop := func() {} // ends the watch of the pods
	defer func() {
		stop()
		pods.Wait()
	}()
	change := func(_ string, p *inferencePool) {
		if p == nil {
			s.cfg.Log.Warn("the InferencePool was deleted; its pods stay workers while this process runs", "pool", g.String())
			return
		}
		s.mu.Lock()
		g.uid = p.Metadata.UID
		s.mu.Unlock()
		nextLabels, nextPorts := p.labels(), p.ports()
		if nextLabels == "" || len(nextPorts) == 0 || nextLabels == labels && slices.Equal(nextPorts, ports) {
			return
		}
		// One watch at a time changes the pods of a group. The workers of the old pods stay until the new ones are listed.
		stop()
		pods.Wait()
		labels, ports = nextLabels, nextPorts
		s.trouble(g, "inferencepools", nil)
		inner, cancel := context.WithCancel(ctx)
		stop = cancel
		pods.Go(func() { s.followPods(inner, g, nextLabels, nextPorts) })
	}

	(&follower[inferencePool]{
		client: s.cfg.Client, path: poolsPath(g.Namespace), query: url.Values{"fieldSelector": {"metadata.name=" + g.Pool}},
		known: map[string]bool{}, change: change, synced: func() {},
		trouble: func(err error) {
			if err == nil && labels == "" {
				err = errNoPool
			}
			s.trouble(g, "inferencepools", err)
		},
	}).run(ctx)
}

var errNoPool = errors.New("there is no such object with a selector and target ports: create it, or name another one with --inference-pool")

// followPods follows the pods with some labels until ctx ends. The first list removes the pods that the group has from an earlier selector:
// until then they serve, and pods that both select are not asked again.
func (s *Source) followPods(ctx context.Context, g *group, labels string, ports []int) {
	home := s.cfg.Selections[0].Namespace
	f := follower[pod]{
		client: s.cfg.Client, path: podsPath(g.Namespace), query: url.Values{"labelSelector": {labels}}, known: map[string]bool{},
		change: func(name string, p *pod) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.setLocked(g, name, endpoints(p, ports, home), p.place())
			if p == nil {
				delete(g.pods, name)
			}
		},
		synced: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			g.synced = true
			s.notifyLocked()
		},
		trouble: func(err error) { s.trouble(g, "pods", err) },
	}

	s.mu.Lock()
	for name := range g.pods {
		f.known[name] = true
	}
	s.mu.Unlock()
	f.run(ctx)
}

// setLocked makes these the endpoints of a pod; none if it is not ready. Questions to engines that it has no more end, and new ones are
// asked. An endpoint whose epoch, role or revision has changed is another one; one in another place is not.
func (s *Source) setLocked(g *group, name string, ready []Endpoint, at podPlace) {
	before := g.pods[name]
	if slices.Equal(before.ready, ready) && before.at == at {
		return // most changes of a pod change nothing here
	}
	now := podState{ready: ready, at: at}
	for _, e := range before.engines {
		if slices.Contains(ready, e.Endpoint) || len(ready) == 0 && e.identity != nil {
			now.engines = append(now.engines, e)
		} else {
			e.stop()
		}
	}
	for _, at := range ready {
		if !slices.ContainsFunc(now.engines, func(e *engine) bool { return e.Endpoint == at }) {
			now.engines = append(now.engines, g.ask(at))
		}
	}
	for _, e := range now.engines {
		e.at = at
	}
	g.pods[name] = now
	s.notifyLocked()
}

// ask asks an engine for its identity until it answers, or until ctx ends. It is not asked again after that: what a process serves under
// its name does not change, and adapters are followed elsewhere. A restart is another endpoint.
func (s *Source) ask(ctx context.Context, e *engine) {
	defer e.stop() // frees the context
	retry := backoff.Backoff{Min: askMin, Max: askMax}
	for ; ; _ = retry.Wait(ctx) {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		identity, err := engineprobe.Identify(ctx, s.client, e.Address)
		<-s.slots
		if ctx.Err() != nil {
			return
		}

		s.mu.Lock()
		first := !e.failed
		e.failed = err != nil
		if err == nil {
			e.identity = &identity
		}
		s.notifyLocked()
		s.mu.Unlock()

		if err == nil {
			s.cfg.Log.Info("engine found", "worker", e.Name, "address", e.Address, "engine", identity.Kind, "model", identity.Name,
				"ranks", identity.Ranks, "block_size", identity.BlockSize, "role", e.Role.String())
			return
		}
		if first { // later failures are the same one
			s.cfg.Log.Warn("an engine does not answer which model it serves; it gets no requests", "worker", e.Name, "address", e.Address,
				"err", err)
		}
	}
}

// trouble records why no changes of a resource arrive; nil if they do again. Each reason is logged once, because a server that is away
// for an hour fails thousands of requests.
func (s *Source) trouble(g *group, resource string, err error) {
	if err != nil {
		s.troubles.WithLabelValues(resource).Inc()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if fmt.Sprint(err) == fmt.Sprint(g.troubles[resource]) {
		return
	}
	if err != nil {
		g.troubles[resource] = err
		s.cfg.Log.Warn("the Kubernetes API cannot be read; the workers stay as they are", "selection", g.String(), "err", err)
	} else {
		delete(g.troubles, resource)
		s.cfg.Log.Info("the Kubernetes API is read again", "selection", g.String(), "resource", resource)
	}
	s.notifyLocked()
}
