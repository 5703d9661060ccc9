package exchange

import (
	"net/http"

	"github.com/stator-project/stator/extproc/speculate"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/route/decision"
)

// speculates reports whether the prefix of the next turn is computed after the answer to a picked request. It then goes to the relay, which
// reads the answer. The frontend of a Dynamo worker reads the hint by itself.
func (x *Exchange) speculates(d *decision.Decision) bool {
	return d.Speculates && !d.Split && x.svc.turns != nil && x.usesRelay() && engines.Of(d.Engine) != engines.Dynamo
}

// beginTurn returns the turn of a request whose answer begins; nil if its next turn is not wanted in a cache.
func (r *Relayed) beginTurn(status int, stream bool) *speculate.Turn {
	if !r.first.Speculates || r.svc.turns == nil || status != http.StatusOK {
		return nil
	}
	return r.svc.turns.Begin(speculate.Request{
		Endpoint: r.exchange.target.endpoint, Model: r.model, Body: r.body, Session: r.first.Session, Source: r.first.Source,
		Authorization: r.exchange.head.Authorization,
	}, stream, &r.svc.relay.streams)
}
