package bus

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/fleet"
)

// slotsBucket is the key-value bucket of the engines that agents can run: a node's name is its key, or noNode. Entries live as
// long as leases of workers, so a dead agent's entries are gone with its workers.
const slotsBucket = "slots"

// Slots are the engines that the agent of one node can run.
type Slots struct {
	// Node is the agent's; empty for none.
	Node string
	// Slots are in the order in which the agent prefers to start them.
	Slots []Slot
}

// Slot is one engine that can run or not.
type Slot struct {
	// Name is the worker's.
	Name  string
	Model string
	Role  fleet.Role
	// Running means that the process is there, or about to be started; one that drains is there.
	Running bool
}

// maxSlots bounds the slots of one node.
const maxSlots = 4096

// nodeKey returns the key of a node.
func nodeKey(node string) string { return cmp.Or(node, noNode) }

// HoldSlots publishes the slots of a node every third of their lifetime, after each change and after reconnections, until ctx ends. Then
// it removes them. current is called for each write. Errors are logged, and the slots are written again. It returns nil.
//
// A node's slots have one writer, its agent. Two agents with one name overwrite each other's slots; the leases of their workers show that,
// because they are written by compare-and-set.
//
//	event                        effect
//	a slot starts or ends        written at once
//	a third of the lifetime      written again
//	reconnection                 written again: the server may have lost its memory
//	the agent ends               removed
//	the agent dies               they expire
func (b *Bus) HoldSlots(ctx context.Context, current func() Slots, changed <-chan struct{}) error {
	var warned time.Time
	for {
		// Taken before the slots are written: a reconnection in between must not be missed.
		reconnected := b.Back()
		wait := b.cfg.LeaseTTL / 3
		if err := b.writeSlots(ctx, current()); err != nil && ctx.Err() == nil {
			if now := time.Now(); now.Sub(warned) >= logEvery {
				warned = now
				b.cfg.Log.Warn("slots not written, so the planner cannot start engines here; trying again", "err", err)
			}
			wait = retryLease
		}

		next := time.NewTimer(wait)
		select {
		case <-next.C:
		case <-changed:
		case <-reconnected:
		case <-ctx.Done():
			next.Stop()
			b.deleteKey(slotsBucket, nodeKey(current().Node), "slots")
			return nil
		}
		next.Stop()
	}
}

// writeSlots replaces the slots of a node.
func (b *Bus) writeSlots(ctx context.Context, s Slots) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LeaseTTL)
	defer cancel()
	kv, err := b.bucket(ctx, slotsBucket, b.cfg.LeaseTTL)
	if err != nil {
		return err
	}
	_, err = kv.Put(ctx, nodeKey(s.Node), encode(slotsMessage(&s)))
	return b.checkBucket(slotsBucket, err)
}

// WatchSlots calls apply for the slots of every node now and at every change, until ctx ends. Without slots the node has none any more:
// its agent has ended, or has not written for one lifetime. synced is called whenever all nodes of the moment have been applied. A lost bus
// changes nothing.
func (b *Bus) WatchSlots(ctx context.Context, apply func(Slots), synced func()) error {
	gone := func(key string) { apply(Slots{Node: nodeOfKey(key)}) }
	b.watch(ctx, slotsBucket, allKeys, b.cfg.LeaseTTL, &slotsWatch{expiry: b.newExpiry(gone), apply: apply, synced: synced})
	return nil
}

// nodeOfKey returns the node of a key.
func nodeOfKey(key string) string {
	if key == noNode {
		return ""
	}
	return key
}

// slotsWatch is the watcher of slots.
type slotsWatch struct {
	expiry
	apply  func(Slots)
	synced func()
}

// entry applies one change.
func (w *slotsWatch) entry(entry jetstream.KeyValueEntry) {
	if entry == nil {
		w.synced()
		return
	}
	key := entry.Key()
	if entry.Operation() != jetstream.KeyValuePut {
		delete(w.due, key)
		w.apply(Slots{Node: nodeOfKey(key)})
		return
	}

	var received busv1.Slots
	s, err := decodeSlots(&received, entry.Value())
	if err == nil && nodeKey(s.Node) != key {
		err = fmt.Errorf("the slots are of node %q", s.Node)
	}
	if !w.bus.reader.accept(kindSlots, key, &received, err) {
		return
	}
	w.renewed(key)
	w.apply(s)
}

// slotsMessage returns the message of slots.
func slotsMessage(s *Slots) *busv1.Slots {
	m := &busv1.Slots{Node: s.Node}
	for i := range s.Slots {
		x := &s.Slots[i]
		m.Slots = append(m.Slots, &busv1.Slot{Name: x.Name, Model: x.Model, Role: uint32(x.Role), Running: x.Running})
	}
	return m
}

// decodeSlots returns the slots in data, by way of the empty message m.
func decodeSlots(m *busv1.Slots, data []byte) (Slots, error) {
	if err := decode(m, data); err != nil {
		return Slots{}, err
	}
	if m.Node != "" && !fleet.ValidName(m.Node) {
		return Slots{}, fmt.Errorf("node %.80q is not valid", m.Node)
	}
	if len(m.Slots) > maxSlots {
		return Slots{}, fmt.Errorf("%d slots: there must be at most %d", len(m.Slots), maxSlots)
	}

	s := Slots{Node: m.Node}
	for _, x := range m.Slots {
		if !fleet.ValidWorkerName(x.Name) || fleet.NodeOf(x.Name) != m.Node {
			return Slots{}, fmt.Errorf("worker name %.80q is not valid on node %q", x.Name, m.Node)
		}
		if x.Role > uint32(fleet.Encode) {
			return Slots{}, fmt.Errorf("slot %s: role is %d: it must be at most %d", x.Name, x.Role, fleet.Encode)
		}
		s.Slots = append(s.Slots, Slot{Name: x.Name, Model: x.Model, Role: fleet.Role(x.Role), Running: x.Running})
	}
	return s, nil
}
