package exchange

import (
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// SessionHeaders returns the header of each of Sessions; empty for a member of the body.
func (s *Settings) SessionHeaders() []string { return s.sessionHeaders }

// readSession takes the client's session from a member of the body, unless a source with precedence has one.
func (x *Exchange) readSession(member string, value []byte) {
	x.head.Session.Read(x.svc.Settings().Sessions, member, value)
}

// sessionForEngine returns the session that the engine is told by a header; empty for none, and if the client's request has it
// where vLLM reads it. vLLM gives it to its KV connectors, and repeats it in its KV events. Other engines ignore it.
func (x *Exchange) sessionForEngine(d *decision.Decision) string {
	if x.head.Session.IsKnownToEngine(x.svc.Settings().Sessions) {
		return ""
	}
	return sessionid.HeaderValue(d.Session)
}
