package main

import (
	"encoding/json"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/test/process"
)

// filled has the memory and time of a full index.
type filled struct {
	Pairs      int64         `json:"pairs"`
	IndexBytes int64         `json:"index_bytes"`
	RSS        int64         `json:"rss"`
	Took       time.Duration `json:"took"`
	CPU        time.Duration `json:"cpu"`
}

// knowledge is a fleet with an index of its caches that has no bound.
type knowledge struct {
	fleet *fleet.Fleet
	index *kvindex.Index
	feed  *feed.Feed
}

func newKnowledge() *knowledge {
	k := &knowledge{index: kvindex.New(kvindex.Config{MaxBytes: 1 << 40})}
	k.fleet = fleet.New(fleet.Hooks{RankGone: func(id fleet.RankID) { k.feed.RankGone(id) }})
	k.feed = feed.New(feed.Config{}, k.fleet, k.index)
	return k
}

// fill fills an index with the caches of the whole fleet, and prints its memory and time.
func fill(o *options, out io.Writer) error {
	began, cpu := time.Now(), process.OwnCPU()
	k := newKnowledge()
	for i := range o.workers {
		e := newEngine(i, o.blocks)
		if _, err := k.fleet.Put(e.worker); err != nil {
			return err
		}
		e.fill(o.blocks, func(m *feed.Message) { k.feed.Apply(m, time.Unix(1, 0)) })
	}

	took := filled{Took: time.Since(began), CPU: process.OwnCPU() - cpu}
	runtime.GC()
	stats := k.index.Stats()
	took.Pairs = stats.Pairs
	took.IndexBytes = stats.Bytes
	var err error
	took.RSS, err = process.Resident(os.Getpid())
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(took)
}
