// Package emittersim is a cache outside engines, for tests: it publishes as LMCache's coordinator does, over ZMQ, and knows the content of
// the cache.
//
// It is strict: a chunk is stored only after the chunk before it, and only a chunk that is there is removed. Numbers count the messages of
// all topics from 0 on. It has the faults of a network and of a publisher: messages are lost or swapped on their way to subscribers, and
// the process is replaced. It can also name chunks that it does not have, which [Cache.Claim] does.
package emittersim

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/tinylib/msgp/msgp"
)

// Coordinator is one publisher of the events of several caches.
type Coordinator struct {
	chunk, ring    int
	Events, Replay string // endpoints
	events, replay net.Listener
	connections    sync.WaitGroup
	ctx            context.Context
	mu             sync.Mutex
	sent           [][][]byte               // messages since the process began, by number
	subscribers    map[chan [][]byte]func() // with the function that ends each
	lose, swap     bool
	held           [][]byte // a message that goes after the next one
}

// Start starts a coordinator whose chunks have that many tokens, and which replays the newest messages, at most ring; 0 for no replay
// socket. It ends with the test.
func Start(t testing.TB, chunk, ring int) *Coordinator {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &Coordinator{chunk: chunk, ring: ring, ctx: ctx, subscribers: map[chan [][]byte]func(){}}
	c.events = listen(t)
	c.Events = "tcp://" + c.events.Addr().String()
	c.connections.Go(func() { c.accept(c.events, zmq4.Pub, c.subscribe) })
	if ring > 0 {
		c.replay = listen(t)
		c.Replay = "tcp://" + c.replay.Addr().String()
		c.connections.Go(func() { c.accept(c.replay, zmq4.Router, c.answer) })
	}
	t.Cleanup(func() {
		stop()
		c.events.Close()
		if c.replay != nil {
			c.replay.Close()
		}
		c.connections.Wait()
	})
	return c
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// accept serves connections until the listener is closed.
func (c *Coordinator) accept(l net.Listener, kind zmq4.SocketType, serve func(*zmq4.Conn, net.Conn)) {
	for {
		raw, err := l.Accept()
		if err != nil {
			return
		}
		c.connections.Go(func() {
			defer raw.Close()
			stop := context.AfterFunc(c.ctx, func() { raw.Close() })
			defer stop()
			if z, err := zmq4.Open(raw, null.Security(), kind, nil, true, nil); err == nil {
				serve(z, raw)
			}
		})
	}
}

// subscribe sends messages to one subscriber until its connection ends.
func (c *Coordinator) subscribe(z *zmq4.Conn, raw net.Conn) {
	if _, err := z.RecvMsg(); err != nil { // its subscription
		return
	}

	messages := make(chan [][]byte, 1<<12)
	ended := make(chan struct{})
	c.mu.Lock()
	c.subscribers[messages] = sync.OnceFunc(func() { close(ended); raw.Close() })
	end := c.subscribers[messages]
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.subscribers, messages)
		c.mu.Unlock()
	}()
	c.connections.Go(func() { // a subscriber sends nothing more; this ends with the connection
		_, _ = z.RecvMsg()
		end()
	})

	for {
		select {
		case m := <-messages:
			if z.SendMsg(zmq4.NewMsgFrom(m...)) != nil {
				return
			}
		case <-ended:
			return
		}
	}
}

// answer answers requests for replays.
func (c *Coordinator) answer(z *zmq4.Conn, _ net.Conn) {
	for {
		request, err := z.RecvMsg()
		if err != nil || len(request.Frames) == 0 {
			return
		}
		from := binary.BigEndian.Uint64(request.Frames[len(request.Frames)-1])
		c.mu.Lock()
		var messages [][][]byte
		for n := max(0, len(c.sent)-c.ring); n < len(c.sent); n++ {
			if uint64(n) >= from {
				messages = append(messages, c.sent[n])
			}
		}
		c.mu.Unlock()
		end := [][]byte{{}, binary.BigEndian.AppendUint64(nil, ^uint64(0)), {}}
		for _, m := range append(messages, end) {
			if z.SendMsg(zmq4.NewMsgFrom(append([][]byte{{}}, m...)...)) != nil {
				return
			}
		}
	}
}

// Subscribers returns the number of connected subscribers.
func (c *Coordinator) Subscribers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.subscribers)
}

// Lose has the next message reach no subscriber. Swap has it come after the one behind it.
func (c *Coordinator) Lose() { c.set(func() { c.lose = true }) }

// Swap has the next message come after the one behind it.
func (c *Coordinator) Swap() { c.set(func() { c.swap = true }) }

// Cut ends the connections of all subscribers.
func (c *Coordinator) Cut() { c.set(c.cutLocked) }

func (c *Coordinator) cutLocked() {
	for _, end := range c.subscribers {
		end()
	}
	clear(c.subscribers)
}

// Lead replaces the process by another leader. It knows the chunks of those caches that report to it again, as they are then.
func (c *Coordinator) Lead(reporting ...*Cache) {
	c.set(func() {
		c.cutLocked()
		c.sent, c.held = nil, nil
		c.lose, c.swap = false, false
		for _, cache := range reporting {
			for _, s := range cache.order {
				c.publishLocked(cache.Topic, s)
			}
		}
	})
}

func (c *Coordinator) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

func (c *Coordinator) publishLocked(topic string, events ...event) {
	payload := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), float64(time.Now().UnixNano())/1e9)
	payload = msgp.AppendArrayHeader(payload, uint32(len(events)))
	for _, e := range events {
		payload = append(payload, e.packed...)
	}
	m := [][]byte{[]byte(topic), binary.BigEndian.AppendUint64(nil, uint64(len(c.sent))), msgp.AppendNil(payload)}
	c.sent = append(c.sent, m)

	switch {
	case c.lose:
		c.lose = false
		return
	case c.swap:
		c.swap, c.held = false, m
		return
	}
	c.sendLocked(m)
	if c.held != nil {
		c.sendLocked(c.held)
		c.held = nil
	}
}

func (c *Coordinator) sendLocked(m [][]byte) {
	for s := range c.subscribers {
		select {
		case s <- m:
		default: // a full queue loses messages
		}
	}
}

// Cache is one cache behind a coordinator.
type Cache struct {
	Topic, medium string
	of            *Coordinator
	chunks        map[[32]byte]bool // guarded by of.mu
	order         []event           // the stores of chunks that are there, oldest first; guarded by of.mu
}

// event is an event in msgpack.
type event struct {
	hash   [32]byte
	packed []byte
}

// Cache returns an empty cache whose messages have a topic and a medium.
func (c *Coordinator) Cache(topic, medium string) *Cache {
	return &Cache{Topic: topic, medium: medium, of: c, chunks: map[[32]byte]bool{}}
}

// Store stores all chunks of a prompt, in one message for each that is not there.
func (k *Cache) Store(tokens []uint32) {
	k.of.set(func() {
		for _, e := range k.events(tokens) {
			if !k.chunks[e.hash] {
				k.chunks[e.hash] = true
				k.order = append(k.order, e)
				k.of.publishLocked(k.Topic, e)
			}
		}
	})
}

// Remove removes the chunks of a prompt from number first on, in one message.
func (k *Cache) Remove(tokens []uint32, first int) {
	k.of.set(func() {
		var gone []event
		for _, e := range k.events(tokens)[first:] {
			if k.chunks[e.hash] {
				delete(k.chunks, e.hash)
				gone = append(gone, k.removed(e.hash))
				k.forget(e.hash)
			}
		}
		k.of.publishLocked(k.Topic, gone...)
	})
}

func (k *Cache) forget(hash [32]byte) {
	for i, e := range k.order {
		if e.hash == hash {
			k.order = append(k.order[:i:i], k.order[i+1:]...)
			return
		}
	}
}

// Clear empties the cache, as the end of its server does.
func (k *Cache) Clear() {
	k.of.set(func() {
		clear(k.chunks)
		k.order = nil
		k.of.publishLocked(k.Topic, event{packed: msgp.AppendString(msgp.AppendArrayHeader(nil, 1), "AllBlocksCleared")})
	})
}

// Claim names chunks of a prompt without their tokens, and removes others, which no cache has.
func (k *Cache) Claim(tokens []uint32) {
	k.of.set(func() {
		for _, e := range k.events(tokens) {
			packed := msgp.AppendString(msgp.AppendArrayHeader(nil, 7), "BlockStored")
			packed = msgp.AppendBytes(msgp.AppendArrayHeader(packed, 1), e.hash[:])
			packed = msgp.AppendArrayHeader(msgp.AppendNil(packed), 0)
			packed = msgp.AppendNil(msgp.AppendInt(packed, k.of.chunk))
			k.of.publishLocked(k.Topic, event{packed: msgp.AppendString(packed, k.medium)}, k.removed(sha256.Sum256(e.hash[:])))
		}
	})
}

// Held returns the number of tokens at the beginning of a prompt that the cache has.
func (k *Cache) Held(tokens []uint32) (held int) {
	k.of.set(func() {
		for _, e := range k.events(tokens) {
			if !k.chunks[e.hash] {
				return
			}
			held += k.of.chunk
		}
	})
	return held
}

// Chunks returns the number of chunks in the cache.
func (k *Cache) Chunks() (n int) {
	k.of.set(func() { n = len(k.chunks) })
	return n
}

// events returns the store of each complete chunk of a prompt.
func (k *Cache) events(tokens []uint32) (list []event) {
	var parent [32]byte
	for i := 0; len(tokens) >= k.of.chunk; i++ {
		part := tokens[:k.of.chunk]
		tokens = tokens[k.of.chunk:]
		text := append([]byte(nil), parent[:]...)
		for _, t := range part {
			text = binary.BigEndian.AppendUint32(text, t)
		}
		hash := sha256.Sum256(text)

		packed := msgp.AppendString(msgp.AppendArrayHeader(nil, 7), "BlockStored")
		packed = msgp.AppendBytes(msgp.AppendArrayHeader(packed, 1), hash[:])
		if i == 0 {
			packed = msgp.AppendNil(packed)
		} else {
			packed = msgp.AppendBytes(packed, parent[:])
		}
		packed = msgp.AppendArrayHeader(packed, uint32(len(part)))
		for _, t := range part {
			packed = msgp.AppendUint32(packed, t)
		}
		packed = msgp.AppendNil(msgp.AppendInt(packed, len(part)))
		list = append(list, event{hash, msgp.AppendString(packed, k.medium)})
		parent = hash
	}
	return list
}

func (k *Cache) removed(hash [32]byte) event {
	packed := msgp.AppendString(msgp.AppendArrayHeader(nil, 3), "BlockRemoved")
	packed = msgp.AppendBytes(msgp.AppendArrayHeader(packed, 1), hash[:])
	return event{hash, msgp.AppendString(packed, k.medium)}
}
