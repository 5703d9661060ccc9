// Package quota bounds how many requests and tokens each tenant may have a minute, and how many tokens a day and a month.
//
// A tenant has a bucket for each limit, as large as the limit, and each is filled evenly within a minute. A request takes one from the
// first at its headers, and is refused if there is none. The tokens of its prompt are known after its decision, and those of its answer
// at its end: then they are taken from the other buckets, which may go below zero. A request is refused while one of these
// is empty or below. So all rates are exact over time, no refused request costs a body or a tokenization, and a prompt or an answer larger
// than the limit is served once, and waited for afterwards.
//
// # State
//
// A bucket is one number: the time at which it is full again. It holds what would be filled until a minute after that time. A tenant whose
// buckets are full has no entry.
//
//	event                          full again at
//	a request is admitted          a minute / limit later; refused, and unchanged, if that is more than a minute from now
//	a prompt or an answer of n     n minutes / limit later, at most a day from now
//	  tokens
//
// With several routers each admits its share: what a request takes is multiplied by their number.
//
// # Budgets
//
// A budget of a day or a month, by UTC, is a sum of the tokens of prompts and answers. Routers share the sums: each adds its own tokens to
// them every few seconds, by [Table.Merge]. A tenant is refused when its sum has reached its budget.
//
// # Concurrency
//
// All methods are safe for concurrent use. One mutex guards all buckets, because a visit takes some 50 ns.
package quota

import (
	"strings"
	"sync"
	"time"
)

// Bounds of limits and of memory.
const (
	// MaxRequests and MaxTokens are the greatest limits a minute. With more requests, rounding would let one too many pass.
	MaxRequests = 100_000
	MaxTokens   = 1_000_000_000

	// maxTenants bounds the tenants whose buckets are not full. Beyond it an arbitrary one gets full buckets.
	maxTenants = 65_536
	// maxName bounds the bytes of a name. Tenants whose names begin with the same ones share buckets.
	maxName = 128
	// maxDebt bounds how long a tenant waits for the tokens that it has sent.
	maxDebt = 24 * time.Hour
)

// Limits are the bounds of a tenant. 0 is no bound.
type Limits struct {
	// RequestsPerMinute is at most MaxRequests. PromptTokensPerMinute and AnswerTokensPerMinute are at most MaxTokens.
	RequestsPerMinute, PromptTokensPerMinute, AnswerTokensPerMinute int64
	// TokensPerDay and TokensPerMonth are budgets, of at most MaxBudget.
	TokensPerDay, TokensPerMonth int64
}

// Settings are the limits of all tenants.
type Settings struct {
	// All are the limits of a tenant without an entry in Own, by its name.
	All Limits
	Own map[string]Limits
}

// IsOn reports whether a tenant has a limit.
func (s *Settings) IsOn() bool { return s.All != (Limits{}) || len(s.Own) > 0 }

// of returns the limits of a tenant.
func (s *Settings) of(tenant string) Limits {
	if own, has := s.Own[tenant]; has {
		return own
	}
	return s.All
}

// Exceeded names the limit that refuses a request.
type Exceeded string

// The limits.
const (
	Nothing  Exceeded = ""
	Requests Exceeded = "requests"
	Tokens   Exceeded = "tokens"
	Day      Exceeded = "day"   // the budget of a day
	Month    Exceeded = "month" // the budget of a month
)

// Table has the buckets of all tenants. Create it with [New].
type Table struct {
	mu      sync.Mutex
	buckets map[string]*buckets // guarded by mu; at most maxTenants
	swept   time.Time           // guarded by mu; when full buckets were last removed
	ledger  ledger              // guarded by mu
}

// buckets are those of a tenant: the times at which they are full again.
type buckets struct{ requests, prompts, answers time.Time }

// New returns a table in which all buckets are full, and no tenant has used tokens of its budget.
func New() *Table {
	return &Table{buckets: map[string]*buckets{}, ledger: ledger{used: map[string]*[periods]used{}}}
}

// Admit takes a request from the bucket of its tenant. It returns Nothing, or the limit that refuses the request, and the time after
// which it is worth another attempt. routers is the number of routers that decide, at least 1.
func (t *Table) Admit(s *Settings, tenant string, routers int, now time.Time) (Exceeded, time.Duration) {
	limits := s.of(tenant)
	tenant = tenant[:min(len(tenant), maxName)]
	if limits == (Limits{}) {
		return Nothing, 0
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	if why, wait := t.ledger.exceeded(&limits, tenant, routers, now); why != Nothing {
		return why, wait
	}
	b := t.of(tenant, now)
	prompts := repaid(limits.PromptTokensPerMinute, b.prompts, routers, now)
	answers := repaid(limits.AnswerTokensPerMinute, b.answers, routers, now)
	if wait := max(prompts, answers); wait > 0 {
		return Tokens, wait
	}
	if limits.RequestsPerMinute == 0 {
		return Nothing, 0
	}

	full := now.Add(max(0, b.requests.Sub(now)) + take(limits.RequestsPerMinute, routers))
	if wait := full.Sub(now) - time.Minute; wait > 0 {
		return Requests, wait
	}
	b.requests = full
	return Nothing, 0
}

// repaid returns the time until a bucket of tokens has one again; 0 if it has one, or if there is no limit.
func repaid(limit int64, full time.Time, routers int, now time.Time) time.Duration {
	debt := max(0, full.Sub(now)) - time.Minute
	if limit == 0 || debt < 0 {
		return 0
	}
	return debt + take(limit, routers)
}

// ChargePrompt takes the tokens of a prompt from the bucket and the budgets of its tenant.
func (t *Table) ChargePrompt(s *Settings, tenant string, tokens int64, routers int, now time.Time) {
	limits := s.of(tenant)
	t.charge(&limits, limits.PromptTokensPerMinute, func(b *buckets) *time.Time { return &b.prompts }, tenant, tokens, routers, now)
}

// ChargeAnswer takes the tokens of an answer from the bucket and the budgets of its tenant.
func (t *Table) ChargeAnswer(s *Settings, tenant string, tokens int64, routers int, now time.Time) {
	limits := s.of(tenant)
	t.charge(&limits, limits.AnswerTokensPerMinute, func(b *buckets) *time.Time { return &b.answers }, tenant, tokens, routers, now)
}

// charge takes tokens from the budgets, and from the bucket that which returns.
func (t *Table) charge(of *Limits, limit int64, which func(*buckets) *time.Time, tenant string, tokens int64, routers int, now time.Time) {
	tenant = tenant[:min(len(tenant), maxName)]
	if tokens <= 0 || limit == 0 && of.budgets() == ([periods]int64{}) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledger.add(of, tenant, tokens, now)
	if limit == 0 {
		return
	}

	full := which(t.of(tenant, now))
	one := float64(time.Minute) / float64(limit) * float64(max(routers, 1)) // a nanosecond is too coarse for one of a billion
	owed := float64(max(0, full.Sub(now))) + float64(tokens)*one
	*full = now.Add(time.Duration(min(owed, float64(maxDebt))))
}

// take returns how much later a bucket is full after one is taken from it.
func take(limit int64, routers int) time.Duration {
	return time.Minute / time.Duration(limit) * time.Duration(max(routers, 1))
}

// of returns the buckets of a tenant. mu is held.
func (t *Table) of(tenant string, now time.Time) *buckets {
	b := t.buckets[tenant]
	if b != nil {
		return b
	}
	if len(t.buckets) >= maxTenants {
		t.makeRoom(now)
	}
	b = &buckets{}
	t.buckets[strings.Clone(tenant)] = b // the name may be a part of a message, which is used again
	return b
}

// makeRoom removes the entries of full buckets, at most once a second, and else arbitrary ones. mu is held.
func (t *Table) makeRoom(now time.Time) {
	if now.Sub(t.swept) >= time.Second {
		t.swept = now
		for tenant, b := range t.buckets {
			if !b.requests.After(now) && !b.prompts.After(now) && !b.answers.After(now) {
				delete(t.buckets, tenant)
			}
		}
	}
	for tenant := range t.buckets {
		if len(t.buckets) < maxTenants {
			return
		}
		delete(t.buckets, tenant)
	}
}
