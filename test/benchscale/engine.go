package main

import (
	"fmt"
	"math/rand/v2"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

const (
	// chainBlocks is the length of the prompts that fill a cache, in blocks.
	chainBlocks = 100
	// changed is the number of blocks that a batch stores, and as many it removes.
	changed = 4
)

// engine is an engine whose cache is full.
type engine struct {
	worker fleet.Worker
	rng    *rand.Rand
	seq    uint64
	last   uint64   // engine hash of the newest block
	held   []uint64 // engine hashes; the oldest is at oldest
	oldest int
	batch  kvevent.Batch
}

// newEngine returns the engine of a number, in a fleet of several nodes. Its cache is empty.
func newEngine(number, blocks int) *engine {
	name := fmt.Sprintf("node-%d.sim-%d", number/workersPerNode, number%workersPerNode)
	return &engine{
		worker: fleet.Worker{
			Name: name, Model: "m", Address: fmt.Sprintf("127.0.0.1:%d", 1024+number), Engine: "sim", Epoch: 1 << 60, Ranks: 1, Weight: 1,
			State: fleet.Ready, KVEvents: "ipc:///played", Blocks: blocks, BlockSize: 16,
		},
		rng: rand.New(rand.NewPCG(uint64(number), 1)), held: make([]uint64, 0, blocks),
	}
}

// fill calls apply with the batches that fill the cache.
func (e *engine) fill(blocks int, apply func(*feed.Message)) {
	for range blocks / chainBlocks {
		e.batch.Events = append(e.batch.Events[:0], e.stored(chainBlocks, false))
		apply(e.message(1))
	}
}

// next returns the next batch, published at the engine's time seconds. It is valid until the next call.
func (e *engine) next(seconds float64) *feed.Message {
	var removed [changed]uint64
	for i := range removed {
		removed[i] = e.held[(e.oldest+i)%len(e.held)]
	}
	from := len(e.held)
	stored := e.stored(changed, true)
	for i, h := range e.held[from:] { // the new blocks take the places of the removed ones
		e.held[(e.oldest+i)%from] = h
	}
	e.held = e.held[:from]
	e.oldest = (e.oldest + changed) % from

	e.batch.Events = append(e.batch.Events[:0], stored)
	for _, h := range removed {
		e.batch.Events = append(e.batch.Events, kvevent.Event{Kind: kvevent.Removed, Hashes: []kvevent.EngineHash{kvevent.EngineHash(h)}})
	}
	return e.message(seconds)
}

// stored returns an event that stores n new blocks.
func (e *engine) stored(n int, continues bool) kvevent.Event {
	event := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16, HasParent: continues, Parent: kvevent.EngineHash(e.last)}
	for range n {
		e.last = e.rng.Uint64()
		e.held = append(e.held, e.last)
		event.Hashes = append(event.Hashes, kvevent.EngineHash(e.last))
		event.Blocks = append(event.Blocks, blockhash.Block(e.rng.Uint64()))
	}
	return event
}

// message numbers the batch.
func (e *engine) message(seconds float64) *feed.Message {
	e.batch.Seconds = seconds
	m := &feed.Message{Worker: e.worker.Name, Epoch: e.worker.Epoch, Seq: e.seq, State: feed.Exact, Batch: &e.batch}
	e.seq++
	return m
}
