package extproc

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stator-project/stator/bus"
	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/internal/metric"
)

// shareEvery is the interval at which a router adds the tokens of its tenants to the sums of all routers, and reads these. In that time a
// tenant may use more than its budget by other routers.
const shareEvery = 3 * time.Second

// limits returns the limits and budgets of tenants.
func (r *Router) limits() *quota.Settings { return &r.doors.requests.Settings().Limits }

// routers returns the number of routers that decide, this one included.
func (r *Router) routers() int { return 1 + r.peers.Live() }

// followBudgets shares the used tokens of tenants until ctx ends:
//
//	event                         effect
//	this router starts            it reads the sums of before at once, and may admit too much until then
//	the bus is away               it goes on with the sums that it knows and its own tokens
//	the bus has lost its memory   it writes the sums that it knows
//	this router ends              it writes its last tokens: see Run. Of a router that dies those of the last interval are lost
func (r *Router) followBudgets(ctx context.Context, b *bus.Bus) {
	tick := time.NewTicker(shareEvery)
	defer tick.Stop()
	var warned time.Time
	for {
		err := r.shareBudgets(ctx, b)
		if now := time.Now(); err != nil && now.Sub(warned) >= warnEvery {
			warned = now
			r.log.Warn("other routers do not know the tokens that tenants use here of their budgets; trying again", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// shareBudgets shares the used tokens of tenants, once, if there are budgets. It is called by two goroutines when the router ends, and
// Merge and Shared belong together.
func (r *Router) shareBudgets(ctx context.Context, b *bus.Bus) error {
	if !r.limits().HasBudgets() {
		return nil
	}
	r.sharing.Lock()
	defer r.sharing.Unlock()
	return b.UpdateSpent(ctx, func(there bus.Spent) (bus.Spent, bool) {
		next, changed := r.quotas.Merge(quota.Sums(there), time.Now())
		return bus.Spent(next), changed
	}, func(stored bus.Spent) { r.quotas.Shared(quota.Sums(stored)) })
}

// The budgets of tenants, as far as this router knows the tokens of the other routers.
var (
	budgetTokens = metric.Desc("tenant", "budget_tokens",
		"The tenant's budget of tokens for the period: day or month. Of the tenants that have used tokens, "+
			"the 1,024 that have used the most.", "tenant", "period")
	budgetUsed = metric.Desc("tenant", "budget_used_tokens",
		"Tokens of the budget that the tenant has used in the period, at all routers that share a bus.", "tenant", "period")
	budgetUncounted = metric.Desc("tenant", "budget_uncounted_tokens_total",
		"Tokens that count for no budget, because this router has no room for the sums of more tenants.")
)

// NewBudgetCollector returns a collector of the budgets of tenants: see [quota.Table.Usage].
func NewBudgetCollector(usage func() (list []quota.Usage, uncounted int64)) prometheus.Collector {
	// Tenants come and go, so the collector is unchecked.
	return metric.Collector(func(out metric.Scrape) {
		list, uncounted := usage()
		for _, u := range list {
			out.Gauge(budgetTokens, float64(u.Budget), u.Tenant, string(u.Period))
			out.Gauge(budgetUsed, float64(u.Used), u.Tenant, string(u.Period))
		}
		if len(list) > 0 {
			out.Counter(budgetUncounted, uint64(uncounted))
		}
	})
}

// budgets returns the used tokens of tenants, for metrics.
func (r *Router) budgets() ([]quota.Usage, int64) {
	return r.quotas.Usage(r.limits(), r.routers(), time.Now())
}
