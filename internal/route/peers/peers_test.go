package peers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/blockhash"
	"github.com/stator-project/stator/internal/route/predict"
)

// testReplica is one replica: its fleet, its publisher and its receiver.
type testReplica struct {
	fleet     *fleet.Fleet
	outbox    Outbox
	publisher *Publisher
	receiver  *Receiver
	expected  []string // prompts of others
	open      []opened
}

type opened struct {
	worker string
	load   *fleet.Load
	amount fleet.Amount
}

func newTestReplica(t *testing.T, name string, workers int) *testReplica {
	v := &testReplica{fleet: fleet.New(fleet.Hooks{})}
	for w := range workers {
		v.put(t, w, 1)
	}
	v.publisher, v.receiver = NewPublisher(name, v.fleet, &v.outbox), NewReceiver(name, v.fleet, v.expect)
	return v
}

// beginning is the time at which the test replicas start.
var beginning = time.Unix(1000, 0)

func (v *testReplica) expect(p predict.Prediction) {
	withdrawn := ""
	if p.Withdrawn {
		withdrawn = ", withdrawn"
	}
	v.expected = append(v.expected, fmt.Sprintf("%s/%d %d %v in %s%s",
		p.Rank.Worker.Name, p.Rank.Number, p.Known, p.Chain, p.Computed.Sub(beginning), withdrawn))
}

func (v *testReplica) put(t *testing.T, w int, epoch uint64) {
	if _, err := v.fleet.Put(fleet.Worker{Name: fmt.Sprintf("w%d", w), Model: "m", Address: fmt.Sprintf("10.0.0.%d:80", w+1), Ranks: 2, State: fleet.Ready, Epoch: epoch}); err != nil {
		t.Fatal(err)
	}
}

// work books or ends a request at random.
func (v *testReplica) work(rng *rand.Rand) {
	if len(v.open) > 0 && rng.IntN(2) == 0 {
		i := rng.IntN(len(v.open))
		v.open[i].load.Add(v.open[i].amount.Negative(), time.Time{})
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
	rank.Load.Add(a, time.Time{})
	v.open = append(v.open, opened{rank.Worker.Name, rank.Load, a})
}

// TestReplicasAgreeAfterLosses: of three replicas' updates a third is lost, and some are repeated or late.
// Workers restart, and one replica ends. Two seconds after the last loss every replica counts the
// bookings of the others, and none of the one that ended.
func TestReplicasAgreeAfterLosses(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1000, 0)
	views := []*testReplica{newTestReplica(t, "a", 5), newTestReplica(t, "b", 5), newTestReplica(t, "c", 5)}
	late := make([][]Update, 3)
	alive := func(i int, step int) bool { return i != 2 || step < 4000 }
	turn := func(step int, loss float64) {
		now = now.Add(5 * time.Millisecond)
		for i, v := range views {
			if !alive(i, step) {
				continue
			}
			m, ok := v.publisher.Next(now)
			for k, other := range views {
				if k == i || !alive(k, step) {
					continue
				}
				if len(late[k]) > 0 && rng.IntN(3) == 0 {
					other.receiver.Apply(&late[k][0], now)
					late[k] = late[k][1:]
				}
				if !ok || rng.Float64() < loss {
					continue
				}
				other.receiver.Apply(&m, now)
				if loss > 0 && rng.IntN(5) == 0 {
					late[k] = append(late[k], m)
				}
			}
			v.receiver.Expire(now)
		}
	}
	epoch := uint64(1)
	for step := range 6000 {
		for i, v := range views {
			if alive(i, step) && step < 5500 {
				v.work(rng)
			}
		}
		if step%500 == 499 { // a worker restarts, which ends its bookings
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
	s := views[0].receiver.Stats()
	if s.Live != 1 || s.Expired != 1 || s.Lost == 0 || s.Old == 0 || s.DigestMismatches == 0 || strings.Contains(views[0].receiver.String(), "differs") {
		t.Errorf("%+v\n%s", s, views[0].receiver)
	}
	// The other one ends too: its bookings are dropped after Silence.
	now = now.Add(Silence)
	views[0].receiver.Expire(now)
	for _, rank := range views[0].fleet.Snapshot().Ranks {
		if rank.Load.Booked() != rank.Load.Own() {
			t.Errorf("%s/%d: %+v of a replica that ended", rank.Worker.Name, rank.Number, rank.Load.Booked())
		}
	}
}

// TestPromptsReachTheOthersOnce: the next update has each prompt, without the blocks that the rank has but the last of them. A prompt of a rank
// that is unknown there, or has restarted, is ignored, and so is a repeated update.
func TestPromptsReachTheOthersOnce(t *testing.T) {
	a, b := newTestReplica(t, "a", 2), newTestReplica(t, "b", 1)
	now := beginning
	a.publisher.Next(now) // a full update
	w0, w1 := a.fleet.Snapshot().Ranks[0], a.fleet.Snapshot().Ranks[2]
	chain := []blockhash.Sequence{1, 2, 3, 4}
	a.outbox.Add(predict.Prediction{Rank: w0, Chain: chain, Computed: now.Add(3 * time.Second)})
	a.outbox.Add(predict.Prediction{Rank: w0, Chain: chain, Known: 3, Computed: now})
	a.outbox.Add(predict.Prediction{Rank: w1, Chain: chain, Computed: now})
	a.outbox.Add(predict.Prediction{Rank: w0, Chain: chain, Known: 3, Computed: now, Withdrawn: true})
	clear(chain)

	u, due := a.publisher.Next(now.Add(time.Second))
	b.receiver.Apply(&u, now)
	b.receiver.Apply(&u, now)
	b.put(t, 0, 2)
	u.Seq++
	b.receiver.Apply(&u, now)

	want := []string{"w0/0 0 [1 2 3 4] in 2s", "w0/0 1 [3 4] in -1s", "w0/0 1 [3 4] in -1s, withdrawn"}
	if !due || !slices.Equal(b.expected, want) {
		t.Errorf("an update is due: %v; expected %q, want %q", due, b.expected, want)
	}
	if again, _ := a.publisher.Next(now.Add(2 * time.Second)); len(again.Prompts) > 0 {
		t.Errorf("sent again: %+v", again.Prompts)
	}
}

// TestPromptsAreBounded: an outbox keeps the beginning of prompts that are too many or too long for an update, and an update with more is
// refused.
func TestPromptsAreBounded(t *testing.T) {
	a, b := newTestReplica(t, "a", 1), newTestReplica(t, "b", 1)
	now, w0 := beginning, a.fleet.Snapshot().Ranks[0]
	for range maxPrompts + 5 {
		a.outbox.Add(predict.Prediction{Rank: w0, Chain: []blockhash.Sequence{1}, Computed: now})
	}
	if n := len(a.outbox.take(now)); n != maxPrompts || a.outbox.Dropped() != 5 {
		t.Errorf("%d prompts, %d dropped", n, a.outbox.Dropped())
	}
	for range 3 {
		a.outbox.Add(predict.Prediction{Rank: w0, Chain: make([]blockhash.Sequence, maxBlocks/2+1), Computed: now.Add(2 * maxComputed)})
	}
	u, _ := a.publisher.Next(now)
	if len(u.Prompts) != 2 || len(u.Prompts[1].Blocks) != maxBlocks/2-1 || a.outbox.Dropped() != 6 {
		t.Errorf("%d prompts, %d dropped", len(u.Prompts), a.outbox.Dropped())
	}
	if b.receiver.Apply(&u, now); len(b.expected) != 2 {
		t.Errorf("an update at the bounds leaves %d prompts", len(b.expected))
	}

	absurd := map[string][]Prompt{
		"too many":      make([]Prompt, maxPrompts+1),
		"too long":      {{Blocks: make([]blockhash.Sequence, maxBlocks)}, {Blocks: make([]blockhash.Sequence, 1)}},
		"more known":    {{Known: 1}},
		"all known":     {{Known: 2, Blocks: make([]blockhash.Sequence, 3)}},
		"negative":      {{Known: -1}},
		"computed ago":  {{Computed: -maxComputed - 1}},
		"computed late": {{Computed: maxComputed + 1}},
	}
	for name, prompts := range absurd {
		refused := b.receiver.Stats().Refused
		if b.receiver.Apply(&Update{Replica: name, Seq: 1, Prompts: prompts}, now); b.receiver.Stats().Refused == refused {
			t.Errorf("%s: not refused", name)
		}
	}
}

// TestIdleReplicaPublishesRarely: an idle replica publishes heartbeats, and a full update every two
// seconds.
func TestIdleReplicaPublishesRarely(t *testing.T) {
	v := newTestReplica(t, "a", 3)
	now := time.Unix(1000, 0)
	updates, full := 0, 0
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		if m, ok := v.publisher.Next(now); ok {
			updates++
			if m.Full {
				full++
			}
		}
	}
	if updates > 11 || full != 5 {
		t.Errorf("%d updates in ten idle seconds, %d of them full", updates, full)
	}
}

// TestReceiverIsBounded: updates of unknown clients cannot exceed the bounds, and a replica's own updates
// are ignored.
func TestReceiverIsBounded(t *testing.T) {
	v := newTestReplica(t, "a", 1)
	now := time.Unix(1000, 0)
	for i := range 2 * maxReplicas {
		v.receiver.Apply(&Update{Replica: fmt.Sprint(i), Seq: 1}, now)
	}
	v.receiver.Apply(&Update{Replica: "a", Seq: 1, Ranks: []RankAmount{{"w0", 1, 0, fleet.Amount{Requests: 5}}}}, now)
	v.receiver.Apply(&Update{Replica: "0", Seq: 2, Ranks: make([]RankAmount, maxRanks+1)}, now)
	if s := v.receiver.Stats(); s.Live != maxReplicas || s.Booked != 0 || len(v.receiver.Names()) != maxReplicas {
		t.Errorf("%+v", s)
	}
}

// TestAmountsOutOfRangeAreRefused: a message on the bus that books less than nothing, or more than any router, changes no
// load and adds no replica.
func TestAmountsOutOfRangeAreRefused(t *testing.T) {
	v := newTestReplica(t, "a", 1)
	now := time.Unix(1000, 0)
	absurd := []fleet.Amount{
		{Requests: -1000, PrefillTokens: -1 << 40, DecodeBlocks: -1 << 40},
		{Requests: maxRequests + 1}, {PrefillTokens: maxTokens + 1}, {DecodeBlocks: -1}, {PrefillTime: -1}, {PrefillTime: maxPrefillTime + 1},
	}
	for i, amount := range absurd {
		v.receiver.Apply(&Update{Replica: "stranger", Seq: uint64(i + 1), Ranks: []RankAmount{
			{"w0", 1, 1, fleet.Amount{Requests: 5}}, {"w0", 1, 0, amount},
		}}, now)
	}

	for _, rank := range v.fleet.Snapshot().Ranks {
		if booked := rank.Load.Booked(); booked != (fleet.Amount{}) {
			t.Errorf("rank %d: booked %+v", rank.Number, booked)
		}
	}
	if s := v.receiver.Stats(); s.Live != 0 || s.Refused != uint64(len(absurd)) {
		t.Errorf("%+v", s)
	}
}

// BenchmarkPublisher: how long does a search for changed bookings take in a fleet of 1,000 ranks, of which
// one in a hundred has changed?
//
//	go test ./internal/route/peers -run '^$' -bench Publisher
func BenchmarkPublisher(b *testing.B) {
	f := fleet.New(fleet.Hooks{})
	for w := range 1000 {
		if _, err := f.Put(fleet.Worker{Name: fmt.Sprintf("w%d", w), Model: "m", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Ready}); err != nil {
			b.Fatal(err)
		}
	}
	s, now := NewPublisher("a", f, &Outbox{}), time.Unix(1000, 0)
	ranks := f.Snapshot().Ranks
	for i := range ranks {
		ranks[i].Load.Add(fleet.Amount{Requests: 1}, now)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for k := range 10 {
			ranks[(i*10+k)%len(ranks)].Load.Add(fleet.Amount{Requests: 1}, now)
		}
		now = now.Add(time.Microsecond)
		if _, ok := s.Next(now); !ok {
			b.Fatal("no update")
		}
	}
}
