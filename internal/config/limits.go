package config

import "fmt"

// Limits bound what each tenant may send a minute, and the tokens that it may use a day and a month. A request beyond them gets 429, and
// the time to wait in retry-after. Routers count, not Envoys: with several routers each admits its share of a minute's limits.
type Limits struct {
	// RequestsPerMinute bounds the requests of a tenant, to 100000 at most. 0 is no bound. A tenant that was idle may send all of them at
	// once.
	RequestsPerMinute int64 `yaml:"requestsPerMinute"`
	// PromptTokensPerMinute bounds the tokens in the prompts of a tenant, to 1000000000 at most. 0 is no bound. A tenant that has sent
	// more is refused until the minute's share of its limit has made up for it. Prompts that routers do not read do not count.
	PromptTokensPerMinute int64 `yaml:"promptTokensPerMinute"`
	// AnswerTokensPerMinute bounds the tokens in the answers to a tenant in the same way, to 1000000000 at most. 0 is no bound. It needs
	// answerTokens.
	AnswerTokensPerMinute int64 `yaml:"answerTokensPerMinute"`
	// TokensPerDay is the budget of a tenant for a day of UTC: the tokens of its prompts and answers together, to 1000000000000000 at most.
	// 0 is no bound. Routers share what has been used over the bus, and count alone without one. It needs answerTokens.
	TokensPerDay int64 `yaml:"tokensPerDay"`
	// TokensPerMonth is the same for a month of UTC.
	TokensPerMonth int64 `yaml:"tokensPerMonth"`
	// Tenants have limits of their own, in place of those above.
	Tenants []TenantLimits `yaml:"tenants"`
}

// TenantLimits are the limits of one tenant.
type TenantLimits struct {
	// Name is the tenant.
	Name string `yaml:"name" default:"required"`
	// RequestsPerMinute is as in limits; 0 is no bound.
	RequestsPerMinute int64 `yaml:"requestsPerMinute"`
	// PromptTokensPerMinute is as in limits; 0 is no bound.
	PromptTokensPerMinute int64 `yaml:"promptTokensPerMinute"`
	// AnswerTokensPerMinute is as in limits; 0 is no bound.
	AnswerTokensPerMinute int64 `yaml:"answerTokensPerMinute"`
	// TokensPerDay is as in limits; 0 is no bound.
	TokensPerDay int64 `yaml:"tokensPerDay"`
	// TokensPerMonth is as in limits; 0 is no bound.
	TokensPerMonth int64 `yaml:"tokensPerMonth"`
}

// limits checks what tenants may send.
func (v *validator) limits(g *Gateway) {
	l := &g.Limits
	all := append([]TenantLimits{{
		"", l.RequestsPerMinute, l.PromptTokensPerMinute, l.AnswerTokensPerMinute, l.TokensPerDay, l.TokensPerMonth,
	}}, l.Tenants...)
	seen, path := map[string]bool{}, "gateway.limits"
	for i, t := range all {
		if i > 0 {
			path = fmt.Sprintf("gateway.limits.tenants[%d]", i-1)
			v.is(t.Name != "", path+".name", "is required: the name of a tenant")
			v.is(!seen[t.Name], path+".name", "is there twice")
			seen[t.Name] = true
		}
		v.within(t.RequestsPerMinute, maxRequests, path+".requestsPerMinute")
		v.within(t.PromptTokensPerMinute, maxTokens, path+".promptTokensPerMinute")
		v.within(t.AnswerTokensPerMinute, maxTokens, path+".answerTokensPerMinute")
		v.within(t.TokensPerDay, maxBudget, path+".tokensPerDay")
		v.within(t.TokensPerMonth, maxBudget, path+".tokensPerMonth")
		v.is(t.AnswerTokensPerMinute == 0 || g.AnswerTokens, path+".answerTokensPerMinute", "needs gateway.answerTokens: true")
		v.is(t.TokensPerDay == 0 || g.AnswerTokens, path+".tokensPerDay", "needs gateway.answerTokens: true")
		v.is(t.TokensPerMonth == 0 || g.AnswerTokens, path+".tokensPerMonth", "needs gateway.answerTokens: true")
	}
	v.is(g.TenantHeader != "" || len(all) == 1 && all[0] == (TenantLimits{}), "gateway.limits",
		"has no effect until gateway.auth or gateway.tenantHeader is set")
}

// within checks a limit.
func (v *validator) within(n, most int64, path string) {
	v.is(n >= 0 && n <= most, path, "must lie between 0 and %d", most)
}
