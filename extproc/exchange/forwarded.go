package exchange

import (
	"bytes"
	"strings"

	"github.com/stator-project/stator/internal/prompt/openai"
	"github.com/stator-project/stator/internal/route/decision"
	"github.com/stator-project/stator/internal/route/handoff"
)

// readEnvelope reads the members of a body that the router needs before its decision: the members by which engines fetch KV caches from
// each other, which clients must not set, and the model of a body that is not parsed. A body that cannot be searched is refused, so no
// engine reads members in it that were not found here, even if the router's parser accepts the body. Clean is nil for a body without such
// members.
func (x *Exchange) readEnvelope(body []byte, known bool) (clean []byte, a *Answer) {
	switch {
	case x.unread || len(body) == 0:
		return nil, nil
	case !known && isForm(body) && x.svc.Settings().TenantHeader != "":
		return nil, refusal(openai.Invalid("", "", "The gateway keeps tenants apart by a cache salt, and a form cannot have one. "+
			"Send JSON."), string(decision.ReasonBadRequest))
	case !known && isForm(body):
		return nil, nil
	}

	if !known {
		clean, err := x.open(body)
		if err != nil {
			return nil, refusal(err, string(decision.ReasonBadRequest))
		}
		return clean, nil
	}

	clean, err := handoff.Strip(body, x.readSession)
	if err != nil {
		if _, better := openai.Parse(x.target.endpoint, body, openai.Limits{}); better != nil {
			return nil, nil // the router has a better error
		}
	}
	if err != nil {
		return nil, refusal(err, string(decision.ReasonBadRequest))
	}
	return clean, nil
}

// open reads the envelope of a body that is not parsed, and returns the body without members of transfers; nil if it has none. The envelope
// outlives the body, so it keeps nothing of it.
func (x *Exchange) open(body []byte) (clean []byte, err *openai.Error) {
	e, err := handoff.Read(body, x.target.shape, x.readSession)
	if err != nil {
		return nil, err
	}
	clean = e.Clean
	e.Model, e.Clean = strings.Clone(e.Model), nil
	x.envelope = &e
	return clean, nil
}

// isForm reports whether a body begins as a form with files does, with the first boundary. No decoder takes it for JSON.
func isForm(body []byte) bool { return bytes.HasPrefix(body, []byte("--")) }

// mustRead reports whether no request may go to a worker unread: the salt of its tenant would be missing, or a worker could receive
// members of transfers.
func (s *Service) mustRead() bool { return s.Settings().TenantHeader != "" || s.router.HasTransfers() }

// forwarded returns the body that a worker receives in place of the client's; nil if it receives the client's. Clean is the client's
// without the members of transfers, or nil. The worker gets the model's own name in place of another one, and the tenant's cache salt.
func forwarded(body, clean []byte, d *decision.Decision) []byte {
	if clean != nil {
		body = clean
	}
	var members []byte
	if d.Alias {
		members = openai.AppendString(append(members, `,"model":`...), d.Pool)
	}
	if d.CacheSalt != "" {
		members = openai.AppendString(append(members, `,"cache_salt":`...), d.CacheSalt)
	}
	if d.Pin > 0 {
		members = handoff.AppendPin(members, d.Pin)
	}
	if changed := withMembers(body, members); changed != nil {
		return changed
	}
	return clean
}

// withMembers returns the body with further members, each after a comma, or nil if there is none to set. Engines take the last one of
// members with the same name, so they are added at the end. A body that is no JSON object stays as it is: it has no prompt
// that an engine could cache.
func withMembers(body, members []byte) []byte {
	end := bytes.LastIndexByte(body, '}')
	isObject := end > 0 && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) && len(bytes.TrimSpace(body[end+1:])) == 0
	if len(members) == 0 || !isObject {
		return nil
	}

	changed := make([]byte, 0, end+len(members)+1)
	changed = append(append(changed, body[:end]...), members...)
	if bytes.HasSuffix(bytes.TrimSpace(body[:end]), []byte("{")) {
		changed[end] = ' ' // the object is empty, or its last value is: then the text is no JSON, and the engine refuses it
	}
	return append(changed, '}')
}

// IsWhole reports whether a body is a JSON object with nothing missing or behind it.
func IsWhole(body []byte) bool {
	isObject := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
	return isObject && openai.EachMember(body, func(string, int, int) {}) == nil
}
