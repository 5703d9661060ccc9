package peers

import (
	"slices"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/predict"
)

// Prompt is a prompt that a replica has sent to a rank. The rank will have its blocks when it has computed them. Other replicas learn from
// it where prompts with the same blocks belong, before events of the rank can show it: while the prompt waits there, and if the engine
// publishes no events. A prompt that did not reach the rank is sent again as withdrawn.
type Prompt struct {
	Worker string
	Epoch  uint64
	Rank   int
	// Blocks are blocks of the prompt in their order, of the engine's size. The rank has all blocks before them, and the first Known of
	// these, 0 or 1. So a turn of a conversation needs few.
	Blocks []blockhash.Sequence
	Known  int
	// Computed is the time from the update until the prompt is expected to be computed. It is negative if that is over.
	Computed time.Duration
	// Withdrawn means that the prompt did not reach the rank.
	Withdrawn bool
}

// The bounds of the prompts in an update. Their blocks have at most 256 KiB, a quarter of what the bus takes in a message.
const (
	maxPrompts  = 1 << 12
	maxBlocks   = 1 << 15 // of all prompts
	maxComputed = time.Hour
)

// arePrompts reports whether a router can have sent the prompts of an update: none is out of bounds.
func arePrompts(list []Prompt) bool {
	blocks := 0
	for i := range list {
		p := &list[i]
		if p.Known < 0 || p.Known > min(1, len(p.Blocks)) || p.Computed < -maxComputed || p.Computed > maxComputed {
			return false
		}
		blocks += len(p.Blocks)
	}
	return len(list) <= maxPrompts && blocks <= maxBlocks
}

// Outbox has the prompts for the next update of a replica. The zero value is empty. It is safe for concurrent use.
type Outbox struct {
	mu      sync.Mutex
	prompts []Prompt    // guarded by mu; without Computed
	times   []time.Time // guarded by mu; when each is computed
	blocks  int         // guarded by mu; of all prompts
	dropped uint64      // guarded by mu
}

// Add adds a prediction about a prompt. It keeps nothing of p. A prompt without room is dropped: the others then learn of it by events.
func (o *Outbox) Add(p predict.Prediction) {
	chain, known := p.Chain[max(0, p.Known-1):], min(p.Known, 1)

	o.mu.Lock()
	defer o.mu.Unlock()
	room := maxBlocks - o.blocks
	if len(o.prompts) == maxPrompts || room <= known {
		o.dropped++
		return
	}
	chain = chain[:min(len(chain), room)]
	o.blocks += len(chain)
	o.prompts = append(o.prompts, Prompt{
		Worker: p.Rank.Worker.Name, Epoch: p.Rank.Worker.Epoch, Rank: p.Rank.Number, Blocks: slices.Clone(chain), Known: known,
		Withdrawn: p.Withdrawn,
	})
	o.times = append(o.times, p.Computed)
}

// Dropped returns the number of prompts that found no room.
func (o *Outbox) Dropped() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}

// take empties the outbox.
func (o *Outbox) take(now time.Time) []Prompt {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.prompts
	for i := range list {
		list[i].Computed = min(max(-maxComputed, o.times[i].Sub(now)), maxComputed)
	}
	o.prompts, o.times = nil, o.times[:0]
	o.blocks = 0
	return list
}
