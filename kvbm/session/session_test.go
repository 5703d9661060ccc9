package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm"
	"github.com/stator-project/stator/kvbm/host"
	"github.com/stator-project/stator/test/testkit"
)

// childVariable has the path of the socket for a test binary that is to be an engine which never commits.
const childVariable = "SESSION_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(childVariable); path != "" {
		beEngine(path)
	}
	goleak.VerifyTestMain(m)
}

// beEngine reserves slots, prints how many, and waits for its end.
func beEngine(path string) {
	c, err := Dial(context.Background(), path, User{Name: "child", Layout: layout})
	if err == nil {
		var slots []int
		slots, err = c.Reserve(context.Background(), 4)
		fmt.Fprintln(os.Stdout, len(slots))
		_ = c.conn.Close() // the process goes on, and could still write
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(time.Minute)
}

var layout = block.Layout{Model: "m", Layers: 2, PageTokens: 16, Outer: 2, Inner: 32, DType: "bfloat16", TPSize: 1, Hashing: "sha256"}

func keysFrom(first, n int) (keys []block.Key) {
	space := layout.Space()
	for i := range n {
		keys = append(keys, space.Key(binary.LittleEndian.AppendUint64(nil, uint64(first+i))))
	}
	return keys
}

func content(key block.Key) []byte { return bytes.Repeat(key[:], layout.Bytes()/len(key)) }

// served is a server of a test, with its store.
type served struct {
	*Server
	store *kvbm.Store
	path  string
}

// serve serves a store with so many slots until the end of the test.
func serve(t *testing.T, slots int, change func(c *Config)) *served {
	t.Helper()
	arena, err := host.New(host.Config{Slots: slots, SlotBytes: layout.Bytes(), NoHugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	s := &served{Server: New(), path: filepath.Join(t.TempDir(), "kv.sock")}
	s.store, err = kvbm.New(kvbm.Config{Layout: layout, Memory: arena, Changed: s.Changed})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path})
	if err != nil {
		t.Fatal(err)
	}

	cfg := Config{Open: func(block.Layout) (Opened, error) { return Opened{s.store, arena}, nil }}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := s.Serve(ctx, listener, cfg); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		run.Wait()
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// dial begins a session until the end of the test.
func (s *served) dial(t *testing.T, changed func(fleet.Tier, bool, []block.Key)) *Client {
	t.Helper()
	c, err := Dial(t.Context(), s.path, User{Name: "test", Layout: layout, Changed: changed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func put(t *testing.T, c *Client, keys []block.Key) {
	t.Helper()
	slots, err := c.Reserve(t.Context(), len(keys))
	if err != nil || len(slots) != len(keys) {
		t.Fatal(slots, err)
	}
	for k, i := range slots {
		copy(c.Slot(i), content(keys[k]))
	}
	if err := c.Commit(t.Context(), slots, keys, 0); err != nil {
		t.Fatal(err)
	}
}

// TestEnginesShareBlocks: what one engine has written, another one finds and reads, through memory that both map.
func TestEnginesShareBlocks(t *testing.T) {
	s := serve(t, 16, nil)
	keys := keysFrom(0, 6)
	put(t, s.dial(t, nil), keys)

	c := s.dial(t, nil)
	blocks, load, _, err := c.Find(t.Context(), keysFrom(0, 8), 0)
	if blocks != 6 || load != 6 || err != nil {
		t.Errorf("%d blocks, %d to load, %v", blocks, load, err)
	}
	l, err := c.Fetch(t.Context(), keys)
	if err != nil || len(l.Slots) != 6 {
		t.Fatal(l, err)
	}
	for k, i := range l.Slots {
		if !bytes.Equal(c.Slot(i), content(keys[k])) {
			t.Errorf("block %d has other bytes", k)
		}
	}
	if n := s.store.Stats().Slots.Active; n != 6 {
		t.Errorf("%d slots are in use", n)
	}
	engines := s.Engines()
	if len(engines) != 2 || engines[0].Name != "test" || engines[0].PID != os.Getpid() || engines[0].Leases+engines[1].Leases != 1 {
		t.Errorf("the engines are %+v", engines)
	}
	if err := l.Release(time.Millisecond); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "no slot is in use", func() bool { return s.store.Stats().Slots.Active == 0 })
}

// TestChangesReachWhoNamedThem: a session gets the changes of blocks that it has named, and of no others.
func TestChangesReachWhoNamedThem(t *testing.T) {
	s := serve(t, 8, nil)
	var mu sync.Mutex
	there := map[block.Key]bool{}
	c := s.dial(t, func(tier fleet.Tier, stored bool, keys []block.Key) {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range keys {
			there[k] = stored
		}
	})
	put(t, c, keysFrom(0, 4))
	other := s.dial(t, nil)
	put(t, other, keysFrom(100, 4))
	put(t, other, keysFrom(200, 4)) // evicts the first ones
	testkit.Eventually(t, "four blocks came and left", func() bool {
		mu.Lock()
		defer mu.Unlock()
		left := 0
		for _, stored := range there {
			if !stored {
				left++
			}
		}
		return len(there) == 4 && left == 4
	})
}

// TestReservedSlotsAwaitTheirProcess: a client whose connection has ended may still write, so its slots are not used again before its
// process has ended.
func TestReservedSlotsAwaitTheirProcess(t *testing.T) {
	s := serve(t, 8, nil)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+s.path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "4" {
		t.Fatalf("the child has reserved %q slots: %v", line, err)
	}

	testkit.Eventually(t, "four slots are in quarantine", func() bool { return s.store.Stats().Slots.Quarantined == 4 })
	if n := s.Stats().Quarantined; n != 4 {
		t.Errorf("%d are counted", n)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	testkit.Eventually(t, "all slots are free", func() bool { return s.store.Stats().Slots.Reset == 8 && s.Stats().Quarantined == 0 })
}

// TestLeasesEndWithTheirSession: slots of an engine that leaves can be used again.
func TestLeasesEndWithTheirSession(t *testing.T) {
	s := serve(t, 8, nil)
	c := s.dial(t, nil)
	put(t, c, keysFrom(0, 4))
	if _, err := c.Fetch(t.Context(), keysFrom(0, 4)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "no slot is in use", func() bool { return s.store.Stats().Slots.Active == 0 })
	if _, _, _, err := c.Find(t.Context(), keysFrom(0, 1), 0); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// TestRefused: an error of a client is answered with a sentence, and ends its session.
func TestRefused(t *testing.T) {
	s := serve(t, 8, func(c *Config) { c.Leases = 1 })
	other := layout
	other.Layers = 3
	if _, err := Dial(t.Context(), s.path, User{Name: "test", Layout: other}); err == nil || !strings.Contains(err.Error(), "layers is 2 here and 3 there") {
		t.Errorf("another layout: %v", err)
	}
	other = layout
	other.Weights = "sha256 00ff"
	if _, err := Dial(t.Context(), s.path, User{Name: "test", Layout: other}); err == nil || !strings.Contains(err.Error(), "weights") {
		t.Errorf("other weights of the same name: %v", err)
	}
	if answer := greetWith(t, s.path, 1); !strings.Contains(answer, "version 1 of the protocol: this store has 2") {
		t.Errorf("a client that does not send weights: %q", answer)
	}

	for name, c := range map[string]struct {
		kind byte
		body []byte
		want string
	}{
		"an unknown kind":           {99, nil, "kind 99"},
		"a short body":              {kindFind, []byte{1}, "length of the body"},
		"too many keys":             {kindFetch, []byte{255, 255, 255, 255}, "length of the body"},
		"a slot that is not theirs": {kindDrop, appendSlots(nil, []int{3}), "slot 3 is not reserved"},
		"an unknown lease":          {kindRelease, make([]byte, 12), "no lease 0"},
	} {
		client := s.dial(t, nil)
		_, err := client.call(t.Context(), c.kind, c.body)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	c := s.dial(t, nil)
	if _, err := c.Fetch(t.Context(), keysFrom(0, 1)); err != nil {
		t.Error(err)
	}
	if _, err := c.Fetch(t.Context(), keysFrom(0, 1)); err == nil || !strings.Contains(err.Error(), "1 leases") {
		t.Errorf("a second lease: %v", err)
	}
}

// greetWith sends hello with a version, and returns the body of the answer.
func greetWith(t *testing.T, path string, version int) string {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	body, err := json.Marshal(hello{Version: version, Engine: "test", Layout: layout})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(appendFrame(nil, kindHello, 0, len(body)), body...)); err != nil {
		t.Fatal(err)
	}
	var buffer []byte
	f, err := readFrame(conn, &buffer)
	if err != nil {
		t.Fatal(err)
	}
	return string(f.body)
}

// TestSpeedDecides: an engine that computes faster than the store loads gets nothing to load, and one of unknown speed gets all.
func TestSpeedDecides(t *testing.T) {
	s := serve(t, 16, nil)
	keys := keysFrom(0, 8)
	put(t, s.dial(t, nil), keys)
	s.store.Copied(1, time.Millisecond) // a copy of a block to an engine takes that

	for name, c := range map[string]struct {
		speed *Speed
		load  int
	}{
		"unknown": {nil, 8},
		"slow":    {&Speed{Token: 1e6}, 8},
		"fast":    {&Speed{Token: 1e3, Pair: 1}, 0},
	} {
		client, err := Dial(t.Context(), s.path, User{Name: name, Layout: layout, Speed: c.speed})
		if err != nil {
			t.Fatal(err)
		}
		blocks, load, _, err := client.Find(t.Context(), keys, 0)
		if blocks != 8 || load != c.load || err != nil {
			t.Errorf("%s: %d blocks, %d to load, %v", name, blocks, load, err)
		}
		_ = client.Close()
	}
	if _, err := Dial(t.Context(), s.path, User{Layout: layout, Speed: &Speed{Token: -1}}); err == nil || !strings.Contains(err.Error(), "a speed of -1") {
		t.Errorf("a negative speed: %v", err)
	}
}

// TestShareOfASession: one session cannot reserve all slots.
func TestShareOfASession(t *testing.T) {
	s := serve(t, 8, nil)
	c := s.dial(t, nil)
	if slots, err := c.Reserve(t.Context(), 5); len(slots) != 0 || err != nil {
		t.Errorf("%v, %v", slots, err)
	}
	slots, err := c.Reserve(t.Context(), 4)
	if len(slots) != 4 || err != nil {
		t.Errorf("%v, %v", slots, err)
	}
	if err := c.Drop(slots); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "all slots are free", func() bool { return s.store.Stats().Slots.Reset == 8 })
}

// TestPinOfASession: an engine pins the blocks of a prompt, which then stay while others pass through the store.
func TestPinOfASession(t *testing.T) {
	s := serve(t, 16, nil)
	c := s.dial(t, nil)
	keys := keysFrom(0, 2)
	put(t, c, keys)
	if err := c.Pin(keys, time.Hour); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the blocks are pinned", func() bool { return s.store.Stats().Pinned == 2 })
	for i := range 20 {
		put(t, c, keysFrom(100+2*i, 2))
	}
	if blocks, _, _, err := c.Find(t.Context(), keys, 0); blocks != 2 || err != nil {
		t.Errorf("%d of 2 pinned blocks are left, %v", blocks, err)
	}

	if err := c.Pin(keys, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	<-c.Done() // a pin of more than an hour ends the session
}

// FuzzFrames: no bytes of a client end the server.
func FuzzFrames(f *testing.F) {
	f.Add(appendKeys(appendFrame(nil, kindFetch, 1, 20), keysFrom(0, 1)))
	f.Add(appendFrame(nil, kindReserve, 1, 1<<20))
	f.Fuzz(func(t *testing.T, data []byte) {
		var buffer []byte
		in := bytes.NewReader(data)
		for {
			frame, err := readFrame(in, &buffer)
			if err != nil {
				return
			}
			for _, read := range []func(r *reader){
				func(r *reader) { r.keys() }, func(r *reader) { r.uint32(); r.keys() }, func(r *reader) { r.slots() }, func(r *reader) { r.uint64(); r.byte(); r.count(20) },
			} {
				r := &reader{left: frame.body}
				read(r)
				_ = r.finish()
			}
		}
	})
}

// BenchmarkFind: how long does an engine wait for a decision about 100 blocks?
func BenchmarkFind(b *testing.B) {
	arena, err := host.New(host.Config{Slots: 128, SlotBytes: layout.Bytes(), NoHugePages: true})
	if err != nil {
		b.Fatal(err)
	}
	s := New()
	store, err := kvbm.New(kvbm.Config{Layout: layout, Memory: arena, Changed: s.Changed})
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(b.TempDir(), "kv.sock")})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		_ = s.Serve(ctx, listener, Config{Open: func(block.Layout) (Opened, error) { return Opened{store, arena}, nil }})
	})
	c, err := Dial(ctx, listener.Addr().String(), User{Name: "bench", Layout: layout})
	if err != nil {
		b.Fatal(err)
	}
	keys := keysFrom(0, 100)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, _, err := c.Find(ctx, keys, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	_ = c.Close()
	cancel()
	run.Wait()
	_ = arena.Close()
}
