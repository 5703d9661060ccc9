package prefill

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

// TestOutcomes: a request that was answered has an outcome by its answer, and one whose client has left is no evidence of the worker's
// health, whichever came first.
func TestOutcomes(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, end := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer end()
	broken := errors.New("connection reset")
	for _, c := range []struct {
		name   string
		ctx    context.Context
		status int
		err    error
		want   Outcome
	}{
		{"answered", t.Context(), http.StatusOK, nil, Transferred},
		{"answered, then left", cancelled, http.StatusOK, nil, Transferred},
		{"answered with an error, then left", cancelled, http.StatusInternalServerError, nil, Failed},
		{"answered at the last moment", late, http.StatusOK, nil, Transferred},
		{"left", cancelled, 0, context.Canceled, Cancelled},
		{"too late", late, 0, context.DeadlineExceeded, TimedOut},
		{"broken", t.Context(), 0, broken, Unreachable},
	} {
		if got := outcomeOf(c.ctx, c.status, c.err); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
