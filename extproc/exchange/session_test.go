package exchange

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stator-project/stator/internal/envoynames"
	"github.com/stator-project/stator/internal/route/sessionid"
)

// TestBothEnginesGetTheSession: the prefill worker gets the session of a member of the body that vLLM does not read, and so does the decode
// worker, by the same header. A session that vLLM finds by itself adds no header for the decode worker.
func TestBothEnginesGetTheSession(t *testing.T) {
	for _, c := range []struct {
		header         sessionid.Name
		body           string
		prefill, added string
	}{
		{sessionid.Name{}, `{"model":"sim","prompt":"abcdefgh","prompt_cache_key":"k"}`, "k", "k"},
		{sessionid.Name{Text: "h"}, `{"model":"sim","prompt":"abcdefgh","prompt_cache_key":"k"}`, "h", ""},
		{sessionid.Name{}, `{"model":"sim","prompt":"abcdefgh","session_id":"v"}`, "v", ""},
		{sessionid.Name{}, `{"model":"sim","prompt":"abcdefgh"}`, "", ""},
	} {
		var got string
		worker := newPrefillWorker(t, func(w http.ResponseWriter, r *http.Request) {
			got = r.Header.Get(envoynames.HeaderSession)
			answers(http.StatusOK, `{"kv_transfer_params":`+given+`}`)(w, r)
		})
		s, _, _ := newSplit(t, 0, worker.URL)
		set := *s.Settings()
		set.Sessions = sessionid.ParseAll(sessionid.Defaults())
		s.Reload(set)

		r, ok := post(t.Context(), t, s, Head{Session: c.header}, c.body)
		if !ok || got != c.prefill {
			t.Errorf("%s: the prefill worker got %q, want %q", c.body, got, c.prefill)
		}
		added := ""
		if i := slices.IndexFunc(r.Set, func(h envoynames.Header) bool { return h.Key == envoynames.HeaderSession }); i >= 0 {
			added = r.Set[i].Value
		}
		if added != c.added {
			t.Errorf("%s: the decode worker got the further header %q, want %q", c.body, added, c.added)
		}
	}
}
