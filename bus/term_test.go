package bus_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/bus/busv1"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/testkit"
)

// TestTermsFarAhead: a plan or an assignment whose term is far ahead of the clock has no effect, and does not keep later ones from being
// published.
func TestTermsFarAhead(t *testing.T) {
	l := newLockedBus(t)
	admin := l.attack("admin", "password-of-admin")
	planner, router := l.join("planner", "password-of-p"), l.join("router", "password-of-r")
	plans, assignments := make(chan plan.Plan, 9), make(chan bus.Assignment, 9)
	running(t, func(ctx context.Context) error { return router.WatchPlan(ctx, func(p plan.Plan) { plans <- p }) })
	agent := l.join("agent-a", "password-of-a")
	running(t, func(ctx context.Context) error {
		return agent.WatchAssignment(ctx, "a", func(a bus.Assignment) { assignments <- a }, func() {})
	})

	for _, term := range []uint64{1 << 62, 1<<64 - 1, uint64(time.Now().Add(2 * time.Hour).UnixMilli())} {
		forged, err := proto.Marshal(&busv1.Plan{Term: term})
		if err != nil {
			t.Fatal(err)
		}
		assigned, err := proto.Marshal(&busv1.Assignment{Term: term, Node: "a"})
		if err != nil {
			t.Fatal(err)
		}
		for subject, data := range map[string][]byte{"$KV.stator-test-plan.current": forged, "$KV.stator-test-assign.a": assigned} {
			if _, err := admin.Request(subject, data, time.Second); err != nil {
				t.Fatal(err)
			}
		}

		right := uint64(time.Now().UnixMilli())
		if err := planner.PublishPlan(t.Context(), plan.Plan{Term: right}); err != nil {
			t.Errorf("after term %d: %v", term, err)
		}
		if err := planner.PutAssignment(t.Context(), bus.Assignment{Term: right, Node: "a"}); err != nil {
			t.Errorf("after term %d: %v", term, err)
		}
		testkit.Eventually(t, "the right plan arrives", func() bool { return len(plans) > 0 && len(assignments) > 0 })
		if p, a := <-plans, <-assignments; p.Term != right || a.Term != right {
			t.Errorf("terms %d and %d arrived, want %d", p.Term, a.Term, right)
		}
	}
}
