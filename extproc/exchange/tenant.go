package exchange

import (
	"net/http"

	"github.com/stator-project/stator/internal/prompt/openai"
)

// tenant returns the client's tenant. The header that names it counts only from an Envoy of the operator's
// own, and on the listener for trusted clients: elsewhere a client may have set it.
func (x *Exchange) tenant() string {
	if x.origin.Configured && !x.origin.TrustedListener {
		return ""
	}
	return x.head.Tenant
}

// internalError returns the answer to a request whose handling has failed.
func internalError() *Answer {
	return refusal(&openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Code: "internal_error",
		Message: "The gateway could not handle the request. The error is in its log."}, outcomePanic)
}
