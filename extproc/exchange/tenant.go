package exchange

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// tenant returns the client's tenant. The header that names it counts only from an Envoy of the operator's
// own, on the listener for trusted clients, and if the gateway authenticates: elsewhere a client may have set it. The gateway sends
// the header only from listeners that authenticate or trust, so it is not a client's while the two change.
func (x *Exchange) tenant() string {
	if x.origin.Configured && !x.origin.TrustedListener && !x.svc.Settings().Authenticated {
		return ""
	}
	return x.head.Tenant
}

// salting separates the cached prompts of tenants, if the gateway names them.
func (s *Service) salting(set *Settings, at *target) request.Salting {
	if set.TenantHeader == "" {
		return request.Salting{}
	}
	return request.Salting{SaltKey: s.tenantKey(), NeedsSalt: at.endpoint == prompt.Messages && !set.passes(at.path)}
}

// limits returns what tenants may send; nil if there are no limits. Copies of requests have none.
func (s *Service) limits() *quota.Settings {
	if limits := &s.Settings().Limits; !s.shadow && limits.IsOn() {
		return limits
	}
	return nil
}

// overLimit returns the refusal of a request of a tenant that has sent enough; nil if it has not.
func (x *Exchange) overLimit(now time.Time) *Answer {
	limits := x.svc.limits()
	if limits == nil {
		return nil
	}
	why, wait := x.svc.quotas.Admit(limits, decision.Label(x.tenant()), x.svc.routers(), now)
	seconds := int64((wait + time.Second - 1) / time.Second)
	e := &openai.Error{Status: http.StatusTooManyRequests, Type: string(why), Code: outcomeLimited,
		Message: fmt.Sprintf("Your limit of %s per minute is reached. Try again in %d s.", why, seconds)}
	switch why {
	case quota.Nothing:
		return nil
	case quota.Day, quota.Month:
		e.Type = outcomeSpent
		e.Code = outcomeSpent
		e.Message = fmt.Sprintf("Your budget of tokens for this %s of UTC is used up. The next one begins in %d s.", why, seconds)
	}
	a := refusal(e, e.Code)
	a.RetryAfter = time.Duration(seconds) * time.Second
	return a
}

// charge counts the tokens of a prompt that goes to a worker.
func (x *Exchange) charge(tokens int, now time.Time) {
	if limits := x.svc.limits(); limits != nil {
		x.svc.quotas.ChargePrompt(limits, decision.Label(x.tenant()), int64(tokens), x.svc.routers(), now)
	}
}

// ChargeAnswer counts the tokens of an answer to a tenant, whose name is as decisions keep it.
func (s *Service) ChargeAnswer(tenant string, tokens int64, now time.Time) {
	if limits := s.limits(); limits != nil && tokens > 0 {
		s.quotas.ChargeAnswer(limits, tenant, tokens, s.routers(), now)
	}
}

// internalError returns the answer to a request whose handling has failed.
func internalError() *Answer {
	return refusal(&openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Code: "internal_error",
		Message: "The gateway could not handle the request. The error is in its log."}, outcomePanic)
}
