package exchange

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/request"
)

// DryRun returns the decision that a request with that body would get at a path, from a client of a tenant whose hints count and that
// names no session in its headers. Nothing is sent, booked, counted or learned. It is an error if the gateway does not read bodies of the
// path, or if the body is larger than the gateway takes.
func (s *Service) DryRun(path, tenant string, body []byte, now time.Time) (*decision.Decision, error) {
	set := s.Settings()
	at := set.classify(http.MethodPost, path)
	switch {
	case !at.known:
		return nil, fmt.Errorf("requests to %q are routed without their prompts: name a path such as /v1/chat/completions", path)
	case int64(len(body)) > set.BodyBytes:
		return nil, fmt.Errorf("the body has %d bytes, and gateway.maxBodyBytes is %d", len(body), set.BodyBytes)
	case !s.Reserve(len(body)):
		return nil, fmt.Errorf("requests with %d bytes are being decided at once: try again", set.BodiesBytes)
	}
	defer s.Free(len(body))

	req := request.Request{
		Endpoint: at.endpoint, Known: true, Body: body, Splits: at.splits, Tenant: tenant, Salting: s.salting(set, &at),
	}
	return s.router.DryRun(&req, now), nil
}
