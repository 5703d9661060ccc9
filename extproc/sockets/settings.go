package sockets

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/engineprobe"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/metric"
)

// The settings that are looked at. `stator doctor` has a finding for each, with the worker and the remedy.
const (
	wrongAddress = "address"        // another worker has the same
	wrongCaching = "prefix_caching" // it is off
	wrongHashes  = "hashes"         // the same block has another hash than on another engine of the model
	wrongModel   = "model"          // the engine serves other models than the worker's
)

var wrongSettings = []string{wrongAddress, wrongCaching, wrongHashes, wrongModel}

var wrongWorkers = metric.Desc("sockets", "wrong_setting_workers",
	"Workers whose engine has a setting that contradicts the configuration or other engines. Stator doctor names them.", "setting")

// Settings finds workers whose settings are wrong. It asks engines nothing itself: it gets the answers and events that a Reader
// reads anyway.
//
//	setting           is wrong if
//	address           another worker of the fleet has it
//	prefix_caching    the engine's metrics have it off
//	hashes            an event has a first block with another hash than the event of another engine of the model
//	model             the engine lists models, and none has a name of the worker's model
//
// Without it such a mistake shows in refused requests or low hit rates alone. Create it with [NewSettings]. It is a collector of metrics.
type Settings struct {
	fleet *fleet.Fleet
	pools func() map[string]string

	mu    sync.Mutex
	seen  map[string]seenSettings // guarded by mu; by worker
	roots map[firstBlock]rootHash // guarded by mu; at most maxRoots
}

// seenSettings are the settings that the engine of a worker has shown. They are dropped when the worker has another address.
type seenSettings struct {
	address    string
	models     []string // the first maxListed that it serves; none if they are not known, or it serves any
	cachingOff bool
	unlike     string // a worker that has another hash of the same block; empty for none
}

// firstBlock is a block at the beginning of a prompt, by its content.
type firstBlock struct {
	model string
	block uint64
	size  int
}

// rootHash is an engine's hash of a first block, and the worker from which it was read first.
type rootHash struct {
	worker string
	hash   kvevent.EngineHash
}

// maxRoots bounds the first blocks that are remembered. Few suffice: engines of one model get the same system prompts.
const maxRoots = 4096

// maxListed bounds the models of one engine that are remembered. Engines list their base model and its aliases first.
const maxListed = 64

// NewSettings returns settings of the workers of a fleet. pools returns the models of workers by the names that clients use for them.
func NewSettings(f *fleet.Fleet, pools func() map[string]string) *Settings {
	return &Settings{fleet: f, pools: pools, seen: map[string]seenSettings{}, roots: map[firstBlock]rootHash{}}
}

// change changes the record of a worker. The record of another engine under its name is dropped.
//
// Requires: mu.
func (s *Settings) change(w *fleet.Worker, change func(*seenSettings)) {
	now := s.seen[w.Name]
	if now.address != w.Address {
		// Another engine has the name now.
		now = seenSettings{address: w.Address}
	}
	change(&now)
	s.seen[w.Name] = now
}

// listed records the models that an engine serves.
func (s *Settings) listed(w *fleet.Worker, models []string) {
	if s == nil || engines.Of(w.Engine).AnyModelName {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(w, func(e *seenSettings) { e.models = models[:min(len(models), maxListed)] })
}

// loaded records the options in an engine's metrics.
func (s *Settings) loaded(w *fleet.Worker, l *engineprobe.Load) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(w, func(e *seenSettings) { e.cachingOff = l.CachingOff })
}

// stored compares the hashes of first blocks in events.
func (s *Settings) stored(w *fleet.Worker, b *kvevent.Batch) {
	if s == nil || engines.Of(w.Engine).OwnHashes {
		return
	}
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind == kvevent.Stored && !e.HasParent && e.Tier == fleet.Device && e.Window == 0 && len(e.Blocks) > 0 && len(e.Hashes) > 0 {
			s.compare(w, firstBlock{w.Model, uint64(e.Blocks[0]), e.BlockSize}, e.Hashes[0])
		}
	}
}

// compare compares the hash of a first block with the hash of another engine. An engine that was restarted may have new hashes.
func (s *Settings) compare(w *fleet.Worker, of firstBlock, hash kvevent.EngineHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A worker that is gone counts no more: its hashes may be old.
	was, known := s.roots[of]
	if known && was.worker != w.Name && s.fleet.Snapshot().Worker(was.worker) != nil {
		s.change(w, func(e *seenSettings) {
			switch {
			case was.hash != hash:
				e.unlike = was.worker
			case e.unlike == was.worker:
				e.unlike = ""
			}
		})
		return
	}
	// All go, and not the oldest: blocks of prompts in use are soon there again.
	if !known && len(s.roots) >= maxRoots {
		clear(s.roots)
	}
	s.roots[of] = rootHash{w.Name, hash}
}

// Describe sends the one metric.
func (s *Settings) Describe(out chan<- *prometheus.Desc) { out <- wrongWorkers }

// Collect counts the workers of the fleet.
func (s *Settings) Collect(out chan<- prometheus.Metric) {
	counts := map[string]int{}
	for _, wrong := range s.wrong() {
		for _, setting := range wrong {
			counts[setting]++
		}
	}
	// Each setting has a value, also 0, so that alerts find it.
	for _, setting := range wrongSettings {
		out <- prometheus.MustNewConstMetric(wrongWorkers, prometheus.GaugeValue, float64(counts[setting]), setting)
	}
}

// wrong returns the wrong settings of each worker that has any, by worker.
func (s *Settings) wrong() map[string][]string {
	workers := s.fleet.Snapshot().Workers
	// Two workers that are one engine get the requests of two.
	pools := s.pools()
	at := map[string]int{}
	for _, w := range workers {
		at[strings.ToLower(w.Address)]++
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	wrong := map[string][]string{}
	for _, w := range workers {
		var list []string
		if w.Address != "" && at[strings.ToLower(w.Address)] > 1 {
			list = append(list, wrongAddress)
		}
		// An engine that has not answered yet under this address has no wrong setting.
		if e := s.seen[w.Name]; e.address == w.Address {
			if e.cachingOff {
				list = append(list, wrongCaching)
			}
			if e.unlike != "" {
				list = append(list, wrongHashes)
			}
			if len(e.models) > 0 && !slices.ContainsFunc(e.models, func(m string) bool { return pools[m] == w.Model }) {
				list = append(list, wrongModel)
			}
		}
		if len(list) > 0 {
			wrong[w.Name] = list
		}
	}
	return wrong
}
