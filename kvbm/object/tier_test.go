package object_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stator-project/stator/internal/kv/block"
	"github.com/stator-project/stator/kvbm/object"
)

// TestPackIsOneRequestEach stores 64 blocks, and reads all of them, and parts, from another node.
func TestPackIsOneRequestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		writer, stopWriter := run(t, config(m))
		keys, data := someBlocks(1, 64, blockBytes)
		storeAll(t, writer, keys, data)
		synctest.Wait() // the full pack is written without a flush
		if puts := m.requests("PUT"); len(puts) != 2 || !strings.Contains(puts[0], "/p/") || !strings.Contains(puts[1], "/i/") {
			t.Errorf("64 blocks were written by %q, and not by a pack and then its index", puts)
		}
		stopWriter()

		cfg := config(m)
		cfg.Node = "node2"
		reader, stop := run(t, cfg)
		defer stop()
		time.Sleep(10 * time.Second)
		if n := reader.Match(keys); n != 64 {
			t.Fatalf("another node has learned %d blocks", n)
		}
		for _, part := range []struct{ from, to, requests int }{{0, 64, 1}, {63, 64, 1}, {8, 16, 1}} {
			before := len(m.requests("GET"))
			loadAll(t, reader, keys[part.from:part.to], data[part.from:part.to])
			if n := len(m.requests("GET")) - before; n != part.requests {
				t.Errorf("blocks %d to %d took %d requests", part.from, part.to, n)
			}
		}

		before := len(m.requests("GET"))
		loadAll(t, reader, []block.Key{keys[9], keys[3], keys[8], keys[5]}, [][]byte{data[9], data[3], data[8], data[5]})
		if n := len(m.requests("GET")) - before; n != 3 {
			t.Errorf("blocks 3, 5 and 8 to 9 took %d requests", n)
		}
		if s := reader.Stats(); s.Loaded != 64+1+8+4 || s.BytesRead < s.Loaded*blockBytes || s.Indexes != 1 {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestFlushAfterItsTime writes a pack that is not full, once.
func TestFlushAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		defer stop()
		keys, data := someBlocks(1, 3, blockBytes)
		storeAll(t, tier, keys, data)
		storeAll(t, tier, keys, data)
		if tier.Has(keys[0]) {
			t.Error("a block can be found before it is published")
		}
		time.Sleep(4 * time.Second)
		loadAll(t, tier, keys, data)
		storeAll(t, tier, keys, data)
		if s := tier.Stats(); s.Stored != 3 || s.Duplicates != 6 || s.PublishedPacks != 1 || s.PublishedBlocks != 3 {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestStopWritesWhatIsInMemory ends Run with blocks in a pack, with and without a store that answers.
func TestStopWritesWhatIsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		keys, data := someBlocks(1, 3, blockBytes)
		storeAll(t, tier, keys, data)
		stop()
		if !tier.Has(keys[2]) {
			t.Error("blocks in memory were not published")
		}
		if err := tier.Store(keys[0], data[0]); err != nil {
			t.Errorf("a published block: %v", err)
		}
		other, _ := someBlocks(2, 1, blockBytes)
		if err := tier.Store(other[0], data[0]); !errors.Is(err, object.ErrClosed) {
			t.Errorf("store after the end: %v", err)
		}

		tier, stop = run(t, config(m))
		m.setFail(hang)
		if err := tier.Store(other[0], data[0]); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the end took %v", took)
		}
		if s := tier.Stats(); s.DroppedBlocks != 1 {
			t.Errorf("stats are %+v", s)
		}
	})
}

func hang(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }

// TestFlushEnds flushes while others store without a pause: it waits for the packs of before, and not for later ones.
func TestFlushEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.setFail(func(context.Context, string) error { time.Sleep(10 * time.Millisecond); return nil })
		tier, stop := run(t, config(m))
		defer stop()
		time.Sleep(time.Second)
		keys, data := someBlocks(1, 2000, blockBytes)
		storeAll(t, tier, keys[:1], data)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for i := 1; ctx.Err() == nil && i < len(keys); i++ {
				_ = tier.Store(keys[i], data[i])
				time.Sleep(time.Millisecond)
			}
		}()
		began := time.Now()
		flush(t, tier)
		if took := time.Since(began); took > 100*time.Millisecond || !tier.Has(keys[0]) {
			t.Errorf("flush took %v", took)
		}
	})
}

// TestBusyAtOnce fills all packs while the store does not answer.
func TestBusyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		defer stop()
		m.setFail(hang)
		keys, data := someBlocks(1, 6*64+1, blockBytes)
		storeAll(t, tier, keys[:6*64], data)
		began := time.Now()
		if err := tier.Store(keys[6*64], data[6*64]); !errors.Is(err, object.ErrBusy) {
			t.Errorf("the seventh pack: %v", err)
		}
		if time.Since(began) != 0 {
			t.Error("a full queue made the caller wait")
		}
		if s := tier.Stats(); s.Busy != 1 || s.Filling != 6 || s.PackBytes != 6*64*blockBytes {
			t.Errorf("stats are %+v", s)
		}

		// The memory of packs that were written is used again.
		m.setFail(nil)
		flush(t, tier)
		more, data := someBlocks(2, 6*64, blockBytes)
		storeAll(t, tier, more, data)
		if s := tier.Stats(); s.PackBytes != 6*64*blockBytes {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestPacksOutliveAnOutage has the store fail for 20 s: earlier blocks are published, and the blocks of a longer outage dropped.
func TestPacksOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		defer stop()
		for _, c := range []struct {
			outage  time.Duration
			dropped int64
		}{{20 * time.Second, 0}, {2 * time.Minute, 64}} {
			keys, data := someBlocks(uint64(c.outage), 64, blockBytes)
			m.setFail(func(context.Context, string) error { return lasting })
			storeAll(t, tier, keys, data)
			time.Sleep(c.outage)
			m.setFail(nil)
			time.Sleep(20 * time.Second)
			if s := tier.Stats(); s.DroppedBlocks != c.dropped || tier.Has(keys[0]) != (c.dropped == 0) || s.State != object.Healthy {
				t.Errorf("after %v: stats are %+v", c.outage, s)
			}
		}
	})
}

var lasting = &object.Fault{Reason: "bucket gone: create it", Lasting: true, Err: errors.New("404")}

// TestStates checks what makes the tier fail, that calls then fail at once with the reason, and that it recovers.
func TestStates(t *testing.T) {
	passing := &object.Fault{Reason: "overloaded: raise the limit", Err: errors.New("503")}
	for name, c := range map[string]struct {
		fail   func(ctx context.Context, request string) error
		reason string
		calls  int
	}{
		"lasting":  {func(context.Context, string) error { return fmt.Errorf("get: %w", lasting) }, "bucket gone: create it", 1},
		"passing":  {func(context.Context, string) error { return passing }, "overloaded: raise the limit", 3},
		"slow":     {hang, "the store is slow", 3},
		"no fault": {func(context.Context, string) error { return object.ErrMissing }, "", 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				cfg := config(m)
				cfg.LearnEvery = time.Hour
				tier, stop := run(t, cfg)
				defer stop()
				keys, data := someBlocks(1, 12, blockBytes)
				for i := range keys { // a pack each
					storeAll(t, tier, keys[i:i+1], data[i:])
					flush(t, tier)
				}
				m.setFail(c.fail)

				dst := slots(1, blockBytes)
				for i := range c.calls {
					if s := tier.Stats(); s.State != object.Healthy {
						t.Fatalf("call %d: stats are %+v", i, s)
					}
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
					began := time.Now()
					if err := tier.Load(ctx, keys[i:i+1], dst)[0]; err == nil {
						t.Error("a load succeeded")
					}
					if took := time.Since(began); took > 3*time.Second {
						t.Errorf("a load took %v", took)
					}
					cancel()
				}
				if c.reason == "" {
					if s := tier.Stats(); s.State != object.Healthy {
						t.Errorf("stats are %+v", s)
					}
					return
				}

				began := time.Now()
				err := tier.Load(t.Context(), keys[11:12], dst)[0]
				if !errors.Is(err, object.ErrUnavailable) || !strings.Contains(err.Error(), c.reason) || time.Since(began) != 0 {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				other, _ := someBlocks(2, 1, blockBytes)
				if err := tier.Store(other[0], data[0]); !errors.Is(err, object.ErrUnavailable) {
					t.Errorf("store: %v", err)
				}

				time.Sleep(5 * time.Minute)
				if n := len(m.requests("")); n > 200 {
					t.Errorf("%d requests in five minutes of failure", n)
				}
				m.setFail(nil)
				time.Sleep(20 * time.Second)
				loadAll(t, tier, keys[11:], data[11:])
			})
		})
	}
}

// TestCancelledCallsAreNoFaults has callers give up, which is no failure of the store.
func TestCancelledCallsAreNoFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cfg := config(m)
		cfg.LearnEvery = time.Hour
		tier, stop := run(t, cfg)
		defer stop()
		keys, data := someBlocks(1, 1, blockBytes)
		storeAll(t, tier, keys, data)
		flush(t, tier)
		m.setFail(hang)
		for range 5 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if err := tier.Load(ctx, keys, slots(1, blockBytes))[0]; !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		if s := tier.Stats(); s.State != object.Healthy {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestRequestsAreBounded loads 40 scattered blocks at once from a store that does not answer.
func TestRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		defer stop()
		keys, data := someBlocks(1, 64, blockBytes)
		storeAll(t, tier, keys, data)
		flush(t, tier)
		m.setFail(hang)
		before := len(m.requests("GET"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for i := range 40 {
			go tier.Load(ctx, keys[i:i+1], slots(1, blockBytes))
		}
		synctest.Wait()
		if s := tier.Stats(); s.Requests != 16 || len(m.requests("GET"))-before != 16 {
			t.Errorf("%d requests are on the way, and %d GETs were sent", s.Requests, len(m.requests("GET"))-before)
		}
		<-ctx.Done()
	})
}

// TestDamageIsFound flips a bit of a block in the store.
func TestDamageIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		defer stop()
		keys, data := someBlocks(1, 64, blockBytes)
		storeAll(t, tier, keys, data)
		flush(t, tier)
		pack := m.names("/p/")[0]
		m.edit(func(objects map[string][]byte) { objects[pack][5*blockBytes+7] ^= 1 })

		errs := tier.Load(t.Context(), keys, slots(64, blockBytes))
		for i, err := range errs {
			if errors.Is(err, object.ErrDamaged) != (i == 5) || (err != nil) != (i == 5) {
				t.Errorf("block %d: %v", i, err)
			}
		}
		if tier.Has(keys[5]) || tier.Match(keys) != 5 || tier.Stats().Damaged != 1 {
			t.Error("the damaged block is still there")
		}
	})
}

// TestForeignObjects has a bucket to which others write: nodes with another secret or none, and one who copies, renames and changes
// objects. No block with other bytes is read, and refused objects are counted.
func TestForeignObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		own := config(m)
		own.Secret = "a secret of this fleet"
		keys, data := someBlocks(1, 64, blockBytes)
		writer, stopWriter := run(t, own)
		storeAll(t, writer, keys[:32], data)
		flush(t, writer)
		stopWriter()
		good := m.names("/i/")[0]

		// Others write false bytes under the same keys, later, so that their packs would count.
		_, lies := someBlocks(2, 64, blockBytes)
		for _, secret := range []string{"", "the secret of another fleet"} {
			cfg := config(m)
			cfg.Secret = secret
			other, stop := run(t, cfg)
			time.Sleep(time.Second)
			storeAll(t, other, keys, lies)
			flush(t, other)
			stop()
		}
		m.edit(func(objects map[string][]byte) {
			renamed := strings.Replace(good, "-node1", "-node3", 1)
			objects[renamed] = objects[good]
			objects[strings.Replace(renamed, "/i/", "/p/", 1)] = objects[strings.Replace(good, "/i/", "/p/", 1)]
			swapped := slices.Clone(objects[strings.Replace(good, "/i/", "/p/", 1)])
			copy(swapped[5*blockBytes:6*blockBytes], objects[strings.Replace(good, "/i/", "/p/", 1)][6*blockBytes:])
			copy(swapped[9*blockBytes:], lies[9])
			objects[strings.Replace(good, "/i/", "/p/", 1)] = swapped
		})

		reader, stop := run(t, own)
		defer stop()
		time.Sleep(time.Minute)
		if s := reader.Stats(); s.BadIndexes != 3 || s.Indexes != 1 || s.Blocks != 32 || s.State != object.Healthy {
			t.Errorf("stats are %+v", s)
		}
		dst := slots(64, blockBytes)
		for i, err := range reader.Load(t.Context(), keys, dst) {
			isRight := err == nil && slices.Equal(dst[i], data[i])
			isRefused := err != nil && (i >= 32 || errors.Is(err, object.ErrDamaged) && (i == 5 || i == 9))
			if !isRight && !isRefused {
				t.Errorf("block %d: right bytes %v, %v", i, slices.Equal(dst[i], data[i]), err)
			}
		}
		if s := reader.Stats(); s.Loaded != 30 || s.Damaged != 2 {
			t.Errorf("stats are %+v", s)
		}

		// A node without a secret takes no blocks of nodes with one.
		cfg := config(m)
		bare, stopBare := run(t, cfg)
		defer stopBare()
		time.Sleep(time.Minute)
		if s := bare.Stats(); s.BadIndexes != 3 || s.Indexes != 1 {
			t.Errorf("stats are %+v", s)
		}
	})
}

// TestDeletedPackIsAMiss removes a pack behind the tier's back.
func TestDeletedPackIsAMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tier, stop := run(t, config(m))
		defer stop()
		keys, data := someBlocks(1, 64, blockBytes)
		storeAll(t, tier, keys, data)
		flush(t, tier)
		gone := m.names("/p/")[0]
		m.edit(func(objects map[string][]byte) { delete(objects, gone) })
		for _, err := range tier.Load(t.Context(), keys[:2], slots(2, blockBytes)) {
			if !errors.Is(err, object.ErrMissing) {
				t.Error(err)
			}
		}
		if tier.Has(keys[63]) || tier.Stats().State != object.Healthy {
			t.Error("the pack is still there, or the tier fails")
		}
	})
}

// TestMemoryIsBounded publishes more than MaxBlocks: a node that starts late learns the newest, and reads no other index.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cfg := config(m)
		cfg.MaxBlocks = 4096
		writer, stopWriter := run(t, cfg)
		keys, data := someBlocks(1, 4096+640, blockBytes)
		for i := range keys {
			storeAll(t, writer, keys[i:i+1], data[i:])
			if i%64 == 63 {
				flush(t, writer)
				time.Sleep(time.Millisecond)
			}
		}
		if s := writer.Stats(); s.Blocks != 4096 || s.Forgotten != 640 {
			t.Errorf("stats are %+v", s)
		}
		stopWriter()

		before := len(m.requests("GET"))
		late, stop := run(t, cfg)
		defer stop()
		time.Sleep(time.Minute)
		if s := late.Stats(); s.Blocks != 4096 || s.Indexes != 64 {
			t.Errorf("stats are %+v", s)
		}
		if n := len(m.requests("GET")) - before; n != 64 {
			t.Errorf("%d indexes were read", n)
		}
		if late.Has(keys[0]) || !late.Has(keys[len(keys)-1]) {
			t.Error("the oldest were learned, or the newest were not")
		}
	})
}

// TestBadIndexesAreCountedOnce puts objects that are no indexes among them.
func TestBadIndexesAreCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		writer, stopWriter := run(t, config(m))
		keys, data := someBlocks(1, 64, blockBytes)
		storeAll(t, writer, keys, data)
		flush(t, writer)
		stopWriter()
		good := m.names("/i/")[0]
		m.edit(func(objects map[string][]byte) {
			damaged := slices.Clone(objects[good])
			damaged[60]++
			objects[strings.Replace(good, "-node1", "-node3", 1)] = damaged
			objects[good+" of another program"] = []byte("hello")
		})

		reader, stop := run(t, config(m))
		defer stop()
		time.Sleep(time.Minute)
		if s := reader.Stats(); s.BadIndexes != 2 || s.Blocks != 64 || s.State != object.Healthy {
			t.Errorf("stats are %+v", s)
		}
		if n := len(m.requests("GET " + strings.Replace(good, "-node1", "-node3", 1))); n != 1 {
			t.Errorf("the damaged index was read %d times", n)
		}
	})
}

// TestSweep deletes by age and by size: own packs alone, the oldest first, and the index before the pack.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cfg := config(m)
		cfg.Node = "other"
		other, stopOther := run(t, cfg)
		otherKeys, data := someBlocks(2, 64, blockBytes)
		storeAll(t, other, otherKeys, data)
		flush(t, other)
		stopOther()
		time.Sleep(time.Second)

		cfg = config(m)
		cfg.SweepEvery = time.Hour
		cfg.MaxAge = 10 * time.Hour
		cfg.MaxBytes = 2 * 64 * blockBytes
		tier, stop := run(t, cfg)
		defer stop()
		keys, data := someBlocks(1, 4*64, blockBytes)
		for i := range 4 {
			storeAll(t, tier, keys[64*i:64*(i+1)], data[64*i:])
			flush(t, tier)
			time.Sleep(time.Second)
		}
		orphan := strings.Replace(m.names("node1")[0], "/i/", "/p/", 1) + "x"
		m.edit(func(objects map[string][]byte) { objects[orphan] = []byte("a pack of node1x without an index") })
		names := m.names("/i/")

		time.Sleep(time.Hour)
		if got := m.names("/i/"); !slices.Equal(got, []string{names[0], names[3], names[4]}) {
			t.Errorf("by size: %q of %q are left", got, names)
		}
		if tier.Has(keys[0]) || tier.Match(keys[128:]) != 128 {
			t.Error("deleted blocks are found, or others are not")
		}
		deletes := m.requests("DELETE")
		if len(deletes) != 4 || !strings.Contains(deletes[0], "/i/") || !strings.Contains(deletes[1], "/p/") {
			t.Errorf("deletes are %q", deletes)
		}

		time.Sleep(12 * time.Hour)
		if got := m.names("/i/"); !slices.Equal(got, names[:1]) {
			t.Errorf("by age: %q are left", got)
		}
		if got := m.names("node1"); len(got) != 1 || !strings.HasSuffix(got[0], "node1x") {
			t.Errorf("objects of the node are left: %q", got)
		}
	})
}

// TestSweepForgets has another node delete its pack: this one forgets it at its next sweep, without reading it.
func TestSweepForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		cfg := config(m)
		cfg.SweepEvery = time.Hour
		tier, stop := run(t, cfg)
		defer stop()
		keys, data := someBlocks(1, 128, blockBytes)
		storeAll(t, tier, keys, data)
		flush(t, tier)
		gone := m.names("/i/")[0]
		m.edit(func(objects map[string][]byte) { delete(objects, gone) })
		time.Sleep(time.Hour + time.Second)
		if s := tier.Stats(); s.Blocks != 64 || s.Packs != 1 {
			t.Errorf("stats are %+v", s)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	for want, change := range map[string]func(c *object.Config){
		"needs a bucket": func(c *object.Config) { c.Bucket = nil },
		"node":           func(c *object.Config) { c.Node = "a-b" },
		"does not fit":   func(c *object.Config) { c.BlockBytes = 65 * blockBytes },
		"packs is 1":     func(c *object.Config) { c.Packs = 1 },
		"maxBlocks":      func(c *object.Config) { c.MaxBlocks = 1 },
		"negative":       func(c *object.Config) { c.Timeout = -1 },
		"readers need":   func(c *object.Config) { c.Requests = 2 },
		"prefix":         func(c *object.Config) { c.Prefix = strings.Repeat("x", 600) },
	} {
		cfg := config(newMemory())
		change(&cfg)
		if _, err := object.Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestWrongSizes(t *testing.T) {
	tier, err := object.Open(config(newMemory()))
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.Store(block.Key{}, make([]byte, 3)); err == nil || errors.Is(err, object.ErrUnavailable) {
		t.Error(err)
	}
	if err := tier.Load(t.Context(), []block.Key{{}}, [][]byte{make([]byte, 3)})[0]; err == nil || errors.Is(err, object.ErrMissing) {
		t.Error(err)
	}
	if err := tier.Load(t.Context(), []block.Key{{}}, nil)[0]; err == nil {
		t.Error("a slice is missing")
	}
	if err := tier.Store(block.Key{}, make([]byte, blockBytes)); !errors.Is(err, object.ErrUnavailable) {
		t.Errorf("before the first probe: %v", err)
	}
}
