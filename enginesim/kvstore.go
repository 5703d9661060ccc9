package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/kvbm/session"
)

// kvStore is the engine's side of the store of KV blocks of its node, as a connector in vLLM would be. Blocks that the engine
// computes are written there, and the beginning of a prompt that it does not have is loaded from there, if that is faster. Bytes
// really move: a block is filled with its key, and compared when it comes back.
//
// Without the store the engine goes on alone, and connects again.
//
// Invariants: client is set exactly while write runs with it. there[t] has the blocks whose last event of tier t was that it
// stored them, and all of them are in names. A value read from them before mu was released may be out of date: then a lookup
// finds less, and a block is written twice, of which the store drops one.
type kvStore struct {
	sim    *Sim
	layout block.Layout
	space  block.Space
	writes chan write // what waits for the store

	loaded, wrong, written, dropped atomic.Uint64 // blocks

	mu     sync.Mutex
	client *session.Client                  // guarded by mu; nil while there is none
	names  map[block.Key]kvevent.EngineHash // guarded by mu; of blocks that the store may report
	there  [fleet.Tiers]map[block.Key]bool  // guarded by mu; the blocks that it has reported
}

// The layout of simulated blocks: 128 bytes for each token. Blocks of engines with different seeds have different hashes.
const (
	storeOuter = 2
	storeInner = 32
	storeDType = "float16"
)

// The bounds of memory. A block needs 8 bytes in the queue, and about 100 in names and there.
//
// maxWrites bounds the blocks that wait to be written, and maxBatch the blocks of one request. maxNames bounds the remembered
// names of the store.
const (
	maxWrites = 1 << 14
	maxBatch  = 256
	maxNames  = 1 << 20
)

// redialAfter is the pause before the next attempt to reach the store, and storeTimeout bounds how long a request waits for it.
const (
	redialAfter  = time.Second
	storeTimeout = 5 * time.Second
)

func newKVStore(s *Sim) *kvStore {
	k := &kvStore{sim: s, writes: make(chan write, maxWrites)}
	k.layout = block.Layout{
		Model: s.cfg.ModelName, Layers: 1, PageTokens: s.cfg.Engine.BlockSize, Outer: storeOuter, Inner: storeInner, DType: storeDType,
		TPSize: 1, Hashing: fmt.Sprintf("simulated, seed %d", s.cfg.Engine.HashSeed),
	}
	k.space = k.layout.Space()
	k.names = map[block.Key]kvevent.EngineHash{}
	for i := range k.there {
		k.there[i] = map[block.Key]bool{}
	}
	return k
}

// speedOf returns how fast an engine with this timing computes prompts, from two of them.
func speedOf(t perfmodel.Timing) *session.Speed {
	// The first prompt has no tokens before it, and the second many: the difference is the time of pairs. The other costs of a
	// pass are counted to the tokens.
	const tokens, before = 1024, 16384
	first := float64(t.Prefill(perfmodel.Prefill{Requests: 1, Input: tokens}))
	later := float64(t.Prefill(perfmodel.Prefill{Requests: 1, Prefix: before, Input: before + tokens}))
	pair := max(0, later-first) / (tokens * before)
	return &session.Speed{Token: max(0, first/tokens-pair*tokens/2), Pair: pair}
}

// readPin returns the pin in "kv_transfer_params" of a body; 0 for none, and for one that is no number of seconds.
func readPin(body []byte) time.Duration {
	var asked struct {
		Params map[string]json.RawMessage `json:"kv_transfer_params"`
	}
	_ = json.Unmarshal(body, &asked) // the request's own reader reports errors
	seconds, err := strconv.ParseUint(string(asked.Params["stator_pin_seconds"]), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// pinPrompt queues the pin of a request that is answered. One without room is left out.
func (s *Sim) pinPrompt(c *completion) {
	if s.kv == nil || c.pin == 0 || !c.allDone() {
		return
	}
	hashes := s.promptHashes(c)
	keys := make([]block.Key, len(hashes))
	for i, h := range hashes {
		keys[i] = s.kv.key(h)
	}
	select {
	case s.kv.writes <- write{pin: keys, ttl: c.pin}:
	default:
	}
}

// key returns the key of a block.
func (k *kvStore) key(h kvevent.EngineHash) block.Key {
	return k.space.KeyOfHash(uint64(h))
}

// keepSession keeps a session with the store, and writes blocks to it, until ctx ends.
func (k *kvStore) keepSession(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := session.Dial(ctx, k.sim.cfg.KVStore, session.User{
			Name: k.sim.cfg.ModelName, Layout: k.layout, Speed: speedOf(k.sim.cfg.Engine.Timing), Changed: k.changed,
		})
		if err != nil {
			k.sim.cfg.Logger.Debug("no KV store", "err", err)
			_ = backoff.Sleep(ctx, redialAfter)
			continue
		}
		k.setSession(c)
		k.write(ctx, c)
		k.setSession(nil)
		_ = c.Close()
		for tier := fleet.Host; tier < fleet.Tiers; tier++ {
			k.changed(tier, false, nil) // the engine reaches none of them now
		}
	}
}

// setSession sets the session that requests use.
func (k *kvStore) setSession(c *session.Client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.client = c
}

// load loads the beginning of the first prompt of a request as far as the engine does not have it, if that is faster than to compute it.
func (k *kvStore) load(ctx context.Context, c *completion) {
	k.mu.Lock()
	client := k.client
	k.mu.Unlock()
	r := c.requests[0]
	if client == nil || r.WholePrompt || c.leg != (noLeg{}) {
		return
	}
	hashes := k.sim.promptHashes(c)
	cached := k.sim.cachedBlocks(hashes)
	keys := make([]block.Key, 0, len(hashes)-cached)
	for _, h := range hashes[cached:] {
		keys = append(keys, k.key(h))
	}
	if len(keys) == 0 {
		return
	}

	// A store that does not answer delays the request, and fails nothing: the engine can compute all of it.
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	size := k.sim.cfg.Engine.BlockSize
	_, blocks, _, err := client.Find(ctx, keys, cached*size)
	if err != nil || blocks == 0 {
		return
	}
	// Their names must be known before the store reports that they have come to host memory.
	k.remember(keys[:blocks], hashes[cached:])
	lease, err := client.Fetch(ctx, keys[:blocks])
	if err != nil {
		return
	}
	began := time.Now()
	n := k.verify(client, lease, keys)
	if lease.Release(time.Since(began)) != nil || n == 0 {
		return
	}
	// The core gives these blocks to the request when it admits it, like the blocks of a prefill engine, and computes the rest.
	r.Delivered = (cached + n) * size
	c.fetched = r.Delivered
	k.sim.metrics.fetched(n * size)
}

// remember remembers the hashes of keys.
func (k *kvStore) remember(keys []block.Key, hashes []kvevent.EngineHash) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, key := range keys {
		k.names[key] = hashes[i]
	}
}

// verify copies blocks of a lease, and returns how many of the first ones have their bytes.
func (k *kvStore) verify(client *session.Client, lease *session.Lease, keys []block.Key) int {
	size := k.layout.Bytes()
	want, got := make([]byte, size), make([]byte, size)
	for i, slot := range lease.Slots {
		copy(got, client.Slot(slot))
		fill(want, keys[i])
		if !bytes.Equal(got, want) {
			k.wrong.Add(1)
			k.sim.cfg.Logger.Error("a block of the KV store has wrong bytes", "key", keys[i])
			return i
		}
		k.loaded.Add(1)
	}
	return len(lease.Slots)
}

// changed publishes which blocks of this engine the store has, as KV events of slower tiers.
func (k *kvStore) changed(tier fleet.Tier, stored bool, keys []block.Key) {
	raw := kvevent.Raw{Kind: kvevent.Removed, Tier: tier, BlockSize: k.sim.cfg.Engine.BlockSize}
	if stored {
		raw.Kind = kvevent.Stored
	}
	k.mu.Lock()
	if len(keys) == 0 && !stored {
		keys = slices.Collect(maps.Keys(k.there[tier]))
	}
	for _, key := range keys {
		// An event that repeats a known fact would count as a mistake of the engine.
		h, known := k.names[key]
		if !known || k.there[tier][key] == stored {
			continue
		}
		raw.Hashes = append(raw.Hashes, h)
		if stored {
			k.there[tier][key] = true
		} else {
			delete(k.there[tier], key)
		}
	}
	k.mu.Unlock()

	if s := k.sim; s.pub != nil && len(raw.Hashes) > 0 {
		s.pub.publish(time.Now(), s.cfg.Rank, raw)
	}
}
