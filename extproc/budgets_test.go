package extproc

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/test/testkit"
)

// budgetRouter is a router of tenants with a budget of 1,000 tokens a day.
type budgetRouter struct {
	*Router
	metrics *prometheus.Registry
	log     *testkit.Log
	stop    func()
}

// startBudgetRouter starts a router. Without a server it has no bus.
func startBudgetRouter(t *testing.T, server *bus.Embedded) *budgetRouter {
	t.Helper()
	settings, err := config.Parse([]byte(`{apiVersion: stator.dev/v1alpha1, kind: Stator,
		gateway: {tenantHeader: x-tenant, answerTokens: true, limits: {tokensPerDay: 1000, tenants: [{name: free}]}},
		models: [{name: sim, path: "builtin:sim", workers: [{name: w, address: "10.0.0.1:80", healthPath: none, ranks: 1}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r := &budgetRouter{metrics: prometheus.NewRegistry(), log: &testkit.Log{}}
	r.log.PrintOnFailure(t)
	r.Router, err = New(Config{Settings: settings, Log: r.log.Logger(), Metrics: r.metrics})
	if err != nil {
		t.Fatal(err)
	}

	run := RunConfig{Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }}
	if server != nil {
		run.Bus = testkit.JoinBus(t, bus.Config{Embedded: server, Log: r.log.Logger(), Lost: r.BusLost})
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, run) }()
	r.stop = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	testkit.Eventually(t, "the router listens", func() bool { return r.Listening() == nil })
	return r
}

// ask sends a request of a tenant, and returns the answer; nil if it goes to a worker.
func (r *budgetRouter) ask(tenant, path string) *exchange.Answer {
	x := r.doors.requests.Begin(exchange.Origin{Source: "envoy"})
	defer x.Recycle()
	return x.OnHeaders(exchange.Head{Method: "POST", Path: path, Tenant: tenant}, time.Now()).Answer
}

// used returns the metric of the tokens that a tenant has used.
func (r *budgetRouter) used(t *testing.T, tenant string) (tokens float64) {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "stator_tenant_budget_used_tokens" && m.GetLabel()[1].GetValue() == tenant {
				tokens = m.GetGauge().GetValue()
			}
		}
	}
	return tokens
}

// TestRoutersShareBudgets: the tokens of a tenant at all routers count together, also at a router that starts when all others have ended. A
// request beyond the budget is refused at its headers, in the form of its API, until the next day begins.
func TestRoutersShareBudgets(t *testing.T) {
	testkit.NoLeaks(t)
	server := testkit.Server(t)
	a, b := startBudgetRouter(t, server), startBudgetRouter(t, server)
	if answer := a.ask("red", "/v1/completions"); answer != nil {
		t.Fatalf("the first request: %s", answer.Body)
	}
	day := time.Now().UTC().Day()
	a.doors.requests.ChargeAnswer("red", 600, time.Now())
	b.doors.requests.ChargeAnswer("red", 399, time.Now())
	b.doors.requests.ChargeAnswer("free", 5000, time.Now())
	testkit.Eventually(t, "both routers know the tokens of both", func() bool { return a.used(t, "red") == 999 && b.used(t, "red") == 999 })

	b.doors.requests.ChargeAnswer("red", 1, time.Now())
	b.stop() // its last tokens are stored
	a.stop()
	c := startBudgetRouter(t, server)
	testkit.Eventually(t, "a router that starts knows the tokens", func() bool { return c.used(t, "red") == 1000 })
	for path, form := range map[string]string{
		"/v1/completions": `{"error":{"message":"Your budget of tokens for this day of UTC is used up. The next one begins in`,
		"/v1/messages":    `{"type":"error","error":{"type":"rate_limit_error",`,
	} {
		answer := c.ask("red", path)
		if answer == nil || answer.Status != 429 || answer.Detail != "insufficient_quota" || !strings.HasPrefix(string(answer.Body), form) {
			t.Fatalf("%s: %+v", path, answer)
		}
		if wait := answer.RetryAfter; wait <= 0 || wait > 24*time.Hour || time.Now().Add(wait).UTC().Day() == day {
			t.Errorf("the client is to wait for %s, which is not the next day", wait)
		}
	}
	for _, tenant := range []string{"blue", "free", ""} {
		if answer := c.ask(tenant, "/v1/completions"); answer != nil {
			t.Errorf("tenant %q: %s", tenant, answer.Body)
		}
	}
	err := testutil.GatherAndCompare(c.metrics, strings.NewReader(`
# HELP stator_tenant_budget_tokens The tenant's budget of tokens for the period: day or month. Of the tenants that have used tokens, the 1,024 that have used the most.
# TYPE stator_tenant_budget_tokens gauge
stator_tenant_budget_tokens{period="day",tenant="red"} 1000
# HELP stator_tenant_budget_uncounted_tokens_total Tokens that count for no budget, because this router has no room for the sums of more tenants.
# TYPE stator_tenant_budget_uncounted_tokens_total counter
stator_tenant_budget_uncounted_tokens_total 0
`), "stator_tenant_budget_tokens", "stator_tenant_budget_uncounted_tokens_total")
	if err != nil {
		t.Error(err)
	}
}

// TestBudgetsWithoutABus: a router without a bus counts alone, and says so. One whose bus is away goes on with the sums that it knows.
func TestBudgetsWithoutABus(t *testing.T) {
	const alone = "counted in the memory of this router alone"
	r := startBudgetRouter(t, nil)
	r.doors.requests.ChargeAnswer("red", 1000, time.Now())
	if answer := r.ask("red", "/v1/completions"); answer == nil || !r.log.Contains(alone) {
		t.Errorf("%v; the log is %s", answer, r.log)
	}

	server := testkit.Server(t)
	a := startBudgetRouter(t, server)
	a.doors.requests.ChargeAnswer("red", 700, time.Now())
	testkit.Eventually(t, "the tokens are shared", func() bool { return stored(t, server) == 700 })
	server.Close()
	a.doors.requests.ChargeAnswer("red", 300, time.Now())
	if answer := a.ask("red", "/v1/completions"); answer == nil || a.log.Contains(alone) {
		t.Errorf("while the bus is away: %v", answer)
	}
	testkit.Eventually(t, "a warning", func() bool { return a.log.Contains("other routers do not know the tokens") })
}

// stored returns the tokens of red on the bus.
func stored(t *testing.T, server *bus.Embedded) (tokens int64) {
	t.Helper()
	err := testkit.JoinBus(t, bus.Config{Embedded: server}).UpdateSpent(t.Context(), func(there bus.Spent) (bus.Spent, bool) {
		tokens = there.Tokens["red"][0]
		return there, false
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}
