package enginesim_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stator-project/stator/enginesim"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/perfmodel"
)

// hours is a timing whose passes do not end during a test.
type hours struct{}

func (hours) Prefill(perfmodel.Prefill) time.Duration { return time.Hour }
func (hours) Decode(perfmodel.Decode) time.Duration   { return time.Hour }

// fuzzMembers sends requests with any members to an engine, and a new engine after one that has ended. Each is answered with a
// status of the API, and no lease or block stays.
func fuzzMembers(f *testing.F, kind fleet.Transfer, members func(string) string, change ...func(*enginesim.Config)) {
	short := func(c *enginesim.Config) {
		c.TransferTimeout = 5 * time.Millisecond
		c.Lease = time.Millisecond
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := start(t, transferring(kind, append(change, short)...))
		status, answer := r.post(completions, split[:len(split)-1]+","+members(text)+"}")
		switch status {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound:
			free(r)
		case http.StatusInternalServerError:
			// vLLM's scheduler may have ended; the engine's error is checked elsewhere.
			http.DefaultClient.CloseIdleConnections()
			r.settle()
		default:
			t.Errorf("%s: %d %s", text, status, answer)
		}
	})
}

// fuzzHalves is fuzzMembers for both roles of SGLang's handshake, with one engine of each, because none ends.
func fuzzHalves(f *testing.F) {
	f.Fuzz(func(t *testing.T, members string, prefill bool) {
		half := fleet.Decode
		if prefill {
			half = fleet.Prefill
		}
		r := start(t, transferring(fleet.TransferBootstrap, role(half), func(c *enginesim.Config) { c.TransferTimeout = 5 * time.Millisecond }))
		status, answer := r.post(completions, split[:len(split)-1]+","+members+"}")
		switch status {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusInternalServerError:
			free(r)
		default:
			t.Errorf("%s: %d %s", members, status, answer)
		}
	})
}
