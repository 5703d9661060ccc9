package quota

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	// MaxBudget is the greatest budget in tokens.
	MaxBudget = 1_000_000_000_000_000
	// maxSum bounds a sum of tokens, so that no sum of two overflows.
	maxSum = 1 << 60

	// maxSums bounds the bytes of all sums on the bus, where a value has 512 KiB at most. A tenant takes its name and sumBytes.
	maxSums  = 500_000
	sumBytes = 32
	// maxReported bounds the tenants with metrics.
	maxReported = 1024

	secondsOfDay = 24 * 60 * 60
)

// The periods of budgets, as indices.
const (
	ofDay = iota
	ofMonth
	periods
)

// Sums are the tokens that tenants have used of their budgets, as routers share them.
type Sums struct {
	// Day counts days since 1970 and Month months since the year 0, both by UTC.
	Day, Month int64
	// Tokens has the sums of the day and of the month for each tenant.
	Tokens map[string][periods]int64
}

// ledger has the tokens of tenants in the present day and month. The mutex of its Table guards it.
type ledger struct {
	number [periods]int64 // of the present periods, as in Sums
	used   map[string]*[periods]used
	bytes  int  // of all sums on the bus, at most maxSums
	shared bool // the sums of other routers are known
	// uncounted are the tokens of tenants for which there is no room.
	uncounted int64
}

// used are the tokens of a tenant in one period: those that the shared sums have, and further ones of this router.
type used struct{ shared, own int64 }

// budgets returns the budgets of a tenant by period.
func (l *Limits) budgets() [periods]int64 { return [periods]int64{l.TokensPerDay, l.TokensPerMonth} }

// HasBudgets reports whether a tenant has a budget.
func (s *Settings) HasBudgets() bool {
	has := s.All.budgets() != [periods]int64{}
	for _, own := range s.Own {
		has = has || own.budgets() != [periods]int64{}
	}
	return has
}

// total returns the tokens of all routers. While their sums are not known, each is taken to have as many as this one.
func (l *ledger) total(u used, routers int) int64 {
	if l.shared {
		return u.shared + u.own
	}
	return min(u.own, maxSum/int64(max(routers, 1))) * int64(max(routers, 1))
}

// roll begins new periods. A clock that steps back over midnight begins none.
func (l *ledger) roll(now time.Time) {
	day := now.Unix() / secondsOfDay
	if ahead := l.number[ofDay] - day; ahead == 0 || ahead == 1 {
		return
	}
	year, month, _ := now.UTC().Date()
	next := [periods]int64{day, int64(year)*12 + int64(month) - 1}
	for tenant, u := range l.used {
		for p := range u {
			if next[p] != l.number[p] {
				u[p] = used{}
			}
		}
		if *u == ([periods]used{}) {
			delete(l.used, tenant)
			l.bytes -= len(tenant) + sumBytes
		}
	}
	l.number = next
}

// exceeded returns the budget that a tenant has used up, and the time until its period ends.
func (l *ledger) exceeded(limits *Limits, tenant string, routers int, now time.Time) (Exceeded, time.Duration) {
	budgets := limits.budgets()
	if budgets == ([periods]int64{}) {
		return Nothing, 0
	}
	l.roll(now)
	u := l.used[strings.ToValidUTF8(tenant, "?")]
	if u == nil {
		return Nothing, 0
	}
	year, month, day := now.UTC().Date()
	switch {
	case budgets[ofMonth] > 0 && l.total(u[ofMonth], routers) >= budgets[ofMonth]:
		return Month, time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).Sub(now)
	case budgets[ofDay] > 0 && l.total(u[ofDay], routers) >= budgets[ofDay]:
		return Day, time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC).Sub(now)
	}
	return Nothing, 0
}

// add counts tokens of a tenant in the periods for which it has a budget: MaxTokens of one prompt or answer at most, because engines write
// these numbers.
func (l *ledger) add(limits *Limits, tenant string, tokens int64, now time.Time) {
	budgets := limits.budgets()
	if budgets == ([periods]int64{}) {
		return
	}
	l.roll(now)
	tokens = min(tokens, MaxTokens)
	u := l.of(tenant)
	if u == nil {
		l.uncounted = min(l.uncounted+tokens, maxSum)
		return
	}
	for p := range budgets {
		if budgets[p] > 0 {
			u[p].own = min(u[p].own+tokens, maxSum)
		}
	}
}

// of returns the used tokens of a tenant; nil if there is no room for another one. Names of clients may have any bytes, and metrics take
// text alone.
func (l *ledger) of(tenant string) *[periods]used {
	tenant = strings.ToValidUTF8(tenant, "?")
	u := l.used[tenant]
	if u == nil && l.bytes+len(tenant)+sumBytes <= maxSums {
		u = &[periods]used{}
		l.used[strings.Clone(tenant)] = u
		l.bytes += len(tenant) + sumBytes
	}
	return u
}

// Merge adds this router's tokens to the sums that routers share. It returns those sums, and whether they must replace the ones that are
// there. Sums of another day or month than the present one count as none. One that is lower than it was before is raised again: the bus
// has lost its memory. If the sums have been stored, or may have been, the caller calls Shared with them before it calls Merge again.
func (t *Table) Merge(there Sums, now time.Time) (next Sums, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.ledger
	l.roll(now)
	l.shared = true
	isPresent := [periods]bool{there.Day == l.number[ofDay], there.Month == l.number[ofMonth]}
	for tenant, n := range there.Tokens {
		if !(isPresent[ofDay] && n[ofDay] > 0 || isPresent[ofMonth] && n[ofMonth] > 0) {
			continue
		}
		u := l.of(tenant)
		for p := range n {
			if u != nil && isPresent[p] {
				u[p].shared = max(u[p].shared, min(n[p], maxSum))
			}
		}
	}

	next = Sums{Day: l.number[ofDay], Month: l.number[ofMonth], Tokens: make(map[string][periods]int64, len(l.used))}
	for tenant, u := range l.used {
		n, had := [periods]int64{}, there.Tokens[tenant]
		for p := range u {
			n[p] = min(u[p].shared+u[p].own, maxSum)
			changed = changed || n[p] > 0 && !(isPresent[p] && n[p] == had[p])
		}
		next.Tokens[tenant] = n
	}
	return next, changed
}

// Shared records that the sums of the last Merge have been stored.
func (t *Table) Shared(stored Sums) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.ledger
	for tenant, n := range stored.Tokens {
		u := l.used[tenant]
		for p, number := range [periods]int64{stored.Day, stored.Month} {
			if u != nil && number == l.number[p] {
				u[p].own -= n[p] - u[p].shared
				u[p].shared = n[p]
			}
		}
	}
}

// Usage is a tenant's budget and the used part of it, in tokens. Period is Day or Month.
type Usage struct {
	Tenant       string
	Period       Exceeded
	Budget, Used int64
}

// Usage returns the budgets of the tenants that have used tokens: of maxReported tenants at most, those that have used the most. uncounted
// are the tokens of tenants for which there was no room.
func (t *Table) Usage(s *Settings, routers int, now time.Time) (list []Usage, uncounted int64) {
	list, uncounted = t.usage(s, routers, now)
	slices.SortFunc(list, func(a, b Usage) int { return cmp.Or(cmp.Compare(b.Used, a.Used), strings.Compare(a.Tenant, b.Tenant)) })
	return list[:min(len(list), periods*maxReported)], uncounted
}

// usage returns the budgets of all tenants that have used tokens. They are sorted when no request waits for mu.
func (t *Table) usage(s *Settings, routers int, now time.Time) (list []Usage, uncounted int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := &t.ledger
	l.roll(now)
	for tenant, u := range l.used {
		limits := s.of(tenant)
		for p, budget := range limits.budgets() {
			if budget > 0 {
				list = append(list, Usage{tenant, [periods]Exceeded{Day, Month}[p], budget, l.total(u[p], routers)})
			}
		}
	}
	return list, l.uncounted
}
