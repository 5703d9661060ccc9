package disk

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var (
	damagedLogs = flag.Int("blocks.logs", 500, "damaged folders that TestDamage opens")
	damageSeed  = flag.Uint64("blocks.seed", 1, "seed of the damage")
)

// moment is a folder at one time of a history, as a crash would leave it.
type moment struct {
	index, blocks []byte
	version       int // of the blocks that the index names
}

// The history has more keys than the tier has slots, so slots have several generations.
const (
	damageSlots   = 8
	damageKeys    = 20
	damageMoments = 40
)

// history stores, removes and flushes blocks, and returns the folder at many times. After each flush the same keys have other
// bytes: of another version.
func history(t *testing.T, rng *rand.Rand) []moment {
	cfg := config(t.TempDir(), damageSlots)
	d := open(t, cfg)
	defer d.Close()

	version := 0
	list := make([]moment, 0, damageMoments)
	for len(list) < damageMoments {
		for range 1 + rng.IntN(6) {
			k := key(rng.IntN(damageKeys))
			switch rng.IntN(40) {
			case 0:
				version++
				if _, err := d.Flush(); err != nil {
					t.Fatal(err)
				}
			case 1, 2:
				d.Remove(k)
			case 3:
				d.Pin(k, time.Now().Add(time.Hour))
			default:
				if err := d.Store(t.Context(), k, content(k, version, testBlock), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		list = append(list, moment{readFile(t, cfg.Dir, indexName), readFile(t, cfg.Dir, blocksName), version})
	}
	return list
}

func readFile(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if name == indexName { // without the zeros that it was preallocated with
		data = bytes.TrimRight(data, "\x00")
		data = append(data, make([]byte, 100)...)
	}
	return data
}

// damage returns an index and blocks that a crash, a power failure or a bad disk could leave.
func damage(rng *rand.Rand, history []moment) (index, blocks []byte, version int) {
	at := rng.IntN(len(history))
	index = bytes.Clone(history[at].index)
	blocks = bytes.Clone(history[at].blocks)
	flip := func(b []byte) {
		if len(b) > 0 {
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
	}

	if rng.IntN(3) > 0 { // the log ends at any byte
		index = index[:rng.IntN(len(index)+1)]
	}
	for rng.IntN(3) == 0 {
		flip(index)
	}
	stride := len(blocks) / damageSlots
	for range rng.IntN(6) {
		from := rng.IntN(damageSlots) * stride
		slot := blocks[from:][:stride]
		same := history[rng.IntN(len(history))].blocks[from:][:stride]
		other := history[rng.IntN(len(history))].blocks[rng.IntN(damageSlots)*stride:][:stride]
		switch rng.IntN(7) {
		case 0:
			flip(slot[:endOfHeader])
		case 1:
			flip(slot[headerBytes:])
		case 2:
			copy(slot, same) // an older or newer generation of the slot
		case 3:
			copy(slot, other) // the block of another slot
		case 4:
			copy(slot[:rng.IntN(stride)], same) // a torn write
		case 5:
			cut := rng.IntN(stride)
			copy(slot[cut:], same[cut:]) // a write of which the end came first
		case 6:
			clear(slot[rng.IntN(stride):])
		}
	}
	if rng.IntN(20) == 0 {
		blocks = blocks[:rng.IntN(len(blocks))]
	}
	return index, blocks, history[at].version
}

// TestDamage opens folders with damaged logs and blocks. Each block that Load returns must have the bytes that were stored last
// under its key, and the tier must work afterwards.
func TestDamage(t *testing.T) {
	const logsOfHistory = 100
	logs := *damagedLogs
	if testing.Short() {
		logs = min(logs, logsOfHistory)
	}
	var found, verified, dropped int
	for n := 0; n < logs; n += logsOfHistory {
		rng := rand.New(rand.NewPCG(*damageSeed, uint64(n)))
		moments := history(t, rng)
		for i := range min(logsOfHistory, logs-n) {
			index, blocks, version := damage(rng, moments)
			dir := t.TempDir()
			write(t, dir, indexName, index)
			write(t, dir, blocksName, blocks)
			f, v, bad := recoverDamaged(t, dir, version)
			if t.Failed() {
				t.Fatalf("log %d: repeat it with -blocks.seed=%d -blocks.logs=%d", n+i, *damageSeed, n+i+1)
			}
			found += f
			verified += v
			dropped += bad
			os.RemoveAll(dir)
		}
	}
	t.Logf("%d damaged folders: %d blocks found, %d verified, %d dropped, 0 wrong", logs, found, verified, dropped)
	if verified == 0 || dropped == 0 {
		t.Error("the damage is not what it should be")
	}
}

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// recoverDamaged opens a folder, loads all blocks that it has, and stores new ones.
func recoverDamaged(t *testing.T, dir string, version int) (found, verified, dropped int) {
	d, err := Open(config(dir, damageSlots))
	if err != nil {
		t.Error(err)
		return 0, 0, 0
	}
	defer d.Close()
	found = d.Stats().Restored

	dst := make([]byte, testBlock)
	for n := range damageKeys {
		err := d.Load(context.Background(), key(n), dst)
		switch {
		case err == nil && !bytes.Equal(dst, content(key(n), version, testBlock)):
			t.Errorf("block %d has wrong bytes", n)
		case err == nil:
			verified++
		case errors.Is(err, ErrTorn), errors.Is(err, ErrStale):
			dropped++
			if d.Has(key(n)) {
				t.Errorf("block %d is there after %v", n, err)
			}
		case !errors.Is(err, ErrNotFound):
			t.Errorf("block %d: %v", n, err)
		}
	}
	if found != verified+dropped {
		t.Errorf("%d blocks were found, %d verified and %d dropped", found, verified, dropped)
	}

	for n := 100; n < 100+damageSlots; n++ {
		store(t, d, n)
		if err := load(t, d, n); err != nil {
			t.Errorf("new block %d: %v", n, err)
		}
	}
	return found, verified, dropped
}
