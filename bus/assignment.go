package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/stator-project/stator/bus/busv1"
)

// assignBucket is the key-value bucket of the assignments. Its keys are the same as in slotsBucket.
const assignBucket = "assign"

// Assignment lists the engines of one node that should run.
//
// One planner writes all assignments: the one that leads. Assignments have the same terms as plans, see [Bus.Lead].
//
//	event                                effect
//	a planner of the same term writes    written at the revision that was read: of two planners with one term one writes
//	a planner of an earlier term writes  refused here, and again by agents, because a server without its memory accepts any
//	no planner leads                     the last assignment stays in force
//	the server has lost its memory       the planner writes again when it is back; agents keep their assignments
type Assignment struct {
	// Term is the leading planner's term: an assignment of an earlier term than the last has no effect.
	Term uint64
	Node string
	// Run lists the workers that should run. All others of the node drain, and end.
	Run []string
	// Busy and Free are workers that drain: those for which routers have booked requests, and those for which no router has. If that
	// is not known, a worker is in neither.
	Busy, Free []string
	// Drain is the longest time that a drain may take.
	Drain time.Duration
}

// PutAssignment replaces the assignment of a node. The error ErrEarlierTerm means that another planner has written since.
func (b *Bus) PutAssignment(ctx context.Context, a Assignment) error {
	f := fenced{assignBucket, nodeKey(a.Node), fmt.Sprintf("assignment of node %q", a.Node), func(value []byte) uint64 {
		var received busv1.Assignment
		if decode(&received, value) != nil {
			return 0
		}
		return received.Term
	}}
	return b.putFenced(ctx, &f, a.Term, encode(assignmentMessage(&a)))
}

// WatchAssignment calls apply with the assignment of a node now and at every change, until ctx ends. synced is called when the one of the
// moment has been applied, or there is none. A lost bus changes nothing.
func (b *Bus) WatchAssignment(ctx context.Context, node string, apply func(Assignment), synced func()) error {
	b.watch(ctx, assignBucket, nodeKey(node), 0, &assignmentWatch{bus: b, node: node, apply: apply, synced: synced})
	return nil
}

// assignmentWatch is the watcher of one node's assignment.
type assignmentWatch struct {
	lasting
	bus    *Bus
	node   string
	apply  func(Assignment)
	synced func()
}

// entry applies a new assignment.
func (w *assignmentWatch) entry(entry jetstream.KeyValueEntry) {
	if entry == nil {
		w.synced()
		return
	}
	if entry.Operation() != jetstream.KeyValuePut {
		return
	}

	var received busv1.Assignment
	a, err := decodeAssignment(&received, entry.Value())
	if err == nil && a.Node != w.node {
		err = fmt.Errorf("the assignment is of node %q", a.Node)
	}
	if err == nil {
		err = checkTerm(a.Term, time.Now())
	}
	if w.bus.reader.accept(kindAssignment, entry.Key(), &received, err) {
		w.apply(a)
	}
}

// assignmentMessage returns the message of an assignment.
func assignmentMessage(a *Assignment) *busv1.Assignment {
	return &busv1.Assignment{
		Term: a.Term, Node: a.Node, Run: a.Run, Busy: a.Busy, Free: a.Free, DrainNanoseconds: uint64(max(0, a.Drain)),
	}
}

// maxDrain bounds the time of a drain, so that sums of times do not overflow.
const maxDrain = 30 * 24 * time.Hour

// decodeAssignment returns the assignment in data, by way of the empty message m. The agent compares the names with its
// engines' names.
func decodeAssignment(m *busv1.Assignment, data []byte) (Assignment, error) {
	if err := decode(m, data); err != nil {
		return Assignment{}, err
	}
	if m.DrainNanoseconds > uint64(maxDrain) {
		return Assignment{}, fmt.Errorf("a drain may take %d ns: it must be at most %s", m.DrainNanoseconds, maxDrain)
	}
	return Assignment{
		Term: m.Term, Node: m.Node, Run: m.Run, Busy: m.Busy, Free: m.Free, Drain: time.Duration(m.DrainNanoseconds),
	}, nil
}
