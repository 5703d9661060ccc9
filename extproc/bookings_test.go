package extproc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// book lets a replica decide about a prompt, and returns the decision's id.
func (r replica) book(t *testing.T, text string) string {
	t.Helper()
	d := r.routes.Decide(&request.Request{Endpoint: prompt.Completions, Known: true, Body: completion(text)}, time.Now())
	if d.Outcome != decision.Picked {
		t.Fatalf("%s", d)
	}
	return d.ID
}

// twoReplicas starts a second replica, and returns both when these engines serve at each.
func (c *cluster) twoReplicas(engines ...string) (a, b replica) {
	c.t.Helper()
	c.ready(engines...)
	a = c.replica
	c.t.Cleanup(a.stop)
	c.startRouter()
	c.ready(engines...)
	return a, c.replica
}

// agree returns nil if every replica counts, on every rank, the sum of all replicas' own
// bookings.
func agree(replicas ...replica) error {
	sum := map[string]fleet.Amount{}
	for _, r := range replicas {
		for _, rank := range r.fleet.Snapshot().Ranks {
			a, s := rank.Load.Own(), sum[rank.Worker.Name]
			sum[rank.Worker.Name] = fleet.Amount{Requests: s.Requests + a.Requests, PrefillTokens: s.PrefillTokens + a.PrefillTokens,
				DecodeBlocks: s.DecodeBlocks + a.DecodeBlocks, PrefillTime: s.PrefillTime + a.PrefillTime}
		}
	}
	for i, r := range replicas {
		for _, rank := range r.fleet.Snapshot().Ranks {
			if got, want := rank.Load.Booked(), sum[rank.Worker.Name]; got != want {
				return fmt.Errorf("replica %d has %+v on %s, all together %+v", i, got, rank.Worker.Name, want)
			}
		}
	}
	return nil
}

// TestReplicasShareBookings: replicas count each other's bookings, also when one message in ten is lost. A
// replica that is killed leaves no bookings behind, nor does it when it starts again.
func TestReplicasShareBookings(t *testing.T) {
	c := newCluster(t, 0, 3)
	a, b := c.twoReplicas("w0", "w1", "w2")

	// One message in ten of b's, and of a's, does not reach the other.
	var lost atomic.Int64
	c.proxy.Set(func(subject string, _ []byte) (int, bool) {
		if strings.Contains(subject, ".book.") && rand.IntN(10) == 0 {
			lost.Add(1)
			return 0, false
		}
		return 1, false
	})
	var open [2][]string
	for i := range 400 {
		for k, r := range []replica{a, b} {
			open[k] = append(open[k], r.book(t, fmt.Sprintf("request %d of replica %d, which is somewhat long", i, k)))
			if i%3 == 2 {
				r.routes.End(open[k][0], time.Now())
				open[k] = open[k][1:]
			}
		}
		time.Sleep(2 * time.Millisecond) // a load of a thousand requests a second
	}
	c.within(recovery, "bookings agree although messages are lost", func() error { return agree(a, b) })
	if lost.Load() == 0 {
		t.Error("no message was lost")
	}
	c.proxy.Set(nil)

	b.stop() // it publishes nothing more
	c.within(recovery, "no booking of the stopped replica is left", func() error {
		for _, rank := range a.fleet.Snapshot().Ranks {
			if rank.Load.Booked() != rank.Load.Own() {
				return fmt.Errorf("%s has %+v of others", rank.Worker.Name, rank.Load.Booked())
			}
		}
		return nil
	})
	c.startRouter()
	c.ready("w0", "w1", "w2")
	c.within(recovery, "a new replica has received the bookings of the other", func() error { return agree(a, c.replica) })
	for _, id := range open[0] {
		a.routes.End(id, time.Now())
	}
	c.within(recovery, "and their ends", func() error {
		for _, r := range []replica{a, c.replica} {
			for _, rank := range r.fleet.Snapshot().Ranks {
				if rank.Load.Booked() != (fleet.Amount{}) {
					return fmt.Errorf("%s has %+v", rank.Worker.Name, rank.Load.Booked())
				}
			}
		}
		return nil
	})
	if s := a.peers.Stats(); s.Lost == 0 || s.Expired != 1 {
		t.Errorf("%+v", s)
	}
}

// TestReplicasSharePrompts: a prompt that one replica has sent to an engine is expected in its cache by the other one, although the engine
// never comes to it and publishes nothing. If the request ends at another engine, the prompt is expected there.
func TestReplicasSharePrompts(t *testing.T) {
	c := newCluster(t, 0, 3)
	a, b := c.twoReplicas("w0", "w1", "w2")
	c.within(recovery, "the replicas know each other", func() error {
		if a.peers.Live() != 1 || b.peers.Live() != 1 {
			return fmt.Errorf("%d and %d other replicas", a.peers.Live(), b.peers.Live())
		}
		return nil
	})

	text := strings.Repeat("a prompt of several blocks. ", 20)
	sent, ok := a.routes.Explain(a.book(t, text))
	if !ok {
		t.Fatal("the decision is not kept")
	}
	expectedOn := func(worker string) func() error {
		return func() error {
			again := &request.Request{Endpoint: prompt.Completions, Known: true, Body: completion(text)}
			d := b.routes.DryRun(again, sent.At) // a moment at which the prediction lasts, however slow this machine is
			for i := range d.Candidates {
				if c := &d.Candidates[i]; (c.Worker == worker) != (c.Overlap[fleet.Device] == d.Blocks) {
					return fmt.Errorf("the prompt is not expected on %s alone: %s", worker, d)
				}
			}
			return nil
		}
	}
	c.within(recovery, "the other replica expects it", expectedOn(sent.Worker))

	other := slices.IndexFunc(sent.Candidates, func(c decision.Candidate) bool { return c.Worker != sent.Worker })
	at, ok := a.fleet.Snapshot().Rank(sent.Candidates[other].Worker, 0)
	if !ok {
		t.Fatal("there is no other engine")
	}
	a.routes.Ended(route.Ending{ID: sent.ID, Served: at.Worker.Address}, time.Now())
	c.within(recovery, "and where it was served", expectedOn(at.Worker.Name))
}
