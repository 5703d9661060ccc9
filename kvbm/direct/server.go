package direct

import (
	"crypto/rand"
	"encoding/json"
	"sync"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/stream"
)

// Store has the methods that a server needs of a [github.com/stator-project/stator/kvbm.Store].
type Store interface {
	// AcquireSlots returns the slots of blocks, or -1, whose bytes stay the same until release.
	AcquireSlots(keys []block.Key) (slots []int, release func())
}

// leaseCounts has the leases of all connections.
type leaseCounts struct {
	most int // blocks

	mu   sync.Mutex
	last uint64 // guarded by mu; the number of a lease
	held int    // guarded by mu; blocks
}

// count returns how many blocks are held.
func (c *leaseCounts) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// take reserves room for blocks of a connection that holds some already. It returns how many, at most want.
func (c *leaseCounts) take(want, has int) (blocks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	blocks = max(min(want, c.most-c.held, max(c.most/2, 1)-has), 0)
	c.held += blocks
	return blocks
}

// give returns room.
func (c *leaseCounts) give(blocks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held -= blocks
}

// next returns a number that no other lease has, so that a client that repeats itself on another connection ends no lease but its own.
func (c *leaseCounts) next() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	return c.last
}

// Serve returns the function that makes the server's side of connections, for the configuration of a stream.Server.
func (d *Direct) Serve(store Store) func() stream.Calls {
	return func() stream.Calls { return &connection{d: d, store: store, leases: map[uint64]*lease{}} }
}

// connection has the leases of one client.
type connection struct {
	d     *Direct
	store Store

	mu     sync.Mutex
	leases map[uint64]*lease // guarded by mu
	held   int               // guarded by mu; blocks of them
}

// lease is blocks that a client reads.
type lease struct {
	blocks  int
	release func()
	timer   *time.Timer // ends the lease
}

// Call answers a request of the client.
func (c *connection) Call(message []byte) ([]byte, error) {
	r, keys, err := parseRequest(message)
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case opDone:
		c.endLease(r.Lease)
		return json.Marshal(&answer{})
	case opAgent:
		return json.Marshal(&answer{Node: c.d.id, Agent: c.d.agent()})
	}
	a, err := c.holdBlocks(r.Has, keys)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

// agent returns the agent that runs, or nothing. It changes only after the process of the one before has ended.
func (d *Direct) agent() string {
	h, _, err := d.running()
	if err != nil {
		return ""
	}
	name, err := agentOf(h.Endpoint())
	if err != nil {
		return ""
	}
	return name
}

// holdBlocks holds blocks for the client, as far as there is room.
func (c *connection) holdBlocks(has string, keys []block.Key) (*answer, error) {
	h, _, err := c.d.running()
	if err != nil {
		return nil, err
	}
	endpoint := h.Endpoint()
	agent, err := agentOf(endpoint)
	if err != nil {
		return nil, err
	}
	a := &answer{Node: c.d.id, Agent: agent, Key: make([]byte, block.MACKeyBytes)}
	if _, err := rand.Read(a.Key); err != nil {
		return nil, err
	}
	mac := block.NewMAC([block.MACKeyBytes]byte(a.Key))
	if agent != has {
		a.Endpoint = endpoint
	}

	c.mu.Lock()
	room := c.d.leases.take(len(keys), c.held)
	c.held += room
	c.mu.Unlock()
	slots, release := c.store.AcquireSlots(keys[:room])
	found := 0
	for k, i := range slots {
		var tag block.Tag
		if i >= 0 {
			found++
			tag = mac.Tag(uint32(k), c.d.cfg.Arena.Slot(i)[:c.d.cfg.Layout.Bytes()])
		}
		a.Slots = append(a.Slots, int32(i))
		a.Tags = append(a.Tags, tag[:]...)
	}
	a.Lease = c.begin(room, found, release)
	return a, nil
}

// begin enters a lease of the blocks that were found, and gives the rest of the room back. It returns the lease's number, or 0 if no block
// was found.
func (c *connection) begin(room, found int, release func()) (id uint64) {
	id = c.d.leases.next()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held -= room - found
	c.d.leases.give(room - found)
	if found == 0 {
		release()
		return 0
	}
	c.leases[id] = &lease{blocks: found, release: release, timer: time.AfterFunc(c.d.cfg.LeaseTime, func() { c.endLease(id) })}
	return id
}

// endLease releases the blocks of a lease. It does nothing for a lease that has ended.
func (c *connection) endLease(id uint64) {
	c.mu.Lock()
	l := c.leases[id]
	delete(c.leases, id)
	if l != nil {
		c.held -= l.blocks
	}
	c.mu.Unlock()
	if l == nil {
		return
	}
	l.timer.Stop()
	l.release()
	c.d.leases.give(l.blocks)
}

// Close releases the blocks of all leases.
func (c *connection) Close() {
	c.mu.Lock()
	ids := make([]uint64, 0, len(c.leases))
	for id := range c.leases {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.endLease(id)
	}
}
