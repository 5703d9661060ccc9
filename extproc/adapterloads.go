package extproc

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/metric"
)

const (
	// maxAdapterLoads is the number of adapters that are loaded at a time. Engines compute nothing else while they read one.
	maxAdapterLoads = 4
	// adapterLoadTime bounds one load. An engine may download the adapter.
	adapterLoadTime = 2 * time.Minute
	// adapterDialTime bounds the connection for it.
	adapterDialTime = 5 * time.Second
	// adapterSettle is the time after a load in which no other load of the same adapter begins: the list of the engine must be read first,
	// and an agent's lease be renewed.
	adapterSettle = 10 * time.Second
	// adapterRetryMin and adapterRetryMax bound the pause after a load that failed. Pauses double.
	adapterRetryMin = 2 * time.Second
	adapterRetryMax = 2 * time.Minute
)

// adapterLoads has engines load adapters for which requests come and which no ready worker has:
//
//	event                               effect
//	a request for a missing adapter     an engine loads it, unless one does, or the pause after the last load lasts
//	the engine has loaded it            its list is read soon, and requests go there
//	the engine has not                  logged and counted; after a pause, the next worker is asked
//
// The names and paths come from the configuration: clients can set neither.
type adapterLoads struct {
	log     *slog.Logger
	fleet   *fleet.Fleet
	results *prometheus.CounterVec
	client  *http.Client
	// pathOf returns the model and the path of a configured adapter.
	pathOf func(adapter string) (model, path string)
	// wanted has the adapters of requests. One that finds it full is left out: its client asks again.
	wanted chan string
}

// adapterLoad is the state of one adapter. The goroutine of loadAdapters owns it.
type adapterLoad struct {
	running  bool
	attempts int       // since one succeeded
	after    time.Time // no load begins before
	retry    backoff.Backoff
}

func newAdapterLoads(cfg *Config, f *fleet.Fleet, pathOf func(string) (model, path string)) *adapterLoads {
	l := &adapterLoads{
		log: cfg.Log, fleet: f, pathOf: pathOf, wanted: make(chan string, 64),
		client: &http.Client{Timeout: adapterLoadTime, Transport: &http.Transport{
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, DialContext: cfg.Engines.Dial(adapterDialTime),
		}},
		results: metric.For(cfg.Metrics, "extproc").Counters("adapter_loads_total",
			"LoRA adapters that engines were asked to load because a request came for them: loaded, or failed.", "result"),
	}
	for _, result := range []string{"loaded", "failed"} {
		l.results.WithLabelValues(result)
	}
	return l
}

// want asks for an adapter. It never blocks.
func (l *adapterLoads) want(adapter string) {
	select {
	case l.wanted <- adapter:
	default:
	}
}

// ended is the result of a load. Only the goroutine of loadAdapters changes states, so loads report to it.
type ended struct {
	adapter string
	err     error
}

// loadAdapters loads adapters until ctx ends. One goroutine begins and ends all loads, so their states need no lock, and two requests
// for one adapter cannot begin two loads.
func (l *adapterLoads) loadAdapters(ctx context.Context) {
	states := map[string]*adapterLoad{} // of configured adapters, so there are no more than these
	done := make(chan ended, maxAdapterLoads)
	running := 0
	var all sync.WaitGroup
	defer l.client.CloseIdleConnections()
	defer all.Wait()

	for {
		select {
		case adapter := <-l.wanted:
			worker, path := l.begin(states, adapter, running, time.Now())
			if worker == nil {
				continue
			}
			running++
			all.Go(func() { done <- ended{adapter, l.load(ctx, worker, adapter, path)} })
		case e := <-done:
			running--
			states[e.adapter].endLoad(e.err, time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// begin returns the worker that is to load an adapter now, and the adapter's path there; nil for none.
func (l *adapterLoads) begin(states map[string]*adapterLoad, adapter string, running int, now time.Time) (w *fleet.Worker, path string) {
	model, path := l.pathOf(adapter)
	if path == "" || running == maxAdapterLoads {
		return nil, ""
	}

	s := states[adapter]
	if s == nil {
		s = &adapterLoad{retry: backoff.Backoff{Min: adapterRetryMin, Max: adapterRetryMax}}
		states[adapter] = s
	}
	if s.running || now.Before(s.after) {
		return nil, ""
	}

	// The worker that failed last is asked again after all others: its disk may lack the adapter.
	candidates := candidatesFor(l.fleet.Snapshot(), model, adapter)
	if len(candidates) == 0 {
		return nil, ""
	}

	// From here until endLoad, requests for this adapter begin no other load.
	s.running = true
	return candidates[s.attempts%len(candidates)], path
}

// endLoad records the result of a load.
func (s *adapterLoad) endLoad(err error, now time.Time) {
	s.running = false
	// A request that came meanwhile has not begun another load, and clients ask again, so none is lost.
	if err != nil {
		s.attempts++
		s.after = now.Add(s.retry.Next())
		return
	}
	s.attempts = 0
	s.retry.Reset()
	s.after = now.Add(adapterSettle)
}

// candidatesFor returns the workers of a model that can load an adapter, the best first: the one with the fewest adapters.
// Among equal ones the order is the same in every replica, so that two of them do not load an adapter twice. It is empty while
// a ready worker has the adapter.
func candidatesFor(s *fleet.Snapshot, model, adapter string) (candidates []*fleet.Worker) {
	for _, w := range s.Workers {
		if w.Model != model || w.State != fleet.Ready || !w.Adapters.Known() {
			continue
		}
		if w.Adapters.Has(adapter) {
			return nil
		}
		if engineprobe.LoadsAdapters(w.Engine) {
			candidates = append(candidates, w)
		}
	}

	// The hash of both names spreads adapters over workers that have as many as each other.
	place := func(w *fleet.Worker) uint64 { return xxh3.HashString(w.Name + "\n" + adapter) }
	slices.SortFunc(candidates, func(a, b *fleet.Worker) int {
		few := len(a.Adapters.Names()) - len(b.Adapters.Names())
		switch {
		case few != 0:
			return few
		case place(a) != place(b) && place(a) < place(b):
			return -1
		case place(a) != place(b):
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return candidates
}

// load has a worker's engine load an adapter, and returns when it has or cannot.
func (l *adapterLoads) load(ctx context.Context, w *fleet.Worker, adapter, path string) error {
	log := l.log.With("adapter", adapter, "worker", w.Name)
	log.Info("loading an adapter for which a request came", "path", path)
	began := time.Now()

	// The engine serves on meanwhile, but computes nothing while it copies the adapter to its GPU. The fleet is not changed here: the list
	// of the engine counts, and for a worker with an agent the next lease would undo the change.

	err := engineprobe.LoadAdapter(ctx, l.client, w.Engine, w.Address, adapter, path)
	if err != nil {
		l.results.WithLabelValues("failed").Inc()
		log.Warn("adapter not loaded; vLLM needs --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", "err", err)
		return err
	}
	l.results.WithLabelValues("loaded").Inc()
	log.Info("adapter loaded", "duration", time.Since(began))
	return nil
}
