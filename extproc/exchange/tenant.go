package exchange

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/internal/prompt/openai"
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

// overLimit returns the refusal of a request of a tenant that has sent enough; nil if it has not.
func (x *Exchange) overLimit(now time.Time) *Answer {
	if x.svc.shadow || !x.svc.Settings().Limits.IsOn() {
		return nil
	}
	why, wait := x.svc.quotas.Admit(&x.svc.Settings().Limits, x.tenant(), x.svc.routers(), now)
	if why == quota.Nothing {
		return nil
	}
	seconds := int64((wait + time.Second - 1) / time.Second)
	a := refusal(&openai.Error{Status: http.StatusTooManyRequests, Type: string(why), Code: outcomeLimited,
		Message: fmt.Sprintf("Your limit of %s per minute is reached. Try again in %d s.", why, seconds)}, outcomeLimited)
	a.RetryAfter = time.Duration(seconds) * time.Second
	return a
}

// charge counts the tokens of a prompt that goes to a worker.
func (x *Exchange) charge(tokens int, now time.Time) {
	if limits := &x.svc.Settings().Limits; limits.IsOn() {
		x.svc.quotas.ChargePrompt(limits, x.tenant(), int64(tokens), x.svc.routers(), now)
	}
}

// ChargeAnswer counts the tokens of an answer to a tenant.
func (s *Service) ChargeAnswer(tenant string, tokens int64, now time.Time) {
	if limits := &s.Settings().Limits; limits.IsOn() && tokens > 0 {
		s.quotas.ChargeAnswer(limits, tenant, tokens, s.routers(), now)
	}
}

// internalError returns the answer to a request whose handling has failed.
func internalError() *Answer {
	return refusal(&openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Code: "internal_error",
		Message: "The gateway could not handle the request. The error is in its log."}, outcomePanic)
}
