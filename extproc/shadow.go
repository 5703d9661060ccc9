package extproc

import (
	"sync/atomic"
	"time"

	"github.com/stator-project/stator/extproc/accesslog"
	"github.com/stator-project/stator/extproc/exchange"
	"github.com/stator-project/stator/internal/decisionlog"
)

const (
	// shadowDecisions and shadowCandidates bound the decisions of a shadow that can be explained. Each keeps all ranks of a large fleet.
	shadowDecisions  = 64
	shadowCandidates = 1024
	// maxWatched bounds the requests of a shadow that are followed to their ends. The ends of further ones are not in the log.
	maxWatched = 1 << 14
)

// watcher writes the ends of a shadow's requests to its decision log. It implements exchange.Feedback. The rest of a shadow is in package
// route, whose decisions have no effect then, and in package stream, which reads the copies.
type watcher struct {
	log     *decisionLog // nil for none
	watched atomic.Int64
}

// Wanted reports whether ends are logged at all. The access log of a shadow ends nothing, because no decision has an id there.
func (w *watcher) Wanted(string) bool { return w.log != nil }

// Follow makes room for one more request.
func (w *watcher) Follow(string, string) bool {
	if w.watched.Add(1) <= maxWatched {
		return true
	}
	w.watched.Add(-1)
	return false
}

// Ended writes the end of a request. Its outcome is always the same one: the pick was never to be obeyed.
func (w *watcher) Ended(_ string, e exchange.Ending, now time.Time) {
	w.watched.Add(-1)
	w.log.Ended(&decisionlog.End{
		ID: e.Booking, At: now, Outcome: accesslog.Unconfirmed, Served: e.Served,
		FirstByte: milliseconds(e.FirstByte), FirstToken: milliseconds(e.FirstToken), LastByte: milliseconds(e.LastByte),
		Status: int(e.Status), ResponseBytes: e.ResponseBytes,
		OutputTokens: e.Output,
	})
}
