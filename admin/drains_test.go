package admin_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/discovery"
	"github.com/stator-project/stator/internal/fleet"
)

// TestDrains: a node is drained and put back by a call, and its page shows the requests that are left at its workers.
func TestDrains(t *testing.T) {
	f := fleet.New(fleet.Hooks{})
	for _, w := range []fleet.Worker{
		{Name: "n.busy"}, {Name: "n.idle"}, {Name: "n.prefill", Role: fleet.Prefill}, {Name: "other"},
	} {
		w.Model, w.Address, w.Ranks, w.Weight, w.State = "m", "10.0.0.1:80", 1, 1, fleet.Ready
		if _, err := f.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	drains := discovery.NewDrains(f, slog.New(slog.DiscardHandler))
	h := admin.Handler(admin.Sources{Fleet: f.Snapshot, Drains: drains, OnBus: true})
	call := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/drain", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, body := range []string{`{"name": "Not a name"}`, `{"title": "n"}`, `{}`, `nonsense`} {
		if w := call(body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: status %d, %s", body, w.Code, w.Body)
		}
	}

	begun := time.Now().Add(-time.Minute)
	if err := drains.Set("n", true, begun); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]fleet.Report{"n.busy": {Running: 1, Waiting: 2}, "n.idle": {}, "n.prefill": {KVUsage: 0.1}} {
		r.At = time.Now()
		rank, _ := f.Snapshot().Rank(name, 0)
		rank.Load.SetReport(r, &fleet.Worker{})
	}
	page := httptest.NewRecorder()
	h.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/drains", nil))
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(page.Body.String()), "\n")[1:] {
		words := strings.Fields(line)
		got = append(got, strings.Join(append(words[:1], words[2:]...), " "))
	}
	want := "n n.busy 0 1 2 false\nn n.idle 0 0 0 true\nn n.prefill 0 0 0 false"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if w := f.Snapshot().Worker("n.idle"); w.State != fleet.Draining || !w.DrainedByOperator() || f.Snapshot().Worker("other").State != fleet.Ready {
		t.Errorf("the fleet is %+v", f.Snapshot().Workers)
	}

	// The order is later than the one before it, whatever the clock of its process.
	if w := call(`{"name": "n", "undo": true}`); w.Code != http.StatusOK || f.Snapshot().Worker("n.idle").State != fleet.Ready {
		t.Errorf("status %d, %s", w.Code, w.Body)
	}
}
