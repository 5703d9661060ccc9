package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/host"
)

// Client is an engine's side of a session. Its methods may be called from any goroutine.
type Client struct {
	conn    *net.UnixConn
	arena   *host.Arena
	changed func(tier fleet.Tier, stored bool, keys []block.Key)

	mu      sync.Mutex
	last    uint32                 // guarded by mu
	waiting map[uint32]chan answer // guarded by mu; nil after the end
	err     error                  // guarded by mu; why the session has ended

	out  frameBuffer
	done chan struct{}

	once   sync.Once
	closed error // of Close
}

// answer is the body of an answer, or the error of one.
type answer struct {
	body []byte
	err  error
}

// ErrEnded is the error of calls after the end of a session.
var ErrEnded = errors.New("the session with the KV store has ended")

// User is an engine that uses a store.
type User struct {
	// Name is the engine's name, for people.
	Name   string
	Layout block.Layout
	// Speed is the speed at which the engine computes; nil if not known: then the engine gets all blocks that the store has.
	Speed *Speed
	// Changed is called for changes of blocks that were named before, with no keys when all blocks of a tier have left. It may be nil.
	Changed func(tier fleet.Tier, stored bool, keys []block.Key)
}

// Dial begins a session with the store at a path. Call Close.
func Dial(ctx context.Context, path string, user User) (*Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to the KV store: %w", err)
	}
	c := &Client{conn: conn.(*net.UnixConn), changed: user.Changed, waiting: map[uint32]chan answer{}, done: make(chan struct{})}
	if user.Changed == nil {
		c.changed = func(fleet.Tier, bool, []block.Key) {}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = c.greet(&user)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("begin a session with the KV store: %w", err)
	}
	go c.passFrames()
	return c, nil
}

// greet exchanges the first frames, and opens the arena.
func (c *Client) greet(user *User) error {
	body, err := json.Marshal(hello{version, user.Name, user.Layout, user.Speed})
	if err != nil {
		return err
	}
	if err := c.send(kindHello, 0, body); err != nil {
		return err
	}
	f, file, err := c.readWelcome()
	if err != nil {
		return err
	}
	if file != nil {
		defer func() { _ = file.Close() }()
	}

	var w welcome
	switch {
	case f.kind == kindFailed:
		return errors.New(string(f.body))
	case f.kind != kindHello || file == nil || json.Unmarshal(f.body, &w) != nil:
		return errors.New("the store's answer is none of this protocol")
	}
	c.arena, err = host.Open(file, host.Config{Slots: w.Slots, SlotBytes: w.SlotBytes})
	return err
}

// readWelcome reads the first frame, with the descriptor that comes with it.
func (c *Client) readWelcome() (f frame, file *os.File, err error) {
	first := make([]byte, 1)
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.conn.ReadMsgUnix(first, oob)
	if err != nil || n != 1 {
		return f, nil, fmt.Errorf("read the store's answer: %w", errors.Join(err, ErrEnded))
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			file = os.NewFile(uintptr(fds[0]), "arena")
		}
	}
	var buffer []byte
	f, err = readFrame(io.MultiReader(bytes.NewReader(first), c.conn), &buffer)
	return f, file, err
}

// Done is closed at the end of the session.
func (c *Client) Done() <-chan struct{} { return c.done }

// Slot returns the bytes of a slot, until Close.
func (c *Client) Slot(i int) []byte { return c.arena.Slot(i) }

// Close ends the session, with its leases. Slots must not be used any more.
func (c *Client) Close() error {
	_ = c.conn.Close()
	<-c.done
	c.once.Do(func() { c.closed = c.arena.Close() })
	return c.closed
}

// Find returns how many of the first blocks the store has, and how many of these are worth loading. prefix is the number of tokens before
// them.
func (c *Client) Find(ctx context.Context, keys []block.Key, prefix int) (blocks, load int, took time.Duration, err error) {
	body, err := c.call(ctx, kindFind, appendKeys(binary.LittleEndian.AppendUint32(nil, uint32(prefix)), keys))
	if err != nil {
		return 0, 0, 0, err
	}
	r := &reader{left: body}
	blocks = int(r.uint32())
	load = int(r.uint32())
	took = time.Duration(r.uint64()) * time.Microsecond
	return blocks, load, took, r.finish()
}

// Lease is blocks that the store holds for the client.
type Lease struct {
	client *Client
	number uint32
	// Slots are the slots of the blocks, in the order of their keys. There may be fewer than were wanted.
	Slots []int
}

// Fetch has the store bring blocks into host memory, and holds them until Lease.Release.
func (c *Client) Fetch(ctx context.Context, keys []block.Key) (*Lease, error) {
	body, err := c.call(ctx, kindFetch, appendKeys(nil, keys))
	if err != nil {
		return nil, err
	}
	r := &reader{left: body}
	l := &Lease{client: c, number: r.uint32()}
	l.Slots = r.slots()
	return l, r.finish()
}

// Release gives the blocks back. took is the time that the copy to the engine took, or 0.
func (l *Lease) Release(took time.Duration) error {
	body := binary.LittleEndian.AppendUint64(leaseBytes(l.number), uint64(took.Microseconds()))
	return l.client.send(kindRelease, 0, body)
}

// Reserve returns slots for n blocks, or none if there is no room.
func (c *Client) Reserve(ctx context.Context, n int) (slots []int, err error) {
	body, err := c.call(ctx, kindReserve, binary.LittleEndian.AppendUint32(nil, uint32(n)))
	if err != nil {
		return nil, err
	}
	r := &reader{left: body}
	slots = r.slots()
	return slots, r.finish()
}

// Commit gives reserved slots, which are written, to the store under the keys of their blocks.
func (c *Client) Commit(ctx context.Context, slots []int, keys []block.Key, priority uint8) error {
	body := binary.LittleEndian.AppendUint32([]byte{priority}, uint32(len(slots)))
	for k, i := range slots {
		body = binary.LittleEndian.AppendUint32(body, uint32(i))
		body = append(body, keys[k][:]...)
	}
	_, err := c.call(ctx, kindCommit, body)
	return err
}

// Drop gives reserved slots back, to which no write is going on.
func (c *Client) Drop(slots []int) error { return c.send(kindDrop, 0, appendSlots(nil, slots)) }

// Pin keeps the first of these blocks for a time, of which whole seconds count, at most an hour. It does not wait for it.
func (c *Client) Pin(keys []block.Key, ttl time.Duration) error {
	return c.send(kindPin, 0, appendKeys(binary.LittleEndian.AppendUint32(nil, uint32(ttl/time.Second)), keys))
}

// call sends a request and waits for its answer. The answer to a fetch whose caller has left is released.
func (c *Client) call(ctx context.Context, kind byte, body []byte) ([]byte, error) {
	ch := make(chan answer, 1)
	c.mu.Lock()
	if c.waiting == nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	number := c.last
	c.waiting[number] = ch
	c.mu.Unlock()

	if err := c.send(kind, number, body); err != nil {
		return nil, err
	}
	select {
	case a := <-ch:
		return a.body, a.err
	case <-ctx.Done():
		go c.abandon(kind, ch)
		return nil, ctx.Err()
	}
}

// abandon waits for an answer whose caller has left, and gives back the slots or the lease in it. It ends with the session at the latest.
func (c *Client) abandon(kind byte, ch chan answer) {
	a := <-ch
	if a.err != nil {
		return
	}
	r := &reader{left: a.body}
	switch kind {
	case kindFetch:
		l := &Lease{client: c, number: r.uint32()}
		_ = l.Release(0)
	case kindReserve:
		_ = c.Drop(r.slots())
	}
}

// send sends a frame.
func (c *Client) send(kind byte, number uint32, body []byte) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.frame = append(appendFrame(c.out.frame[:0], kind, number, len(body)), body...)
	if _, err := c.conn.Write(c.out.frame); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return nil
}

// passFrames passes answers and changes on until the session ends.
func (c *Client) passFrames() {
	defer close(c.done)
	var buffer []byte
	err := ErrEnded
	for {
		f, failed := readFrame(c.conn, &buffer)
		if failed != nil {
			break
		}
		if f.kind == kindFailed {
			err = fmt.Errorf("%w: %s", ErrEnded, f.body)
			break
		}
		if f.kind == kindChanged {
			r := &reader{left: f.body}
			tier, stored := fleet.Tier(r.byte()), r.byte() == 1
			keys := r.keys()
			if r.finish() == nil && tier < fleet.Tiers {
				c.changed(tier, stored, keys)
			}
			continue
		}
		c.mu.Lock()
		ch := c.waiting[f.number]
		delete(c.waiting, f.number)
		c.mu.Unlock()
		if ch != nil {
			ch <- answer{body: append([]byte(nil), f.body...)}
		}
	}

	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.waiting {
		ch <- answer{err: err}
	}
	c.waiting = nil
	c.err = err
}
