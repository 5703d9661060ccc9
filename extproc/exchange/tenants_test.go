package exchange

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stator-project/stator/test/bodies"
)

// TestNoTenantGetsAnothersSalt: of hundreds of requests by which a tenant tries to get the salt of another one, each is refused, or
// reaches an engine in Python with a salt that only the first one has. Unread bodies and forms are refused.
func TestNoTenantGetsAnothersSalt(t *testing.T) {
	svc, _ := newService(t)
	set := *svc.Settings()
	set.TenantHeader = "x-tenant"
	svc.Reload(set)
	send := func(path, tenant string, body []byte) (Reply, []byte) {
		x := svc.Begin(Origin{Source: "envoy"})
		x.OnHeaders(Head{Method: "POST", Path: path, Tenant: tenant}, start)
		r := x.OnBody(body, true, start)
		x.Recycle()
		return r, r.Body
	}
	saltOf := func(body []byte) string {
		var value struct {
			Salt string `json:"cache_salt"`
		}
		if err := json.Unmarshal(body, &value); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return value.Salt
	}

	paths := []string{"/v1/completions", "/v1/responses", "/v1/other"}
	_, first := send(paths[0], "a", []byte(`{"model":"sim","prompt":"hello"}`))
	salt := saltOf(first)
	tried := []string{"a", "a\x00", salt, "", "\\u0061"}
	draw := rand.New(rand.NewPCG(3, 4))
	reached := 0
	for range 400 {
		own := tried[draw.IntN(len(tried))]
		members := []string{`"model":"sim"`, `"prompt":"hello"`, `"input":"hello"`, bodies.Quoted(draw, "cache_salt") + `:"` + own + `"`, `"cache_salt":"` + salt + `"`}
		draw.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		text := "{"
		for i, m := range members {
			if i > 0 {
				text += "," + bodies.Space(draw)
			}
			text += m
		}
		r, body := send(paths[draw.IntN(len(paths))], "b", bodies.Encode(draw, text+"}"+bodies.Space(draw)))
		if r.Answer != nil {
			continue
		}
		reached++
		if got := saltOf(body); got == salt || got == "" || slices.Contains(tried, got) {
			t.Errorf("%q reaches an engine as %q", text, body)
		}
	}
	if len(salt) != 32 || reached < 100 {
		t.Errorf("salt %q, and %d requests reached an engine", salt, reached)
	}

	if r, _ := send("/v1/audio/transcriptions", "b", []byte("--form\r\n")); r.Answer == nil {
		t.Error("a form has no salt, and went to an engine")
	}
	// A request without a tenant is salted too.
	if _, body := send("/v1/completions", "", []byte(`{"model":"sim","prompt":"hello"}`)); saltOf(body) == salt || saltOf(body) == "" {
		t.Errorf("without a tenant: %s", body)
	}
}
