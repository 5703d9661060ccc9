package discovery

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
)

// An agent that hangs, or that is cut off from the bus, does not renew its leases. Its engines may serve all the
// same, so an expired lease alone does not take a worker out: the engine is asked.
//
//	event                                        worker
//	its lease expires                            stays, marked as unleased; its engine is asked soon
//	the engine is healthy                        stays, and is asked again after askEvery
//	the engine refuses twice in a row            removed
//	the engine is silent twice in a row          removed, unless no other worker of its pool is ready
//	its lease is written                         as the lease describes it; not asked any more
//	its lease is removed                         removed

// answer is what an engine was found to do.
type answer uint8

const (
	// healthy engines have answered with status 200.
	healthy answer = iota
	// refusing engines have answered with another status, or their host has: nothing listens there.
	refusing
	// silent engines have not answered at all. The network between may be to blame.
	silent
)

const (
	// askEvery is the pause between two questions to an engine without a lease.
	askEvery = time.Second
	// askTime is how long an engine may take to answer.
	askTime = 2 * time.Second
	// askedAtOnce bounds the engines that are asked at the same time.
	askedAtOnce = 32
	// failuresToLeave is how many questions in a row must fail.
	failuresToLeave = 2
)

// askHTTP asks an engine for its health.
func askHTTP(ctx context.Context, client *http.Client, address string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health", nil)
	if err != nil {
		return refusing
	}

	resp, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return refusing
	case err != nil:
		return silent
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusing
	}
	return healthy
}

// unleased is a worker whose lease has expired.
type unleased struct {
	failures int // questions in a row that the engine did not answer well
	kept     bool
}

// askUnleased asks the engines of workers without a lease, until ctx ends.
func (w *watcher) askUnleased(ctx context.Context) {
	client := &http.Client{Timeout: askTime, Transport: &http.Transport{DisableKeepAlives: true}}

	for backoff.Sleep(ctx, askEvery) == nil {
		var asking sync.WaitGroup
		slots := make(chan struct{}, askedAtOnce)
		for name, address := range w.unleasedNow() {
			slots <- struct{}{}
			asking.Go(func() {
				defer func() { <-slots }()
				found := askHTTP(ctx, client, address)
				if ctx.Err() == nil {
					w.answered(name, address, found)
				}
			})
		}
		asking.Wait()
	}
}

// unleasedNow returns the addresses of the workers without a lease, by name.
func (w *watcher) unleasedNow() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()

	addresses := map[string]string{}
	for name := range w.unleased {
		if worker := w.Fleet.Snapshot().Worker(name); worker != nil {
			addresses[name] = worker.Address
		}
	}
	return addresses
}

// expired handles a lease that was not renewed. w.mu is held.
func (w *watcher) expired(name string) {
	worker := w.Fleet.Snapshot().Worker(name)
	switch {
	case worker == nil:
		return
	case worker.State != fleet.Ready: // it gets no requests
		w.remove(name, "its lease expired")
		return
	}

	w.unleased[name] = &unleased{}
	kept := *worker
	kept.Unleased = time.Now()
	w.put(kept)
	w.Log.Warn("lease of a worker expired; its agent is silent, and its engine is asked", "worker", name, "address", worker.Address)
}

// answered records what the engine of a worker without a lease was found to do.
func (w *watcher) answered(name, address string, found answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	u := w.unleased[name]
	worker := w.Fleet.Snapshot().Worker(name)
	if u == nil || worker == nil || worker.Address != address || w.stopped {
		return // its lease is back, or it has left
	}

	if found == healthy {
		if !u.kept {
			u.kept = true
			w.Log.Warn("worker without a lease serves; it stays while its engine answers, and its cache is predicted", "worker", name)
		}
		u.failures = 0
		return
	}

	u.failures++
	switch {
	case u.failures < failuresToLeave:
	case found == refusing:
		w.remove(name, "its lease expired and its engine refuses")
	case w.isLastOfPool(worker):
		if u.failures == failuresToLeave {
			w.Log.Warn("worker without a lease is silent; it stays because no other of its pool is ready", "worker", name)
		}
	default:
		w.remove(name, "its lease expired and its engine is silent")
	}
}

// isLastOfPool reports whether no other worker of the same model and role is ready. Requests that find no worker are
// refused, and silence is no proof. w.mu is held.
func (w *watcher) isLastOfPool(worker *fleet.Worker) bool {
	for _, r := range w.Fleet.Snapshot().Pool(worker.Model, worker.Role) {
		if r.Worker.Name != worker.Name && r.Worker.State == fleet.Ready {
			return false
		}
	}
	return true
}

// remove removes a worker from the fleet. w.mu is held.
func (w *watcher) remove(name, reason string) {
	delete(w.unleased, name)
	if w.Fleet.Remove(name) {
		w.Log.Info("worker gone", "worker", name, "reason", reason)
	}
}
