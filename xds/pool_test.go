package xds

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/internal/fleet"
)

// poolWorld plays changes of one pool's workers at times that the test chooses.
type poolWorld struct {
	t       *testing.T
	pool    *pool
	workers []*fleet.Worker
	at      time.Time
	began   time.Time
}

func newPoolWorld(t *testing.T) *poolWorld {
	began := time.Unix(1000, 0)
	w := &poolWorld{t: t, pool: newPool("m"), at: began, began: began}
	for i := range 3 {
		w.workers = append(w.workers, &fleet.Worker{
			Name: fmt.Sprintf("w%d", i), Model: "m", Address: fmt.Sprintf("10.0.0.%d:80", i+1), State: fleet.Ready, Weight: 1,
		})
	}
	return w
}

// change replaces a worker by a changed copy, as a fleet does.
func (w *poolWorld) change(i int, by func(*fleet.Worker)) {
	next := append([]*fleet.Worker{}, w.workers...)
	changed := *next[i]
	by(&changed)
	next[i] = &changed
	w.workers = next
}

// want checks when the difference may be published, counted from the begin of the test, and publishes it if it is due.
func (w *poolWorld) want(at, due time.Duration) {
	w.t.Helper()
	w.at = w.began.Add(at)
	got := w.pool.observe(w.workers, w.at)
	if got.Sub(w.began) != due {
		w.t.Fatalf("at %s: due %s, want %s", at, got.Sub(w.began), due)
	}
	if due == at {
		if _, err := w.pool.build(&Settings{}, w.at); err != nil {
			w.t.Fatal(err)
		}
		w.pool.wasPublished(w.at)
	}
}

// wantNothing checks that there is no difference.
func (w *poolWorld) wantNothing(at time.Duration) {
	w.t.Helper()
	if got := w.pool.observe(w.workers, w.began.Add(at)); !got.IsZero() {
		w.t.Fatalf("at %s: due %s, want never", at, got.Sub(w.began))
	}
}

func reweigh(w *fleet.Worker) { w.Weight++ }

func setState(s fleet.State) func(*fleet.Worker) { return func(w *fleet.Worker) { w.State = s } }

const ms = time.Millisecond

// TestWeightsArePaced: changes of weights alone are published once a second. The burst is left for changes of health, which do
// not wait for weights.
func TestWeightsArePaced(t *testing.T) {
	w := newPoolWorld(t)
	w.want(0, 0)
	w.wantNothing(10 * ms)
	w.change(0, reweigh)
	w.want(20*ms, time.Second)
	w.change(1, setState(fleet.Draining)) // it takes the weight along
	w.want(30*ms, 30*ms)
	w.wantNothing(40 * ms)

	w.change(0, reweigh)
	w.want(50*ms, 1030*ms)
	w.change(2, setState(fleet.Down))
	w.want(60*ms, 60*ms)
	w.change(2, setState(fleet.Ready))
	w.want(70*ms, 70*ms)
	w.change(2, setState(fleet.Down)) // the burst is used up
	w.want(80*ms, 1000*ms)
	w.want(1000*ms, 1000*ms)
	w.change(0, reweigh)
	w.want(1010*ms, 2000*ms)

	// A pool with a change of weights in every second has three updates of its burst left.
	for i := range 10 {
		at := 10*time.Second + time.Duration(i)*time.Second
		w.change(0, reweigh)
		w.want(at, at)
	}
	for i := range 3 {
		at := 19*time.Second + time.Duration(1+i)*ms
		w.change(1, setState(fleet.State(i%2)))
		w.want(at, at)
	}
}

// TestUnrelatedChangesArePublishedNever: a lease that is renewed, or a weight that is back before it was published.
func TestUnrelatedChangesArePublishedNever(t *testing.T) {
	w := newPoolWorld(t)
	w.want(0, 0)
	w.change(1, func(w *fleet.Worker) { w.Blocks = 9 })
	w.wantNothing(10 * ms)
	before := w.workers
	w.change(0, reweigh)
	w.want(20*ms, time.Second)
	w.workers = before
	w.wantNothing(30 * ms)
}

// TestLeaversAreForgottenInTime: a worker that leaves is listed as unhealthy at once, and no more after linger. Two workers with one
// address are one endpoint.
func TestLeaversAreForgottenInTime(t *testing.T) {
	w := newPoolWorld(t)
	w.change(1, func(w *fleet.Worker) { w.Address = "10.0.0.1:80" })
	w.want(0, 0)
	w.workers = w.workers[:2]
	w.want(10*ms, 10*ms)
	w.want(20*ms, 10*ms+linger)
	w.change(0, reweigh)
	w.want(30*ms, 1010*ms)
	w.want(1010*ms, 1010*ms)
	w.want(1020*ms, 10*ms+linger)
	w.want(10*ms+linger, 10*ms+linger)
	w.wantNothing(20*ms + linger)
	if e, err := w.pool.build(&Settings{}, w.at); err != nil || len(e.Endpoints[0].LbEndpoints) != 1 {
		t.Errorf("%v, %v", e, err)
	}
}

// TestRefusedEndpointsAreTriedAgain once a second, and not more often.
func TestRefusedEndpointsAreTriedAgain(t *testing.T) {
	w := newPoolWorld(t)
	w.pool.observe(w.workers, w.at)
	w.pool.wasRefused("odd", w.at)
	w.want(10*ms, time.Second)
	w.change(0, setState(fleet.Down))
	w.want(20*ms, time.Second)
	w.want(time.Second, time.Second)
	w.wantNothing(1010 * ms)
}

// TestPushesEqualBuild: whatever changes, the endpoints in the cache equal the endpoints that Build makes of the whole fleet.
func TestPushesEqualBuild(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	f := fleet.New(fleet.Hooks{})
	settings := benchSettings()
	s := NewServer(settings, f, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	s.reconfigure()

	now := time.Unix(1000, 0)
	for step := range 300 {
		changeSome(t, f, rng)
		now = now.Add(time.Duration(rng.IntN(5000)) * ms)
		for next := s.push(f.Snapshot(), now); !next.IsZero(); next = s.push(f.Snapshot(), now) {
			if !next.After(now) {
				t.Fatalf("seed %d, step %d: something is due and was not pushed", seed, step)
			}
			now = next
		}

		want, err := Build(settings, f.Snapshot())
		if err != nil {
			t.Fatal(err)
		}
		cached := s.endpoints.GetResources()
		for _, e := range want.Endpoints {
			got, ok := cached[e.ClusterName].(*endpointv3.ClusterLoadAssignment)
			if !ok || string(bytesOf(got)) != string(bytesOf(e)) {
				t.Fatalf("seed %d, step %d: endpoints are\n%v\nwant\n%v", seed, step, got, e)
			}
		}
	}
}

// changeSome makes some changes of a fleet.
func changeSome(t *testing.T, f *fleet.Fleet, rng *rand.Rand) {
	var plan []fleet.Planned
	for range rng.IntN(6) {
		name := fmt.Sprintf("w%d", rng.IntN(12))
		plan = append(plan, fleet.Planned{Name: name, Weight: 1 + uint32(rng.IntN(3)), Drain: rng.IntN(3) == 0})
		switch rng.IntN(4) {
		case 0:
			f.Remove(name)
		case 1:
			f.SetState(name, fleet.State(rng.IntN(4)))
		case 2:
			if _, err := f.SetPlanned(plan); err != nil {
				t.Fatal(err)
			}
		default:
			_, err := f.Put(fleet.Worker{
				Name: name, Model: benchModel(rng.IntN(3)), Address: fmt.Sprintf("10.0.0.%d:80", 1+rng.IntN(15)), Ranks: 1,
				State: fleet.Ready, Role: fleet.Role(rng.IntN(3)), Weight: uint32(rng.IntN(3)),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOneChangeRebuildsOnePool: the endpoints of other pools stay the same in memory.
func TestOneChangeRebuildsOnePool(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	s := NewServer(benchSettings(), f, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	for pool := range benchPools {
		if _, err := f.Put(fleet.Worker{Name: benchName(pool, 0), Model: benchModel(pool), Address: "10.0.0.1:80", Ranks: 1}); err != nil {
			t.Fatal(err)
		}
	}
	s.reconfigure()
	now := time.Unix(1000, 0)
	s.push(f.Snapshot(), now)
	before := s.endpoints.GetResources()
	f.SetState(benchName(3, 0), fleet.Draining)
	s.push(f.Snapshot(), now.Add(time.Second))

	var changed []string
	for name, e := range s.endpoints.GetResources() {
		if e != before[name] {
			changed = append(changed, name)
		}
	}
	if strings.Join(changed, " ") != PoolName(benchModel(3)) {
		t.Errorf("rebuilt: %s", changed)
	}
}
