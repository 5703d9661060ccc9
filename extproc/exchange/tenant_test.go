package exchange

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/extproc/quota"
	"github.com/stator-project/stator/internal/route/decision"
)

// TestLongNamesOfTenants: answers count for the tenant that has sent the request, also if its name is longer than the ones that bookings keep.
func TestLongNamesOfTenants(t *testing.T) {
	svc, _ := newService(t)
	set := *svc.Settings()
	set.TenantHeader, set.Limits = "x-tenant", quota.Settings{All: quota.Limits{AnswerTokensPerMinute: 1}}
	svc.Reload(set)
	for _, tenant := range []string{"short", strings.Repeat("long", 100)} {
		for _, want := range []int{0, 429} {
			x := svc.Begin(Origin{Source: "envoy"})
			status := 0
			if a := x.OnHeaders(Head{Method: "POST", Path: "/v1/completions", Tenant: tenant}, start).Answer; a != nil {
				status = a.Status
			}
			if status != want {
				t.Errorf("tenant %.9s: status %d, want %d", tenant, status, want)
			}
			x.Recycle()
			svc.ChargeAnswer(decision.Label(tenant), 10, start)
		}
	}
}

// TestSaltIsTheLast: the salt replaces one that the client has set, for every parser that takes the last of equal
// members, and changes nothing else.
func TestSaltIsTheLast(t *testing.T) {
	for body, want := range map[string]string{
		`{"model": "m", "cache_salt": "other's", "x": {}}`: `{"cache_salt":"s","model":"m","x":{}}`,
		" {\"a\": [1, {}] }\n":                             `{"a":[1,{}],"cache_salt":"s"}`,
		`{}`:                                               `{"cache_salt":"s"}`,
		`{ }`:                                              `{"cache_salt":"s"}`,
		`[]`:                                               "",
		`--form`:                                           "",
		`{"a"`:                                             "",
		``:                                                 "",
	} {
		got := forwarded([]byte(body), nil, &decision.Decision{Client: decision.Client{CacheSalt: "s"}})
		if want == "" {
			if got != nil {
				t.Errorf("%s became %s", body, got)
			}
			continue
		}
		var value any
		if err := json.Unmarshal(got, &value); err != nil {
			t.Errorf("%s became %s: %v", body, got, err)
			continue
		}
		if same, err := json.Marshal(value); err != nil || string(same) != want {
			t.Errorf("%s became %s, which means %s", body, got, same)
		}
	}
	if forwarded([]byte(`{"a":1}`), nil, &decision.Decision{}) != nil {
		t.Error("a body without a salt was changed")
	}
	pinned := forwarded([]byte(`{"a":1}`), nil, &decision.Decision{Client: decision.Client{Pin: 5 * time.Minute}})
	if want := `{"a":1,"kv_transfer_params":{"stator_pin_seconds":300}}`; string(pinned) != want {
		t.Errorf("a request whose prompt is pinned became %s, want %s", pinned, want)
	}
	both := forwarded([]byte(`{"model": "alias"}`), nil, &decision.Decision{Pool: "m", Alias: true, Client: decision.Client{CacheSalt: "s"}})
	if want := `{"model": "alias","model":"m","cache_salt":"s"}`; string(both) != want {
		t.Errorf("the request for an alias became %s, want %s", both, want)
	}
}
