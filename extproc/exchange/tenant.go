package exchange

import (
	"net/http"

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

// internalError returns the answer to a request whose handling has failed.
func internalError() *Answer {
	return refusal(&openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Code: "internal_error",
		Message: "The gateway could not handle the request. The error is in its log."}, outcomePanic)
}
