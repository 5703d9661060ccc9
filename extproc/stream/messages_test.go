package stream

import (
	"testing"

	"github.com/stator-project/stator/extproc/messages"
	"github.com/stator-project/stator/internal/route"
)

// TestPickHeaderOnlyWhereItIsRead: an Envoy configured by package xds receives the pick in metadata only. Every
// Envoy receives the changes of the request.
func TestPickHeaderOnlyWhereItIsRead(t *testing.T) {
	s := &Server{}
	for _, c := range []struct {
		header bool
		pick   route.Decision
		want   int // headers set
	}{
		{true, route.Decision{Model: "m", Address: "10.0.0.1:80", Ranks: 1}, 1},
		{false, route.Decision{Model: "m", Address: "10.0.0.1:80", Ranks: 1}, 0},
		{false, route.Decision{Model: "other", Address: "10.0.0.1:80", Ranks: 2}, 2},
	} {
		s.settings.Store(&Settings{DefaultModel: "m", SeveralPools: c.pick.Model == "other"})
		m := s.toMessage(reply{pick: &c.pick, header: c.header}, wantBody).(*messages.Response)
		if got := len(m.Set); got != c.want {
			t.Errorf("header %v, pick %+v: %d headers set, want %d", c.header, c.pick, got, c.want)
		}
	}
}
