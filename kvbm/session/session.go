package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/host"
)

// session is one engine's connection.
type session struct {
	server *Server
	cfg    *Config
	conn   *net.UnixConn
	engine string
	// compute follows the speed that the engine has reported; nil if it has reported none.
	compute kvbm.Compute
	pid     int
	cancel  func()
	store   *kvbm.Store
	arena   *host.Arena
	// process is the descriptor of the client's process (pidfd), because its number may be used again.
	process int
	buffer  []byte // of the frame that was read

	reserved map[int]bool // slots; of the goroutine that reads

	mu     sync.Mutex
	leases map[uint32]*kvbm.Lease // guarded by mu
	last   uint32                 // guarded by mu; lease
	names  *names                 // guarded by mu

	fetches chan struct{} // as many as run
	running sync.WaitGroup
	changes chan []byte // bodies that wait to be sent

	out frameBuffer
}

// maxChanges bounds the changes that wait for a client. A client that is so far behind has to begin again.
const maxChanges = 4096

// answerRequests answers requests until the client leaves, breaks a rule, or ctx ends.
func (x *session) answerRequests(ctx context.Context) error {
	for {
		f, err := readFrame(x.conn, &x.buffer)
		switch {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return nil //nolint:nilerr // the client has left, or the server ends
		case err != nil:
			return err
		}
		if err := x.answer(ctx, &f); err != nil {
			_ = x.send(kindFailed, f.number, []byte(err.Error())) // the error is returned
			return err
		}
	}
}

// answer answers one request.
func (x *session) answer(ctx context.Context, f *frame) error {
	r := &reader{left: f.body}

	switch f.kind {
	case kindFind:
		return x.find(f.number, r)
	case kindFetch:
		return x.fetch(ctx, f.number, r)
	case kindRelease:
		return x.release(r)
	case kindReserve:
		return x.reserve(f.number, r)
	case kindCommit:
		return x.commit(f.number, r)
	case kindPin:
		return x.pin(ctx, r)
	case kindDrop:
		slots := r.slots()
		if err := r.finish(); err != nil {
			return err
		}
		if err := x.give(slots); err != nil {
			return err
		}
		return x.store.Drop(slots)
	}
	return fmt.Errorf("kind %d of a frame is unknown", f.kind)
}

func (x *session) find(number uint32, r *reader) error {
	prefix := int(r.uint32())
	keys := r.keys()
	if err := r.finish(); err != nil {
		return err
	}
	x.name(keys)
	found := x.store.Find(keys, prefix, x.compute)

	body := binary.LittleEndian.AppendUint32(nil, uint32(found.Blocks))
	body = binary.LittleEndian.AppendUint32(body, uint32(found.Load))
	return x.send(kindFind, number, binary.LittleEndian.AppendUint64(body, uint64(found.Took.Microseconds())))
}

// fetch fetches blocks while other requests are answered.
func (x *session) fetch(ctx context.Context, number uint32, r *reader) error {
	keys := r.keys()
	if err := r.finish(); err != nil {
		return err
	}
	x.name(keys)
	x.mu.Lock()
	leases := len(x.leases)
	x.mu.Unlock()
	if leases >= x.cfg.Leases {
		return fmt.Errorf("%d leases: release some", leases)
	}

	select {
	case x.fetches <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	x.running.Go(func() {
		defer func() { <-x.fetches }()
		l := x.store.Fetch(ctx, keys)
		x.mu.Lock()
		x.last++
		lease := x.last
		x.leases[lease] = l
		x.mu.Unlock()
		_ = x.sendSlots(kindFetch, number, leaseBytes(lease), l.Slots) // a client that has left loses its leases
	})
	return nil
}

func (x *session) release(r *reader) error {
	lease, took := r.uint32(), r.uint64()
	if err := r.finish(); err != nil {
		return err
	}
	x.mu.Lock()
	l := x.leases[lease]
	delete(x.leases, lease)
	x.mu.Unlock()
	if l == nil {
		return fmt.Errorf("there is no lease %d", lease)
	}
	l.Release()
	x.store.Copied(len(l.Slots), time.Duration(min(took, uint64(time.Minute.Microseconds())))*time.Microsecond)
	return nil
}

func (x *session) reserve(number uint32, r *reader) error {
	n := int(r.uint32())
	if err := r.finish(); err != nil {
		return err
	}
	var slots []int
	if n <= maxKeys && float64(len(x.reserved)+n) <= x.cfg.Share*float64(x.arena.Slots()) {
		slots, _ = x.store.Reserve(n) // without room there are none
	}
	for _, i := range slots {
		x.reserved[i] = true
	}
	return x.sendSlots(kindReserve, number, nil, slots)
}

func (x *session) commit(number uint32, r *reader) error {
	priority := r.byte()
	n := r.count(4 + len(block.Key{}))
	slots, keys := make([]int, n), make([]block.Key, n)
	for i := range n {
		slots[i] = int(r.uint32())
		keys[i] = r.key()
	}
	if err := r.finish(); err != nil {
		return err
	}
	if err := x.give(slots); err != nil {
		return err
	}
	x.name(keys)
	if err := x.store.Commit(slots, keys, priority); err != nil {
		return err
	}
	return x.send(kindCommit, number, nil)
}

// maxPin is the longest pin of an engine, in seconds, and pinWithin bounds the time in which pinned blocks are copied to slower tiers.
const (
	maxPin    = 3600
	pinWithin = 30 * time.Second
)

// pin pins blocks while other requests are answered. It has the place of a fetch, and is left out if there is none.
func (x *session) pin(ctx context.Context, r *reader) error {
	seconds := r.uint32()
	keys := r.keys()
	if err := r.finish(); err != nil {
		return err
	}
	if seconds < 1 || seconds > maxPin {
		return fmt.Errorf("a pin of %d seconds: from 1 to %d are possible", seconds, maxPin)
	}
	select {
	case x.fetches <- struct{}{}:
	default:
		return nil
	}

	x.running.Go(func() {
		defer func() { <-x.fetches }()
		ctx, cancel := context.WithTimeout(ctx, pinWithin)
		defer cancel()
		x.store.PinShare(ctx, keys, time.Duration(seconds)*time.Second)
	})
	return nil
}

// give takes slots from the slots that the session has reserved.
func (x *session) give(slots []int) error {
	for _, i := range slots {
		if !x.reserved[i] {
			return fmt.Errorf("slot %d is not reserved by this session", i)
		}
		delete(x.reserved, i)
	}
	return nil
}

// name remembers blocks whose changes the client wants to know.
func (x *session) name(keys []block.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range keys {
		x.names.add(keys[i])
	}
}

// changed queues a change of blocks for the client, limited to blocks that it has named. A client that is too far behind is cut off.
func (x *session) changed(tier fleet.Tier, stored bool, keys []block.Key) {
	x.mu.Lock()
	known := slices.DeleteFunc(slices.Clone(keys), func(k block.Key) bool { return !x.names.has(k) })
	x.mu.Unlock()
	if len(known) == 0 && keys != nil {
		return
	}
	for from := 0; from == 0 || from < len(known); from += maxKeys {
		body := []byte{byte(tier), 0}
		if stored {
			body[1] = 1
		}
		select {
		case x.changes <- appendKeys(body, known[from:min(len(known), from+maxKeys)]):
		default:
			x.cancel()
		}
	}
}

// writeChanges sends changes until ctx ends.
func (x *session) writeChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case body := <-x.changes:
			if err := x.send(kindChanged, 0, body); err != nil {
				x.cancel()
				return
			}
		}
	}
}

// close ends the leases, and frees the slots that were reserved when the client's process has ended.
func (x *session) close(ctx context.Context) {
	x.server.remove(x)
	x.running.Wait()
	x.mu.Lock()
	for _, l := range x.leases {
		l.Release()
	}
	x.mu.Unlock()
	if len(x.reserved) == 0 {
		return
	}

	slots := make([]int, 0, len(x.reserved))
	for i := range x.reserved {
		slots = append(slots, i)
	}
	if err := x.store.Quarantine(slots); err != nil {
		x.cfg.Log.Error("quarantine slots", "engine", x.engine, "err", err)
		return
	}
	x.server.quarantined.Add(int64(len(slots)))
	defer x.server.quarantined.Add(-int64(len(slots)))
	if awaitEnd(ctx, x.process) {
		_ = x.store.Lift(slots) // quarantined above
	}
}

// awaitEnd waits until the process of a descriptor has ended, and reports whether it has.
func awaitEnd(ctx context.Context, process int) bool {
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 100)
		if n > 0 {
			return true
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
	return false
}

// names are the keys that a session has named, up to a number. Keys of earlier generations are forgotten first.
type names struct {
	most       int // of both generations
	young, old map[block.Key]bool
}

func newNames(most int) *names { return &names{most: most, young: map[block.Key]bool{}} }

func (n *names) has(k block.Key) bool { return n.young[k] || n.old[k] }

func (n *names) add(k block.Key) {
	if n.young[k] {
		return
	}
	if 2*len(n.young) >= n.most {
		n.old = n.young
		n.young = map[block.Key]bool{}
	}
	n.young[k] = true
}
