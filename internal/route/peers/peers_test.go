package peers

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// replicaView is one replica: its fleet, what it says and what it hears.
type replicaView struct {
	fleet *fleet.Fleet
	share *Publisher
	peers *Receiver
	open  []opened
}

type opened struct {
	worker string
	load   *fleet.Load
	amount fleet.Amount
}

func newReplicaView(t *testing.T, name string, workers int) *replicaView {
	v := &replicaView{fleet: fleet.New(fleet.Hooks{})}
	for w := range workers {
		v.put(t, w, 1)
	}
	v.share, v.peers = NewPublisher(name, v.fleet), NewReceiver(name, v.fleet)
	return v
}

func (v *replicaView) put(t *testing.T, w int, epoch uint64) {
	if _, err := v.fleet.Put(fleet.Worker{Name: fmt.Sprintf("w%d", w), Model: "m", Address: fmt.Sprintf("10.0.0.%d:80", w+1), Ranks: 2, State: fleet.Ready, Epoch: epoch}); err != nil {
		t.Fatal(err)
	}
}

// work books or ends something at random.
func (v *replicaView) work(rng *rand.Rand) {
	if len(v.open) > 0 && rng.IntN(2) == 0 {
		i := rng.IntN(len(v.open))
		v.open[i].load.Add(v.open[i].amount.Negative())
		v.open[i] = v.open[len(v.open)-1]
		v.open = v.open[:len(v.open)-1]
		return
	}
	ranks := v.fleet.Snapshot().Ranks
	if len(ranks) == 0 {
		return
	}
	rank := ranks[rng.IntN(len(ranks))]
	a := fleet.Amount{Requests: 1, PrefillTokens: rng.Int64N(1000), DecodeBlocks: rng.Int64N(100), PrefillTime: time.Duration(rng.IntN(1000))}
	rank.Load.Add(a)
	v.open = append(v.open, opened{rank.Worker.Name, rank.Load, a})
}

// TestPeersHeal: three replicas, a third of all messages lost, some doubled, some late, workers that
// restart, and one replica that dies. Two seconds after the losses end everyone knows what the
// others have booked, and nothing is left of the dead one.
func TestPeersHeal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1000, 0)
	views := []*replicaView{newReplicaView(t, "a", 5), newReplicaView(t, "b", 5), newReplicaView(t, "c", 5)}
	late := make([][]Update, 3)
	alive := func(i int, step int) bool { return i != 2 || step < 4000 }
	turn := func(step int, loss float64) {
		now = now.Add(5 * time.Millisecond)
		for i, v := range views {
			if !alive(i, step) {
				continue
			}
			m, ok := v.share.Next(now)
			for k, other := range views {
				if k == i || !alive(k, step) {
					continue
				}
				if len(late[k]) > 0 && rng.IntN(3) == 0 {
					other.peers.Apply(&late[k][0], now)
					late[k] = late[k][1:]
				}
				if !ok || rng.Float64() < loss {
					continue
				}
				other.peers.Apply(&m, now)
				if loss > 0 && rng.IntN(5) == 0 {
					late[k] = append(late[k], m)
				}
			}
			v.peers.Expire(now)
		}
	}
	epoch := uint64(1)
	for step := range 6000 {
		for i, v := range views {
			if alive(i, step) && step < 5500 {
				v.work(rng)
			}
		}
		if step%500 == 499 { // a worker starts again: what was booked there is gone
			epoch++
			w := rng.IntN(5)
			for _, v := range views {
				v.put(t, w, epoch)
				kept := v.open[:0]
				for _, o := range v.open {
					if o.worker != fmt.Sprintf("w%d", w) {
						kept = append(kept, o)
					}
				}
				v.open = kept
			}
		}
		loss := 0.3
		if step >= 5500 {
			loss = 0
		}
		turn(step, loss)
	}
	for i, rank := range views[0].fleet.Snapshot().Ranks {
		mine, theirs := rank.Load.Own(), views[1].fleet.Snapshot().Ranks[i].Load.Own()
		want := fleet.Amount{Requests: mine.Requests + theirs.Requests, PrefillTokens: mine.PrefillTokens + theirs.PrefillTokens,
			DecodeBlocks: mine.DecodeBlocks + theirs.DecodeBlocks, PrefillTime: mine.PrefillTime + theirs.PrefillTime}
		for k, v := range views[:2] {
			if got := v.fleet.Snapshot().Ranks[i].Load.Booked(); got != want {
				t.Errorf("replica %d, %s/%d: %+v, want %+v", k, rank.Worker.Name, rank.Number, got, want)
			}
		}
	}
	s := views[0].peers.Stats()
	if s.Live != 1 || s.Expired != 1 || s.Lost == 0 || s.Old == 0 || s.Differed == 0 || strings.Contains(views[0].peers.String(), "differs") {
		t.Errorf("%+v\n%s", s, views[0].peers)
	}
	// The other one dies too: nothing is left of it within its silence.
	now = now.Add(Silence)
	views[0].peers.Expire(now)
	for _, rank := range views[0].fleet.Snapshot().Ranks {
		if rank.Load.Booked() != rank.Load.Own() {
			t.Errorf("%s/%d: %+v of a dead replica", rank.Worker.Name, rank.Number, rank.Load.Booked())
		}
	}
}

// An idle replica says that it lives, and everything every two seconds; a busy one no more often
// than it is asked.
func TestShareIsQuiet(t *testing.T) {
	v := newReplicaView(t, "a", 3)
	now, said, whole := time.Unix(1000, 0), 0, 0
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		if m, ok := v.share.Next(now); ok {
			said++
			if m.Whole {
				whole++
			}
		}
	}
	if said > 11 || whole != 5 {
		t.Errorf("%d messages in ten idle seconds, %d of them whole", said, whole)
	}
}

// Strangers cannot make a replica keep more than its bounds, nor believe itself.
func TestPeersAreBounded(t *testing.T) {
	v := newReplicaView(t, "a", 1)
	now := time.Unix(1000, 0)
	for i := range 2 * maxPeers {
		v.peers.Apply(&Update{Replica: fmt.Sprint(i), Seq: 1}, now)
	}
	v.peers.Apply(&Update{Replica: "a", Seq: 1, Ranks: []RankAmount{{"w0", 1, 0, fleet.Amount{Requests: 5}}}}, now)
	v.peers.Apply(&Update{Replica: "0", Seq: 2, Ranks: make([]RankAmount, maxPeerRanks+1)}, now)
	if s := v.peers.Stats(); s.Live != maxPeers || s.Booked != 0 {
		t.Errorf("%+v", s)
	}
}

// BenchmarkShare asks what it costs to look for changes in the bookings of a fleet, of whose ranks
// one in a hundred has changed.
//
//	go test ./internal/kv/feed -run '^$' -bench Publisher
func BenchmarkShare(b *testing.B) {
	f := fleet.New(fleet.Hooks{})
	for w := range 1000 {
		if _, err := f.Put(fleet.Worker{Name: fmt.Sprintf("w%d", w), Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
			b.Fatal(err)
		}
	}
	s, now := NewPublisher("a", f), time.Unix(1000, 0)
	ranks := f.Snapshot().Ranks
	for i := range ranks {
		ranks[i].Load.Add(fleet.Amount{Requests: 1})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for k := range 10 {
			ranks[(i*10+k)%len(ranks)].Load.Add(fleet.Amount{Requests: 1})
		}
		now = now.Add(time.Microsecond)
		if _, ok := s.Next(now); !ok {
			b.Fatal("nothing to say")
		}
	}
}
