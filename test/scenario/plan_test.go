package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/testkit"
	"github.com/stator-project/stator/xds"
)

// TestPlanReachesEnvoyAndRouter: the weights and drains of a plan on the bus reach a real Envoy, and the router picks no drained
// worker. A plan of an earlier term changes nothing, and neither does the loss of the bus.
func TestPlanReachesEnvoyAndRouter(t *testing.T) {
	t.Parallel()
	xdsAdmin := freeAddress(t)
	p := startPartsFor(t, partsSettings{workers: 3, xds: []string{"--admin-address", xdsAdmin}})
	b := testkit.JoinBus(t, bus.Config{URL: p.busURL, Cluster: "default"})
	at := map[string]string{} // addresses by name
	eventually(t, "the router has three workers", func() error {
		for _, r := range p.fleet() {
			at[r.Worker] = r.Address
		}
		if len(at) < 3 {
			return errNotYet
		}
		return nil
	})
	for name := range at {
		p.awaitState(name, "ready") // the drained one may be the first that is
	}
	names := slices.Sorted(maps.Keys(at))
	publish := func(term uint64, workers ...plan.Planned) {
		t.Helper()
		err := b.PublishPlan(t.Context(), plan.Plan{Term: term, Pools: []plan.Pool{{Model: "sim", Replicas: 3, Workers: workers}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Those of the planner are milliseconds since 1970, and earlier. One of more than an hour ahead would be refused.
	term := uint64(time.Now().Add(30 * time.Minute).UnixMilli())
	heavy, light, drained := names[0], names[1], names[2]
	want := map[string]string{at[heavy]: "300 healthy", at[light]: "25 healthy", at[drained]: "100 /eds_status_draining"}
	publish(term, plan.Planned{Name: heavy, Weight: 300}, plan.Planned{Name: light, Weight: 25},
		plan.Planned{Name: drained, Weight: 100, Drain: true})
	p.awaitEndpoints(want)
	awaitAccepted(t, xdsAdmin)
	p.awaitState(drained, "draining")
	for i := range 12 {
		if d := p.decision(p.chat([]message{{"user", fmt.Sprintf("question %d", i)}}, 1).decision); d.Worker == drained {
			t.Errorf("the router picked %s, which the plan drains", drained)
		}
	}

	// A planner that does not lead any more cannot replace the plan.
	err := b.PublishPlan(t.Context(), plan.Plan{Term: term - 1})
	if !errors.Is(err, bus.ErrEarlierTerm) {
		t.Errorf("a plan of an earlier term: %v", err)
	}
	p.awaitState(drained, "draining")
	p.awaitEndpoints(want)
	p.bus.kill()
	p.chat([]message{{"user", "is the plan still there?"}}, 1)
	p.awaitState(drained, "draining")
	p.awaitEndpoints(want)
}

// awaitAccepted waits until the only Envoy of a control plane has accepted the last version of each type that it was sent.
func awaitAccepted(t *testing.T, admin string) {
	t.Helper()
	eventually(t, "Envoy has accepted all that it was sent", func() error {
		text, err := get("http://" + admin + "/debug/xds?format=json")
		if err != nil {
			return err
		}
		var page struct {
			Failures []struct{}
			Envoys   []struct {
				Envoy string
				Types []struct {
					Type, Sent, Accepted string
					Refusal              *struct{}
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatal(err)
		}

		if len(page.Failures) > 0 || len(page.Envoys) != 1 || page.Envoys[0].Envoy != "gateway-0" || len(page.Envoys[0].Types) != 4 {
			return errors.New(text)
		}
		for _, kind := range page.Envoys[0].Types {
			if kind.Accepted != kind.Sent || kind.Refusal != nil {
				return fmt.Errorf("%+v", kind)
			}
		}
		return nil
	})
}

// awaitState waits until the router has a worker in this state.
func (p *parts) awaitState(worker, state string) {
	p.t.Helper()
	eventually(p.t, worker+" is "+state, func() error {
		for _, r := range p.fleet() {
			if r.Worker == worker && r.State == state {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.fleet())
	})
}

// awaitEndpoints waits until the pool of Envoy has these weights and health flags, by address.
func (p *parts) awaitEndpoints(want map[string]string) {
	p.t.Helper()
	eventually(p.t, "Envoy has the weights", func() error {
		admin, err := p.envoy.AdminAddress()
		if err != nil {
			return err
		}
		text, err := get("http://" + admin + "/clusters")
		if err != nil {
			return err
		}

		values := map[string]string{}
		for line := range strings.Lines(text) {
			part := strings.Split(strings.TrimSpace(line), "::") // cluster, address, name, value
			if len(part) == 4 && part[0] == xds.PoolName("sim") {
				values[part[1]+" "+part[2]] = part[3]
			}
		}
		for address, state := range want {
			if got := values[address+" weight"] + " " + values[address+" health_flags"]; got != state {
				return fmt.Errorf("%s has %q, want %q", address, got, state)
			}
		}
		return nil
	})
}
