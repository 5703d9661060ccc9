package admin_test

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/decisionlog"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/decision"
)

// TestDryRun: the body and the query reach the router as they are, and its decision is the answer. Wrong calls name their mistake, and the
// router does not see them.
func TestDryRun(t *testing.T) {
	type call struct{ path, tenant, body string }
	var got []call
	members := fleet.New(fleet.Hooks{})
	if _, err := members.Put(fleet.Worker{Name: "a", Model: "sim", Address: "10.0.0.1:80", Ranks: 1, State: fleet.Starting}); err != nil {
		t.Fatal(err)
	}
	h := admin.Handler(admin.Sources{Fleet: members.Snapshot, RouterSources: admin.RouterSources{DryRun: func(path, tenant string, body []byte) (*decision.Decision, error) {
		got = append(got, call{path, tenant, string(body)})
		if strings.Contains(string(body), "wrong") {
			return nil, errors.New("the body has no model")
		}
		d := &decision.Decision{ID: "dry-run", Model: "sim", Outcome: decision.Picked}
		d.Worker = "a"
		return d, nil
	}}})
	const path = "/dry-run?path=/v1/chat/completions&tenant=red"
	for _, c := range []struct {
		method, path, media, header, body string
		status                            int
		answer                            string
	}{
		{"POST", path, "application/json", "", `{"model": "sim"}`, 200, "decision dry-run · picked · model sim"},
		{"POST", path, "application/json; charset=utf-8", "", "", 200, "now a is starting"},
		{"POST", path, "application/json", "", "wrong", 400, "the body has no model"},
		{"POST", path, "text/plain", "", "{}", 415, "application/json"},
		{"POST", path, "application/json", "Origin", "{}", 403, "browsers"},
		{"POST", path, "application/json", "Sec-Fetch-Site", "{}", 403, "browsers"},
		{"GET", path, "", "", "", 405, ""},
	} {
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.media)
		if c.header != "" {
			r.Header.Set(c.header, "https://example.com")
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != c.status || !strings.Contains(rec.Body.String(), c.answer) {
			t.Errorf("%+v: %d %s", c, rec.Code, rec.Body)
		}
	}
	if len(got) != 3 || got[0] != (call{"/v1/chat/completions", "red", `{"model": "sim"}`}) {
		t.Errorf("the router saw %+v", got)
	}

	r := httptest.NewRequest("POST", path+"&format=json", strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	var d decisionlog.Decision
	if err := json.Unmarshal(rec.Body.Bytes(), &d); err != nil || d.Worker != "a" || d.Outcome != "picked" {
		t.Errorf("%v %s", err, rec.Body)
	}
}

// TestDryRunOfBodies: a body that breaks off or is too large is an error of the client, and one dry run is made at a time.
func TestDryRunOfBodies(t *testing.T) {
	var h func(body *strings.Reader) *httptest.ResponseRecorder
	var inner *httptest.ResponseRecorder
	handler := admin.Handler(admin.Sources{RouterSources: admin.RouterSources{DryRun: func(string, string, []byte) (*decision.Decision, error) {
		if inner == nil { // a second one while this one runs
			inner = h(strings.NewReader("{}"))
		}
		return &decision.Decision{ID: "dry-run"}, nil
	}}})
	h = func(body *strings.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/dry-run", body)
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		return rec
	}
	if rec := h(strings.NewReader("{}")); rec.Code != 200 || inner.Code != 503 || !strings.Contains(inner.Body.String(), "another dry run") {
		t.Errorf("%d, and meanwhile %d %s", rec.Code, inner.Code, inner.Body)
	}
	if rec := h(strings.NewReader("{}")); rec.Code != 200 {
		t.Errorf("after both: %d", rec.Code)
	}
	if rec := h(strings.NewReader(strings.Repeat("x", 32<<20+1))); rec.Code != 400 || !strings.Contains(rec.Body.String(), "too large") {
		t.Errorf("a large body: %d %s", rec.Code, rec.Body)
	}

	r := httptest.NewRequest("POST", "/dry-run", iotest.ErrReader(errors.New("it broke off")))
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, r)
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), "it broke off") {
		t.Errorf("a broken body: %d %s", rec.Code, rec.Body)
	}
}
