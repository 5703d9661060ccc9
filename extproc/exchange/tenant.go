package exchange

import (
	"bytes"
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

// withSalt returns the body with a cache salt, or nil if there is none to set. Engines take the last one of members
// with the same name, so it is added at the end. A body that is no JSON object stays as it is: it has no prompt
// that an engine could cache.
func withSalt(body []byte, salt string) []byte {
	end := bytes.LastIndexByte(body, '}')
	isObject := end > 0 && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) && len(bytes.TrimSpace(body[end+1:])) == 0
	if salt == "" || !isObject {
		return nil
	}

	separator := byte(',')
	if bytes.HasSuffix(bytes.TrimSpace(body[:end]), []byte("{")) {
		separator = ' ' // the object is empty, or its last value is: then the text is no JSON, and the engine refuses it
	}
	salted := make([]byte, 0, len(body)+len(salt)+len(`,"cache_salt":""}`))
	salted = append(append(salted, body[:end]...), separator)
	salted = append(salted, `"cache_salt":`...)
	return append(openai.AppendString(salted, salt), '}')
}

// internalError returns the answer to a request whose handling has failed.
func internalError() *Answer {
	return refusal(&openai.Error{Status: http.StatusInternalServerError, Type: openai.ServerError, Code: "internal_error",
		Message: "The gateway could not handle the request. The error is in its log."}, outcomePanic)
}
