package quota

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

// TestRequestsAreExact: 64 clients of a tenant get exactly the limit at once, and then one for each part of a minute. Another tenant has its
// own bucket.
func TestRequestsAreExact(t *testing.T) {
	const limit = 100
	x, s := New(), &Settings{All: Limits{RequestsPerMinute: limit}}
	send := func(tenant string, now time.Time) int64 {
		var admitted atomic.Int64
		var clients sync.WaitGroup
		for range 64 {
			clients.Go(func() {
				for range 10 {
					if why, _ := x.Admit(s, tenant, 1, now); why == Nothing {
						admitted.Add(1)
					}
				}
			})
		}
		clients.Wait()
		return admitted.Load()
	}

	for _, step := range []struct {
		tenant string
		after  time.Duration
		want   int64
	}{
		{"a", 0, limit}, {"a", 0, 0}, {"b", 0, limit}, {"a", 599 * time.Millisecond, 0}, {"a", 600 * time.Millisecond, 1},
		{"a", 30*time.Second + 600*time.Millisecond, limit / 2}, {"a", time.Hour, limit},
	} {
		if n := send(step.tenant, start.Add(step.after)); n != step.want {
			t.Errorf("after %s: tenant %s gets %d requests, want %d", step.after, step.tenant, n, step.want)
		}
	}
	if why, wait := x.Admit(s, "b", 1, start); why != Requests || wait != 600*time.Millisecond {
		t.Errorf("refused by %q for %s", why, wait)
	}
}

// TestTokensAreRepaid: a tenant is refused until the tokens that it has sent are filled again, also those of a prompt beyond its limit.
func TestTokensAreRepaid(t *testing.T) {
	x, s := New(), &Settings{All: Limits{PromptTokensPerMinute: 600}, Own: map[string]Limits{"free": {}}}
	x.ChargePrompt(s, "a", 599, 1, start)
	if why, _ := x.Admit(s, "a", 1, start); why != Nothing {
		t.Error("a token is left, and the request is refused")
	}
	x.ChargePrompt(s, "a", 1201, 1, start) // 1,200 more than the bucket holds
	for after, want := range map[time.Duration]Exceeded{0: Tokens, 2 * time.Minute: Tokens, 2*time.Minute + time.Nanosecond: Nothing} {
		if why, _ := x.Admit(s, "a", 1, start.Add(after)); why != want {
			t.Errorf("after %s: %q, want %q", after, why, want)
		}
	}
	if _, wait := x.Admit(s, "a", 1, start); wait != 2*time.Minute+100*time.Millisecond {
		t.Errorf("the client is to wait for %s", wait)
	}
	x.ChargePrompt(s, "free", 1<<40, 1, start)
	if why, _ := x.Admit(s, "free", 1, start); why != Nothing {
		t.Errorf("a tenant without limits is refused by %s", why)
	}
}

// TestAnswersAreRepaid: tokens of answers have a bucket of their own, and a tenant waits for the longer one of both.
func TestAnswersAreRepaid(t *testing.T) {
	x, s := New(), &Settings{All: Limits{PromptTokensPerMinute: 600, AnswerTokensPerMinute: 60}}
	x.ChargePrompt(s, "a", 600, 1, start)
	x.ChargeAnswer(s, "a", 180, 1, start)
	if why, wait := x.Admit(s, "a", 1, start); why != Tokens || wait != 2*time.Minute+time.Second {
		t.Errorf("%q for %s", why, wait)
	}
	if why, wait := x.Admit(s, "a", 1, start.Add(2*time.Minute+time.Nanosecond)); why != Nothing {
		t.Errorf("after two minutes: %q for %s", why, wait)
	}
}

// TestRoutersShareLimits: three routers that decide about as many requests each admit the limit together.
func TestRoutersShareLimits(t *testing.T) {
	s, admitted := &Settings{All: Limits{RequestsPerMinute: 90}}, 0
	for range 3 {
		x := New()
		for range 90 {
			if why, _ := x.Admit(s, "a", 3, start); why == Nothing {
				admitted++
			}
		}
	}
	if admitted != 90 {
		t.Errorf("%d requests are admitted", admitted)
	}
}

// TestTableIsBounded: however many tenants come, the table is bounded, and extreme numbers do not overflow.
func TestTableIsBounded(t *testing.T) {
	x, s := New(), &Settings{All: Limits{RequestsPerMinute: 1, PromptTokensPerMinute: 1}}
	for i := range maxTenants + 100 {
		if why, _ := x.Admit(s, fmt.Sprint(i), 1, start); why != Nothing {
			t.Fatalf("tenant %d is refused by %s", i, why)
		}
	}
	if len(x.buckets) != maxTenants {
		t.Errorf("%d entries", len(x.buckets))
	}
	x.Admit(s, "later", 1, start.Add(2*time.Minute))
	if len(x.buckets) != 1 {
		t.Errorf("%d entries after all buckets are full again", len(x.buckets))
	}

	last := &Settings{All: Limits{RequestsPerMinute: MaxRequests, PromptTokensPerMinute: 1}}
	n := 0
	for why := Nothing; why == Nothing && n <= MaxRequests; n++ {
		why, _ = x.Admit(last, "fast", 1, start)
	}
	if n != MaxRequests+1 {
		t.Errorf("%d requests are admitted at the greatest limit", n-1)
	}
	x.ChargePrompt(last, "big", 1<<60, 1, start)
	if why, wait := x.Admit(last, "big", 1, start); why != Tokens || wait <= 0 {
		t.Errorf("%q, %s", why, wait)
	}
}

// BenchmarkAdmit measures what limits cost a request.
func BenchmarkAdmit(b *testing.B) {
	x, s := New(), &Settings{All: Limits{RequestsPerMinute: MaxRequests, PromptTokensPerMinute: MaxTokens, TokensPerDay: MaxBudget}}
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		x.Admit(s, "tenant", 1, now)
		x.ChargePrompt(s, "tenant", 1000, 1, now)
	}
}
