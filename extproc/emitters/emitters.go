package emitters

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/kvsource"
	"github.com/stator-project/stator/internal/kvsource/sources"
	"github.com/stator-project/stator/internal/metric"
	"github.com/stator-project/stator/internal/route/score"
)

// Emitter is a cache outside engines.
type Emitter struct {
	Name, Model string
	// KVEvents is its event socket, and KVReplay its replay socket; empty without one.
	KVEvents, KVReplay string
	// Topic is the topic of its messages. Empty means the topics that LMCache's coordinator has for the place and the model. A message
	// without a topic always counts.
	Topic string
	// Node or Workers is the place; without both it is the cluster.
	Node    string
	Workers []string
}

// Place describes the place in words.
func (e *Emitter) Place() string {
	switch {
	case e.Node != "":
		return "node " + e.Node
	case len(e.Workers) > 0:
		return fmt.Sprintf("%d workers", len(e.Workers))
	}
	return "cluster"
}

// LMCache's coordinator has the topics kv@node:NODE@MODEL, if the servers have such names, and kv@pool:BACKEND@MODEL.
const (
	nodeTopic = "kv@node:"
	poolTopic = "kv@pool:"
)

// matches reports whether messages of a topic are the emitter's.
func (e *Emitter) matches(topic []byte) bool {
	switch {
	case len(topic) == 0:
		return true
	case e.Topic != "":
		return string(topic) == e.Topic
	case e.Node != "":
		return string(topic) == nodeTopic+e.Node+"@"+e.Model
	}
	return bytes.HasPrefix(topic, []byte(poolTopic)) && bytes.HasSuffix(topic, []byte("@"+e.Model))
}

// Config is read by New and not changed later.
type Config struct {
	Emitters []Emitter
	// BlockSize returns the tokens per block of the model of a worker; 0 while it is not known.
	BlockSize func(w *fleet.Worker) int
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// Set holds all emitters of a router. Create it with [New].
type Set struct {
	cfg     Config
	fleet   *fleet.Fleet
	index   *kvindex.Index
	feed    *feed.Feed
	sources *sources.Set
	outside *score.Outside
	all     []*follower // in the order of their RankIDs
}

// follower reads one emitter.
type follower struct {
	Emitter
	rank      fleet.Rank
	connected atomic.Bool
	// own and others count its messages, and messages of other topics. named has the log line about the latter.
	own, others atomic.Uint64
	named       sync.Once
}

// New returns a set that reads nothing until it is run; nil for no emitters.
func New(cfg Config) (*Set, error) {
	if len(cfg.Emitters) == 0 {
		return nil, nil
	}
	s := &Set{cfg: cfg, index: kvindex.New(kvindex.Config{}), sources: sources.Register(cfg.Metrics, "emitters")}
	s.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { s.feed.RankGone(id) }})
	s.feed = feed.New(feed.Config{BlockSize: cfg.BlockSize}, s.fleet, s.index)

	var places []score.Place
	for _, e := range cfg.Emitters {
		w := fleet.Worker{
			Name: e.Name, Model: e.Model, Ranks: 1, State: fleet.Ready, KVEvents: e.KVEvents, KVReplay: e.KVReplay,
			Address: "0.0.0.0:0", // no request goes there
		}
		if _, err := s.fleet.Put(w); err != nil {
			return nil, err
		}
		rank, _ := s.fleet.Snapshot().Rank(e.Name, 0)
		f := &follower{Emitter: e, rank: rank}
		if _, err := kvsource.New(s.sourceConfig(f, 0)); err != nil {
			return nil, fmt.Errorf("emitter %s: %w", e.Name, err)
		}
		s.all = append(s.all, f)
		places = append(places, score.Place{Rank: rank.ID, Model: e.Model, Node: e.Node, Workers: e.Workers, Usable: f.connected.Load})
	}
	s.outside = score.NewOutside(s.index, places)
	cfg.Metrics.MustRegister(metric.Collector(s.collect, blocks, states, otherTopics))
	return s, nil
}

// Outside returns the blocks for decisions; nil for a nil set.
func (s *Set) Outside() *score.Outside {
	if s == nil {
		return nil
	}
	return s.outside
}

// Run reads all emitters until ctx ends. A nil set has none.
func (s *Set) Run(ctx context.Context) {
	if s == nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, f := range s.all {
		all.Go(func() { s.follow(ctx, f) })
	}
}

// sizeEvery is the interval at which the block size of an emitter's model is compared.
const sizeEvery = time.Second

// follow reads one emitter while the block size of its model is known. After a change of the size it is read again from the start.
func (s *Set) follow(ctx context.Context, f *follower) {
	for ctx.Err() == nil {
		size := s.cfg.BlockSize(f.rank.Worker)
		if size <= 0 {
			_ = backoff.Sleep(ctx, sizeEvery)
			continue
		}

		reading, stop := context.WithCancel(ctx)
		var source sync.WaitGroup
		source.Go(func() { s.read(reading, f, size) })
		for ctx.Err() == nil && s.cfg.BlockSize(f.rank.Worker) == size {
			_ = backoff.Sleep(ctx, sizeEvery)
		}
		stop()
		source.Wait()
		f.connected.Store(false)
		s.feed.Forget(f.Name, 0)
	}
}

// probe is the time of silence after which an emitter's replay socket is asked for missed messages.
const probe = time.Second

func (s *Set) sourceConfig(f *follower, size int) kvsource.Config {
	return kvsource.Config{
		Endpoint: f.KVEvents, Replay: f.KVReplay, Dialect: kvevent.Outside, Split: size,
		Match:  func(topic []byte) bool { return s.match(f, topic) },
		Logger: s.cfg.Log, Probe: probe,
	}
}

// match counts messages of other topics. It logs the first one as long as no message was the emitter's: a wrong topic must not stay unseen.
func (s *Set) match(f *follower, topic []byte) bool {
	if f.matches(topic) {
		f.own.Add(1)
		return true
	}
	f.others.Add(1)
	if f.own.Load() == 0 {
		f.named.Do(func() {
			s.cfg.Log.Warn("a message of another topic came on an emitter's socket; if it is the emitter's, set models[].emitters[].topic",
				"emitter", f.Name, "topic", string(topic[:min(len(topic), maxTopic)]))
		})
	}
	return false
}

// maxTopic bounds the bytes of a topic in the log.
const maxTopic = 256

func (s *Set) read(ctx context.Context, f *follower, size int) {
	src, err := kvsource.New(s.sourceConfig(f, size))
	if err == nil {
		defer s.sources.Add(f.Name, 0, src)()
		err = src.Run(ctx, &stream{feed.Stream{Feed: s.feed, Worker: f.Name, Now: time.Now}, f})
	}
	if err != nil {
		s.cfg.Log.Error("emitter not read", "emitter", f.Name, "err", err)
	}
}

// stream is the consumer of an emitter's source.
type stream struct {
	feed.Stream
	follower *follower
}

// Connected reports whether the emitter's socket is connected. Its blocks count only then.
func (s *stream) Connected(up bool) {
	s.follower.connected.Store(up)
	s.Stream.Connected(up)
}

// State describes an emitter.
type State struct {
	Name, Model, Place string
	// Address is the endpoint of its events.
	Address   string
	Connected bool
	// Messages counts the messages on its socket that are its own, and OtherTopics the others.
	Messages, OtherTopics uint64
	feed.RankState
}

// States returns all emitters, sorted by name. A nil set has none.
func (s *Set) States() []State {
	if s == nil {
		return nil
	}
	list := []State{}
	for _, r := range s.feed.States() {
		rank, _ := s.fleet.Snapshot().Rank(r.Worker, 0)
		f := s.all[rank.ID]
		list = append(list, State{
			Name: f.Name, Model: f.Model, Place: f.Place(), Address: f.KVEvents, Connected: f.connected.Load(),
			Messages: f.own.Load(), OtherTopics: f.others.Load(), RankState: r,
		})
	}
	return list
}
