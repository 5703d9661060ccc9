package quota

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// noon is the middle of a day that is the last but one of its month.
var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const aDay = 24 * time.Hour

// TestBudgets: a tenant that has used the tokens of a budget is refused until its period ends, prompts and answers together. Other tenants,
// and tenants without a budget, are not.
func TestBudgets(t *testing.T) {
	x := New()
	s := &Settings{All: Limits{TokensPerDay: 100, TokensPerMonth: 250}, Own: map[string]Limits{"free": {}, "monthly": {TokensPerMonth: 100}}}
	use := func(tenant string, tokens int64, now time.Time) {
		x.ChargePrompt(s, tenant, tokens/2, 1, now)
		x.ChargeAnswer(s, tenant, tokens-tokens/2, 1, now)
	}
	expect := func(tenant string, now time.Time, want Exceeded, wait time.Duration) {
		t.Helper()
		if why, w := x.Admit(s, tenant, 1, now); why != want || w != wait {
			t.Errorf("%s at %s: %q for %s, want %q for %s", tenant, now, why, w, want, wait)
		}
	}

	use("a", 99, noon)
	expect("a", noon, Nothing, 0)
	use("a", 1, noon)
	expect("a", noon, Day, 12*time.Hour)
	expect("a", noon.Add(12*time.Hour-time.Nanosecond), Day, time.Nanosecond)
	expect("b", noon, Nothing, 0)
	use("free", 1<<40, noon)
	expect("free", noon, Nothing, 0)
	use("monthly", 100, noon)
	expect("monthly", noon, Month, 36*time.Hour)

	expect("a", noon.Add(aDay), Nothing, 0)
	use("a", 150, noon.Add(aDay)) // one prompt may exceed the budget
	expect("a", noon.Add(aDay), Month, 12*time.Hour)
	expect("a", noon, Month, 36*time.Hour) // the clock has stepped back, and nothing is forgotten
	expect("a", noon.Add(2*aDay), Nothing, 0)
	if len(x.ledger.used) != 0 || x.ledger.bytes != 0 {
		t.Errorf("%d sums of the last month are left, of %d bytes", len(x.ledger.used), x.ledger.bytes)
	}
}

// board is the place where routers share their sums. It has one value, as the bus has.
type board struct{ sums Sums }

// share shares the sums of a router. lost means that the value is not stored, and the router does not know it.
func (b *board) share(x *Table, now time.Time, lost bool) {
	there := Sums{b.sums.Day, b.sums.Month, maps.Clone(b.sums.Tokens)}
	next, changed := x.Merge(there, now)
	if !changed {
		return
	}
	if !lost {
		b.sums = next
	}
	x.Shared(next)
}

// TestRoutersShareBudgets: two routers have one budget. A router that starts has the sums of before, a bus that has lost its memory gets them
// back, and a write that may or may not have been stored counts once.
func TestRoutersShareBudgets(t *testing.T) {
	s, b := &Settings{All: Limits{TokensPerDay: 100, TokensPerMonth: 1000}}, &board{}
	one, two := New(), New()
	used := func(x *Table) int64 {
		list, _ := x.Usage(s, 1, noon)
		for _, u := range list {
			if u.Tenant == "a" && u.Period == Day {
				return u.Used
			}
		}
		return 0
	}
	expect := func(when string, want int64, routers ...*Table) {
		t.Helper()
		for i, x := range routers {
			if n := used(x); n != want {
				t.Errorf("%s: router %d knows %d tokens, want %d", when, i, n, want)
			}
		}
	}

	one.ChargePrompt(s, "a", 30, 1, noon)
	two.ChargeAnswer(s, "a", 20, 1, noon)
	for range 3 {
		b.share(one, noon, false)
		b.share(two, noon, false)
	}
	expect("both have shared", 50, one, two)

	one.ChargePrompt(s, "a", 7, 1, noon)
	b.share(one, noon, true)
	expect("a write is lost", 57, one)
	b.share(one, noon, false)
	b.share(two, noon, false)
	expect("the write was repeated", 57, one, two)

	restarted := New()
	expect("a router starts", 0, restarted)
	b.share(restarted, noon, false)
	expect("it has read the sums", 57, restarted)

	b.sums = Sums{}
	restarted.ChargePrompt(s, "a", 3, 1, noon)
	b.share(restarted, noon, false)
	b.share(two, noon, false)
	expect("the bus has lost its memory", 60, restarted, two)

	late := noon.Add(aDay)
	b.share(two, late, false)
	if why, _ := two.Admit(s, "a", 1, late); why != Nothing {
		t.Errorf("on the next day: %q", why)
	}
	// A router whose clock is behind overwrites the sums of the new day, which others still have.
	two.ChargePrompt(s, "a", 5, 1, late)
	b.share(two, late, false)
	one.ChargePrompt(s, "a", 1, 1, noon)
	b.share(one, noon, false)
	b.share(two, late, false)
	if n := b.sums.Tokens["a"]; n != [periods]int64{5, 66} {
		t.Errorf("the bus has %v for the new day", n)
	}
}

// TestRoutersWithoutABus: while a router does not know the sums of others, each is taken to have used as much as this one.
func TestRoutersWithoutABus(t *testing.T) {
	x, s := New(), &Settings{All: Limits{TokensPerDay: 100}}
	x.ChargePrompt(s, "a", 40, 1, noon)
	for routers, want := range map[int]Exceeded{0: Nothing, 1: Nothing, 2: Nothing, 3: Day} {
		if why, _ := x.Admit(s, "a", routers, noon); why != want {
			t.Errorf("%d routers: %q", routers, why)
		}
	}
	x.Merge(Sums{}, noon)
	if why, _ := x.Admit(s, "a", 3, noon); why != Nothing {
		t.Errorf("the sums are known: %q", why)
	}
}

// TestBudgetsAreBounded: however many tenants come, and whatever is on the bus, the sums are bounded, and no sum overflows. Tokens that have
// no room are reported.
func TestBudgetsAreBounded(t *testing.T) {
	x, s := New(), &Settings{All: Limits{TokensPerDay: MaxBudget}}
	name := strings.Repeat("n", maxName-6)
	for i := range 5000 {
		x.ChargePrompt(s, fmt.Sprintf("%s%06d", name, i), 1<<63-1, 1, noon)
	}
	x.ledger.used[name+"000000"][ofDay].own = maxSum - 1
	x.ChargePrompt(s, name+"000000", 1<<63-1, 1, noon)
	list, uncounted := x.Usage(s, 1<<40, noon)
	if x.ledger.bytes > maxSums || len(x.ledger.used) < 3000 || uncounted == 0 || len(list) != periods*maxReported {
		t.Errorf("%d bytes, %d tenants, %d tokens are not counted, %d are reported", x.ledger.bytes, len(x.ledger.used), uncounted, len(list))
	}
	if u := list[0]; u.Used < MaxBudget || u.Tenant != name+"000000" {
		t.Errorf("%+v", u)
	}

	hostile := Sums{Day: noon.Unix() / secondsOfDay, Month: -5, Tokens: map[string][periods]int64{"x": {1 << 62, 1}, "y": {-1, -1}, "\xff": {1, 1}}}
	x = New()
	x.ChargePrompt(s, "x", 1, 1, noon)
	x.ChargePrompt(s, "\xfe", 1, 1, noon)
	next, _ := x.Merge(hostile, noon)
	if n := next.Tokens["x"]; n != [periods]int64{maxSum, 0} || len(next.Tokens) != 2 {
		t.Errorf("%v", next.Tokens)
	}
	if n := next.Tokens["?"]; n[ofDay] != 2 {
		t.Errorf("names that are no text have %v", n)
	}
}
