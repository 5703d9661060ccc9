package exchange

import (
	"slices"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// Hints selects the routing hints of trusted clients that count. A client whose hints count can go before
// others, and can choose its worker.
type Hints string

// The values. Hints of headers take precedence over hints of the body.
const (
	HintsOff     Hints = "off"     // none
	HintsBody    Hints = "nvext"   // nvext in the body
	HintsHeaders Hints = "headers" // the headers x-stator-…, and nvext in the body
)

// isTrusted reports whether the client's hints count. The header with its role counts only from an Envoy of
// the operator's own: the listeners of package xds have no authentication, so a client would have set it.
func (x *Exchange) isTrusted(set *Settings) bool {
	return set.TrustEveryone || x.origin.TrustedListener ||
		!x.origin.Configured && x.head.Role != "" && slices.Contains(set.TrustedRoles, x.head.Role)
}

// applyHints adds the hints that count to a request. It returns the answer to a header whose value
// is wrong; nil if all is well.
func (x *Exchange) applyHints(req *request.Request) *Answer {
	set := x.svc.Settings()
	if set.Hints == HintsOff || !x.isTrusted(set) {
		req.IgnoreBodyHints = true
		if len(x.head.Hints) > 0 {
			x.svc.metrics.ignoredHints.Inc()
		}
		return nil
	}
	if set.Hints != HintsHeaders || len(x.head.Hints) == 0 {
		return nil
	}

	h := &prompt.Hints{Rank: -1}
	for _, header := range x.head.Hints {
		if err := h.SetHeader(header.Key, header.Value); err != nil {
			return refusal(err, string(decision.ReasonBadRequest))
		}
	}
	req.Hints = h
	x.migrations = h.MigrationLimit
	return nil
}
