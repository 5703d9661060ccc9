package main

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kvsource"
)

// observation is what the checks look at: everything was asked once, and what could not be
// asked has its error.
type observation struct {
	router  routerSeen
	models  []modelSeen
	workers []workerSeen
	busURL  string // empty where none is configured
	busErr  error
}

// routerSeen is what the admin port says.
type routerSeen struct {
	address string
	err     error // the port does not answer
	ready   error
	ranks   []fleetRank
	// The feed and the metrics at the beginning and the end of the observation.
	before, after   []feedRank
	earlier, later  samples
	ahead           time.Duration // its clock before ours
	watched         time.Duration // between before and after
	feedUnavailable bool
}

// fleetRank and feedRank are lines of the admin port's JSON.
type fleetRank struct {
	Worker, Model, State, Address, Engine string
	Rank                                  int
	Epoch                                 uint64
}

type feedRank struct {
	Worker         string
	Rank           int
	Epoch          uint64
	State          string
	Seq            *uint64
	Blocks         int
	Events         uint64
	Stored         uint64
	WrongBlockSize uint64
	NoTokens       uint64
	GivenUp        uint64
}

// modelSeen is a model as the configuration has it.
type modelSeen struct {
	name          string
	names         []string // with its aliases
	path          string
	blockSize     int
	contextLength int
	err           error // its files cannot be read
	tokens        [][]uint32
}

// workerSeen is one engine process.
type workerSeen struct {
	name, model, address, kind string
	fromFile                   bool // the configuration names it
	known                      bool // the router has it
	kvEvents, kvReplay         string
	ranks                      int
	engine                     engineSeen
	sockets                    []socketSeen
}

// socketSeen is one rank's event socket as heard by ourselves.
type socketSeen struct {
	rank       int
	endpoint   string
	err        error // no connection
	messages   uint64
	malformed  uint64
	unknown    int
	said       string    // what was malformed
	blockSize  int       // of the last block stored; 0 where none was
	noTokens   int       // blocks of the device without tokens
	stored     int       // blocks of the device
	lastSaid   time.Time // the engine's clock in the newest message; zero where it does not say
	heard      time.Time // ours, then
	roots      map[root]kvevent.Engine
	hadReplay  bool
	replayErrs uint64
}

// root is the content of a prompt's first block.
type root struct {
	block blockhash.Block
	size  int
}

// maxRoots bounds what is kept to compare engines' hashes.
const maxRoots = 4096

// observe asks everything, workers at the same time.
func observe(ctx context.Context, cfg *config.Config, admin string, wait time.Duration) *observation {
	o := &observation{busURL: cfg.Bus.URL}
	o.router.address = admin
	o.router.askFirst(ctx)
	for i := range cfg.Models {
		o.models = append(o.models, seeModel(&cfg.Models[i]))
	}
	o.workers = workersOf(cfg, o.router.ranks)
	began := time.Now()
	var all sync.WaitGroup
	turns := make(chan struct{}, 32) // workers asked at once
	for i := range o.workers {
		w := &o.workers[i]
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			w.see(ctx, o.model(w.model), wait)
		})
	}
	if o.busURL != "" {
		o.busErr = reach(ctx, o.busURL)
	}
	all.Wait()
	if rest := wait - time.Since(began); rest > 0 && o.router.err == nil {
		pauseFor(ctx, rest)
	}
	o.router.askAgain(ctx)
	o.router.watched = time.Since(began)
	return o
}

func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// model finds a model by its name, or nil.
func (o *observation) model(name string) *modelSeen {
	for i := range o.models {
		if o.models[i].name == name {
			return &o.models[i]
		}
	}
	return nil
}

// workersOf joins the file's workers and those that the router has from elsewhere.
func workersOf(cfg *config.Config, ranks []fleetRank) []workerSeen {
	var all []workerSeen
	find := func(name string) int {
		return slices.IndexFunc(all, func(w workerSeen) bool { return w.name == name })
	}
	for _, m := range cfg.Models {
		for _, w := range m.Workers {
			all = append(all, workerSeen{
				name: w.Name, model: m.Name, address: w.Address, kind: w.Engine, fromFile: true,
				kvEvents: w.KVEvents, kvReplay: w.KVReplay, ranks: w.Ranks,
			})
		}
	}
	for _, r := range ranks {
		i := find(r.Worker)
		if i < 0 {
			i = len(all)
			all = append(all, workerSeen{name: r.Worker, model: r.Model, address: r.Address, kind: r.Engine})
		}
		all[i].known = true
		if !all[i].fromFile {
			all[i].ranks = max(all[i].ranks, r.Rank+1)
		}
	}
	return all
}

// reach opens a connection to the first server of a URL.
func reach(ctx context.Context, rawURL string) error {
	first, _, _ := strings.Cut(rawURL, ",")
	at, err := url.Parse(first)
	if err != nil {
		return err
	}
	host := at.Host
	if at.Port() == "" {
		host = net.JoinHostPort(at.Hostname(), "4222")
	}
	d := net.Dialer{Timeout: 3 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// see asks one engine and listens to its ranks.
func (w *workerSeen) see(ctx context.Context, m *modelSeen, wait time.Duration) {
	w.engine = seeEngine(ctx, w, m)
	endpoints := w.endpoints()
	w.sockets = make([]socketSeen, len(endpoints))
	var all sync.WaitGroup
	for i, e := range endpoints {
		s := &w.sockets[i]
		all.Go(func() { s.listen(ctx, w.kind, e, wait) })
	}
	all.Wait()
}

// endpoints are those that the router is told to read; of workers that it has not from the
// file, those that the engine tells.
func (w *workerSeen) endpoints() []kvsource.Found {
	if !w.fromFile || w.kvEvents == autoEvents {
		return w.engine.sources
	}
	if w.kvEvents == "" || strings.HasPrefix(w.kvEvents, bindEvents) {
		return nil // there it is the engine that connects
	}
	var all []kvsource.Found
	for rank := range w.ranks {
		f := kvsource.Found{Rank: rank}
		var err error
		if f.Endpoint, err = kvsource.RaisePort(w.kvEvents, rank); err == nil {
			f.Replay, _ = kvsource.RaisePort(w.kvReplay, rank)
			all = append(all, f)
		}
	}
	return all
}

// listen hears one socket, from as far back as it tells, for a while.
func (s *socketSeen) listen(ctx context.Context, kind string, at kvsource.Found, wait time.Duration) {
	s.rank, s.endpoint, s.hadReplay = at.Rank, at.Endpoint, at.Replay != ""
	s.roots = map[root]kvevent.Engine{}
	dialect := kvsource.DialectOf(kind, at.Endpoint)
	if dialect == kvevent.TRTLLM {
		return // whoever listens takes the events away
	}
	src, err := kvsource.New(kvsource.Config{
		Endpoint: at.Endpoint, Replay: at.Replay, Topic: at.Topic, Rank: at.Rank, Dialect: dialect, Timeout: wait, Probe: -1,
	})
	if err != nil {
		s.err = err
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.err = src.Run(ctx, func(_ uint64, b *kvevent.Batch) (uint64, bool) {
		s.take(b)
		return 0, false
	})
	stats := src.Stats()
	s.malformed, s.replayErrs = stats.Malformed, stats.ReplayErrors
	if stats.Connects == 0 {
		s.err = errNeverConnected(stats.LastError)
	} else if stats.Malformed > 0 {
		s.said = stats.LastError
	}
}

type errNeverConnected string

func (e errNeverConnected) Error() string { return string(e) }

func (s *socketSeen) take(b *kvevent.Batch) {
	s.messages++
	s.unknown += b.Unknown
	if b.Seconds > 0 {
		s.lastSaid, s.heard = time.UnixMicro(int64(b.Seconds*1e6)), time.Now()
	}
	for i := range b.Events {
		e := &b.Events[i]
		if e.Kind != kvevent.Stored || e.Tier != 0 || e.Window != 0 {
			continue
		}
		s.stored += len(e.Hashes)
		s.blockSize = max(e.BlockSize, 0)
		if len(e.Blocks) == 0 {
			s.noTokens += len(e.Hashes)
		} else if !e.HasParent && len(s.roots) < maxRoots {
			s.roots[root{e.Blocks[0], e.BlockSize}] = e.Hashes[0]
		}
	}
}
