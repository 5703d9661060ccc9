package route_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/kv/kvindex"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/queue"
	"github.com/stator-project/stator/internal/route/serving"
)

// sleeper is a router for a model without workers, one of which starts in a minute.
type sleeper struct {
	*testing.T
	*route.Router
	fleet *fleet.Fleet
	start route.Start
	urged int
	ready chan *decision.Decision
}

func newSleeper(t *testing.T, cfg serving.Config) *sleeper {
	x := kvindex.New(kvindex.Config{MaxBytes: 1 << 20})
	s := &sleeper{T: t, fleet: newFleet(t, x, 0), start: route.Start{After: time.Minute}, ready: make(chan *decision.Decision, 64)}
	s.Router = route.New(route.Config{
		Seed: 1, Starts: func(string) route.Start { return s.start }, Waits: func() { s.urged++ },
	}, s.fleet, x)
	cfg.Prompt, cfg.BlockSize = runes{}, 4
	if cfg.Queue == nil {
		cfg.Queue = &queue.Config{}
	}
	if err := s.SetModels(map[string]*serving.Config{"sim": &cfg}); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask decides about a request after some seconds.
func (s *sleeper) ask(at int) *decision.Decision {
	req := completion(fmt.Sprint("a prompt of second ", at))
	req.Ready = func(d *decision.Decision) { s.ready <- d }
	return s.Decide(req, start.Add(time.Duration(at)*time.Second))
}

// put has a worker in a state.
func (s *sleeper) put(name string, role fleet.Role, state fleet.State) {
	s.Helper()
	_, err := s.fleet.Put(fleet.Worker{Name: name, Model: "sim", Role: role, Address: "10.0.0.1:8000", Ranks: 1, State: state})
	if err != nil {
		s.Fatal(err)
	}
}

func (s *sleeper) wake(at int) { s.Wake(start.Add(time.Duration(at) * time.Second)) }

// TestHeldUntilAWorkerStarts: requests for a model without workers wait for the one that starts, whatever its state until it is ready. The
// planner is told at once of the first one alone, and nothing is left behind.
func TestHeldUntilAWorkerStarts(t *testing.T) {
	s := newSleeper(t, serving.Config{Hold: time.Hour})
	for i := range 40 {
		if d := s.ask(i); d.Outcome != decision.Queued || !strings.Contains(d.String(), "no worker was ready, and one started") {
			t.Fatalf("%s", d)
		}
	}
	if s.urged != 1 {
		t.Errorf("the planner was told %d times", s.urged)
	}
	for i, state := range []fleet.State{fleet.Starting, fleet.Down, fleet.Starting} {
		s.put("a", fleet.Aggregated, state)
		s.wake(41 + i)
	}
	if n := s.Stats().Waiting; n != 40 {
		t.Fatalf("%d wait", n)
	}
	s.put("a", fleet.Aggregated, fleet.Ready)
	s.wake(60)
	for i := range 40 {
		d := <-s.ready
		if d.Outcome != decision.Picked || d.Worker != "a" || d.Wait == nil || !d.Wait.Starting {
			t.Fatalf("request %d: %s", i, d)
		}
		s.End(d.ID, start.Add(time.Minute))
	}
	if d := s.ask(61); d.Outcome != decision.Picked || d.Wait != nil {
		t.Errorf("after the start: %s", d)
	}
	if st := s.Stats(); st.Waiting != 0 || st.Bookings.Open != 1 {
		t.Errorf("%+v", st)
	}
}

// TestRetryAfterOfAStart: a request that cannot wait, or not any longer, learns when the worker will be ready.
func TestRetryAfterOfAStart(t *testing.T) {
	refused := func(t *testing.T, d *decision.Decision, status int, after time.Duration, text string) {
		t.Helper()
		if d.Outcome != decision.Refused || d.Err.Status != status || d.RetryAfter != after || !strings.Contains(d.Err.Message, text) {
			t.Errorf("retry after %s: %s", d.RetryAfter, d)
		}
	}

	t.Run("the start takes longer than the hold", func(t *testing.T) {
		s := newSleeper(t, serving.Config{Hold: 10 * time.Second})
		s.start.After = 5 * time.Minute
		s.ask(0)
		s.wake(10)
		refused(t, <-s.ready, 503, 290*time.Second, "none has become ready in 10.0 s, while this request waited. Try again in 290 seconds")
		s.ask(100) // the start goes on
		s.wake(110)
		refused(t, <-s.ready, 503, 190*time.Second, "none has become ready")
		s.ask(400) // it should have been over: another one begins
		s.wake(410)
		refused(t, <-s.ready, 503, 290*time.Second, "none has become ready")
	})
	t.Run("the worker does not come", func(t *testing.T) {
		s := newSleeper(t, serving.Config{Hold: 2 * time.Minute})
		s.ask(0)
		s.put("a", fleet.Aggregated, fleet.Down)
		s.wake(119)
		s.wake(120)
		refused(t, <-s.ready, 503, 10*time.Second, "none has become ready in 120.0 s")
	})
	t.Run("the queue is full", func(t *testing.T) {
		s := newSleeper(t, serving.Config{Hold: time.Hour, Busy: serving.Busy{Status: 529}, Queue: &queue.Config{Limit: queue.Limit{Requests: 1}}})
		s.ask(0)
		refused(t, s.ask(20), 503, 40*time.Second, "No worker is ready, and the queue is full: its limit is 1 requests. Try again in 40 seconds")
	})
	t.Run("its deadline comes first", func(t *testing.T) {
		s := newSleeper(t, serving.Config{Hold: time.Hour})
		req := completion("a prompt")
		req.Ready = func(*decision.Decision) {}
		req.Hints = &prompt.Hints{Rank: -1, Deadline: 30 * time.Second}
		refused(t, s.Decide(req, start), 503, 30*time.Second, "expected after 60000 ms, and this request allows 30000 ms")
	})
	t.Run("nothing starts", func(t *testing.T) {
		s := newSleeper(t, serving.Config{Hold: time.Hour})
		s.start = route.Start{Not: "no planner is there that would start one"}
		refused(t, s.ask(0), 503, 10*time.Second, "No worker is ready for the model `sim`: it has none, and no planner is there that would")
		s.put("a", fleet.Aggregated, fleet.Starting)
		refused(t, s.ask(1), 503, 2*time.Second, "1 starting")
	})
	t.Run("requests are not held", func(t *testing.T) {
		s := newSleeper(t, serving.Config{MaxWait: time.Hour})
		refused(t, s.ask(0), 503, 10*time.Second, "it has none. Try")
	})
}

// TestHeldRequestsLeave: a client that leaves while no worker is there leaves nothing behind. A model that holds requests has none wait for
// a worker that is busy.
func TestHeldRequestsLeave(t *testing.T) {
	s := newSleeper(t, serving.Config{Hold: time.Hour, Busy: serving.Busy{PrefillTokens: 1}})
	req := completion("a prompt")
	req.Ready = func(*decision.Decision) { t.Error("decided after the client has left") }
	if d := s.Decide(req, start); d.Outcome != decision.Queued || !s.Cancel(req.Ticket) {
		t.Fatalf("%s", d)
	}
	s.put("a", fleet.Aggregated, fleet.Ready)
	s.wake(1)
	if d := s.ask(2); d.Outcome != decision.Picked {
		t.Fatalf("%s", d)
	}
	if d := s.ask(3); d.Reason != decision.ReasonBusy {
		t.Errorf("%s", d)
	}
	if st := s.Stats(); st.Waiting != 0 || st.Cancelled != 1 || st.Bookings.Open != 1 {
		t.Errorf("%+v", st)
	}
}

// TestHeldForDecodeWorkers: the plan has the roles of workers that are not there. A request waits until the decode worker is ready, and a
// drain that takes the last worker away does not refuse the requests that wait.
func TestHeldForDecodeWorkers(t *testing.T) {
	s := newSleeper(t, serving.Config{Hold: time.Hour})
	s.start.Decode = true
	if d := s.ask(0); d.Outcome != decision.Queued || d.Role != fleet.Decode {
		t.Fatalf("%s: %s", d.Role, d)
	}
	s.put("p", fleet.Prefill, fleet.Ready)
	s.wake(1)
	if n := s.Stats().Waiting; n != 1 {
		t.Fatalf("%d wait for the decode worker", n)
	}
	s.put("d", fleet.Decode, fleet.Draining)
	s.wake(2)
	s.fleet.Remove("d")
	s.wake(3)
	s.put("d", fleet.Decode, fleet.Ready)
	s.wake(4)
	if d := <-s.ready; d.Outcome != decision.Picked || d.Worker != "d" {
		t.Errorf("%s", d)
	}
}
