package direct

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/test/testkit"
)

// read calls a server, and returns its answer.
func read(t *testing.T, c *connection, has string, keys []block.Key) answer {
	t.Helper()
	message, err := json.Marshal(newRead(has, keys))
	if err != nil {
		t.Fatal(err)
	}
	reply, err := c.Call(message)
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseAnswer(reply, len(keys))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// done ends a lease.
func done(t *testing.T, c *connection, lease uint64) {
	t.Helper()
	message, err := json.Marshal(&request{Op: opDone, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(message); err != nil {
		t.Fatal(err)
	}
}

// TestLeasesAreBounded: a connection gets half of a quarter of the slots at most, and all of them together a quarter. Released blocks can
// be held again. Leases of other connections cannot be ended.
func TestLeasesAreBounded(t *testing.T) {
	x := newNode(t, newNetwork(t), 64, nil, nil) // 16 blocks may be held, and 8 by one
	keys := someKeys(40)
	x.put(t, keys)
	server := x.Serve(x.store)
	connections := []*connection{server().(*connection), server().(*connection), server().(*connection)}
	var leases []uint64
	for i, want := range []int{8, 8, 0} {
		a := read(t, connections[i], "", keys[i:])
		if len(a.Slots) != want {
			t.Fatalf("connection %d got %d blocks, and not %d", i, len(a.Slots), want)
		}
		leases = append(leases, a.Lease)
		if a := read(t, connections[i], "", keys); len(a.Slots) != 0 || a.Lease != 0 {
			t.Errorf("connection %d got %d blocks more", i, len(a.Slots))
		}
	}
	if n := x.store.Stats().Slots.Active; n != 9 || x.Stats().Held != 16 {
		t.Errorf("%d blocks are in use, and %d held", n, x.Stats().Held)
	}

	done(t, connections[2], leases[0])
	if x.Stats().Held != 16 {
		t.Error("a lease was ended by another connection")
	}
	done(t, connections[0], leases[0])
	done(t, connections[0], leases[0])
	if a := read(t, connections[2], "", keys[30:]); len(a.Slots) != 8 {
		t.Errorf("%d blocks after a release", len(a.Slots))
	}
	for _, c := range connections {
		c.Close()
	}
	if n := x.store.Stats().Slots.Active; n != 0 || x.Stats().Held != 0 {
		t.Errorf("%d blocks are in use at the end, and %d held", n, x.Stats().Held)
	}
}

// TestLeasesEnd: the blocks of a client that is never done are released when the time of the lease is over.
func TestLeasesEnd(t *testing.T) {
	x := newNode(t, newNetwork(t), 64, func(c *Config) { c.LeaseTime = 50 * time.Millisecond }, nil)
	keys := someKeys(8)
	x.put(t, keys)
	c := x.Serve(x.store)().(*connection)
	defer c.Close()
	began := time.Now()
	if a := read(t, c, "", keys); len(a.Slots) != 8 {
		t.Fatalf("%d blocks", len(a.Slots))
	}
	testkit.Eventually(t, "the lease ends", func() bool { return x.Stats().Held == 0 && x.store.Stats().Slots.Active == 0 })
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("it ended after %v", took)
	}
}

// TestAnswers: the endpoint comes if the client lacks it, blocks that are missing take no room, and tags match the bytes.
func TestAnswers(t *testing.T) {
	x := newNode(t, newNetwork(t), 64, nil, nil)
	keys := someKeys(6)
	x.put(t, keys[:3])
	c := x.Serve(x.store)().(*connection)
	defer c.Close()
	a := read(t, c, "agent-0", keys)
	if !bytes.Equal(a.Endpoint, x.helper.Endpoint()) || a.Agent != x.helper.agent {
		t.Errorf("agent %q with the endpoint %s", a.Agent, a.Endpoint)
	}
	mac := block.NewMAC([block.MACKeyBytes]byte(a.Key))
	for i, slot := range a.Slots {
		tag := block.Tag(a.Tags[i*block.TagBytes:])
		if i >= 3 && slot != missing || i < 3 && tag != mac.Tag(uint32(i), content(keys[i])) {
			t.Errorf("block %d: slot %d, tag %x", i, slot, tag)
		}
	}
	if n := x.Stats().Held; n != 3 {
		t.Errorf("%d blocks are held", n)
	}
	if a := read(t, c, a.Agent, keys[3:]); len(a.Endpoint) != 0 || a.Lease != 0 || len(a.Slots) != 3 {
		t.Errorf("blocks that are all missing: %+v", a)
	}
}

// TestRequestsAreChecked has messages that no client sends, and answers that no server gives.
func TestRequestsAreChecked(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "x", "no operation": `{}`, "another operation": `{"op":"write"}`, "no keys": `{"op":"read"}`,
		"half a key": `{"op":"read","keys":"AAAA"}`,
	} {
		if _, _, err := parseRequest([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	tooMany, err := json.Marshal(&request{Op: opRead, Keys: make([]byte, 16*(mostKeys+1))})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := parseRequest(tooMany); err == nil {
		t.Error("too many keys: no error")
	}
	for name, change := range map[string]func(a *answer){
		"no agent": func(a *answer) { a.Agent = "" },
		"too many slots": func(a *answer) {
			a.Slots = append(a.Slots, 1)
			a.Tags = append(a.Tags, make([]byte, block.TagBytes)...)
		},
		"no tags":         func(a *answer) { a.Tags = nil },
		"half a tag":      func(a *answer) { a.Tags = a.Tags[1:] },
		"no key":          func(a *answer) { a.Key = nil },
		"a negative slot": func(a *answer) { a.Slots[1] = -2 },
	} {
		a := answer{Agent: "a", Slots: []int32{1, 2}, Key: make([]byte, block.MACKeyBytes), Tags: make([]byte, 2*block.TagBytes)}
		change(&a)
		text, err := json.Marshal(&a)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseAnswer(text, 2); !errors.Is(err, errAnswer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"x", `{"agent":"a","slots":[2147483648]}`} {
		if _, err := parseAnswer([]byte(text), 2); !errors.Is(err, errAnswer) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzMessages reads messages that the other side may send.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"op":"read","keys":"AAAAAAAAAAAAAAAAAAAAAA=="}`))
	f.Add([]byte(`{"agent":"a","lease":1,"slots":[],"key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","endpoint":{}}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		if r, keys, err := parseRequest(message); err == nil && r.Op == opRead && (len(keys) == 0 || len(keys) > mostKeys) {
			t.Errorf("%d keys", len(keys))
		}
		if a, err := parseAnswer(message, 2); err == nil && (len(a.Slots) > 2 || len(a.Tags) != len(a.Slots)*block.TagBytes) {
			t.Errorf("%+v", a)
		}
	})
}
