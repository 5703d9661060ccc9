package bus

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/kv/feed"
	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/internal/route/peers"
)

// FuzzMessages: whatever a reader accepts, it reads again from what the writer makes of it, and
// what it refuses leaves nothing behind.
func FuzzMessages(f *testing.F) {
	w := fleet.Worker{Name: "w", Model: "m", Address: "10.0.0.1:80", Ranks: 1, Weight: 1}
	f.Add(appendWorker(nil, &w))
	f.Add(appendLoad(nil, Load{Worker: "w", Running: 1, KVUsage: 0.5}))
	f.Add(appendPlan(nil, plan.Plan{Pools: []plan.Pool{{Model: "m", Replicas: 1, Reason: "r"}}}))
	f.Add(appendEvents(&feed.Message{Worker: "w", Batch: &kvevent.Batch{Events: []kvevent.Event{
		{Hashes: []kvevent.Engine{1}, Blocks: []blockhash.Block{2}, BlockSize: 16, Window: 64},
	}, Unknown: 1}}))
	f.Add(appendEvents(&feed.Message{Worker: "w", Seq: 3, Mark: true}))
	f.Add(appendSnapshot(nil, &feed.Snapshot{ID: 1, Epoch: 2, Next: 3, Seconds: 1.5, Complete: true, BlockSize: 16, Dump: []byte("dump")}))
	f.Add(appendBookings(nil, &peers.Update{Replica: "r", Seq: 7, Whole: true, Digest: 9, Ranks: []peers.RankAmount{
		{Worker: "w", Epoch: 2, Rank: 1, Amount: fleet.Amount{Requests: 3, PrefillTokens: 400, DecodeBlocks: 50, PrefillTime: 6}},
	}}))
	f.Add([]byte{version, 0x9f})
	f.Fuzz(func(t *testing.T, msg []byte) {
		if w, err := readWorker(msg); err == nil {
			again, err := readWorker(appendWorker(nil, &w))
			if err != nil || again != w {
				t.Fatalf("worker %+v became %+v, %v", w, again, err)
			}
		}
		if l, err := readLoad(msg); err == nil {
			if again, err := readLoad(appendLoad(nil, l)); err != nil || again != l {
				t.Fatalf("load %+v became %+v, %v", l, again, err)
			}
		}
		if p, err := readPlan(msg); err == nil {
			if again, err := readPlan(appendPlan(nil, p)); err != nil || !reflect.DeepEqual(again, p) {
				t.Fatalf("plan %+v became %+v, %v", p, again, err)
			}
		}
		if s, size, err := readSnapshot(msg); err == nil {
			if size > len(s.Dump) {
				s.Dump = append(s.Dump, make([]byte, 1)...) // one more page, in part
				size = len(s.Dump)
			}
			again, length, err := readSnapshot(appendSnapshot(nil, s))
			if again != nil {
				again.Dump = append(again.Dump, s.Dump[len(again.Dump):]...)
			}
			if err != nil || length != size || !reflect.DeepEqual(again, s) {
				t.Fatalf("snapshot %+v became %+v, %v", s, again, err)
			}
		}
		var m, again peers.Update
		if err := readBookings(msg, &m); err == nil {
			if err := readBookings(appendBookings(nil, &m), &again); err != nil || !reflect.DeepEqual(again, m) {
				t.Fatalf("bookings %+v became %+v, %v", m, again, err)
			}
		}
		e := feed.Message{Batch: &kvevent.Batch{}}
		if err := readEvents(msg, &e); err != nil {
			if len(e.Batch.Events) != 0 {
				t.Fatal("refused events were left in the batch")
			}
			return
		}
		first := appendEvents(&e)
		if err := readEvents(first, &e); err != nil || !bytes.Equal(appendEvents(&e), first) {
			t.Fatalf("events do not survive a round trip: %v", err)
		}
	})
}
