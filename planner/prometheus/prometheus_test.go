package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server answers queries as Prometheus does, by the metric that a query names.
func server(t *testing.T, values map[string]string) (*Source, *[]string) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query().Get("query")
		asked = append(asked, q+" "+r.Header.Get("Authorization"))
		for metric, value := range values {
			if strings.Contains(q, metric) {
				fmt.Fprint(w, value)
				return
			}
		}
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"vector","result":[]}}`)
	}))
	t.Cleanup(s.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := New(Config{URL: s.URL + "/", TokenFile: token, Namespace: "my-ns"})
	if err != nil {
		t.Fatal(err)
	}
	return source, &asked
}

func vector(pairs ...string) string {
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, fmt.Sprintf(`{"metric":{"model":%q},"value":[1767225600,%q]}`, pairs[i], pairs[i+1]))
	}
	return `{"status":"success","data":{"resultType":"vector","result":[` + strings.Join(list, ",") + `]}}`
}

// Arrivals of a minute become arrivals of an interval, and means become lengths.
func TestTake(t *testing.T) {
	s, asked := server(t, map[string]string{
		requestsStarted: vector("m", "120", "idle", "0"), promptTokens: vector("m", "2000", "idle", "NaN"), answerTokens: vector("m", "150"),
		hitRate: vector("", "0.5"),
	})
	now := time.Now()
	list, err := s.Take(t.Context(), now)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if idle := list[0]; idle.Model != "idle" || idle.Requests != 0 || idle.Prompt.Count != 0 {
		t.Errorf("%+v", idle)
	}
	m := list[1]
	if m.Requests != 10 || m.Over != 5*time.Second || m.Prompt.Sum != 20_000 || m.Answer.Sum != 1500 || m.CachedTokens != 10_000 {
		t.Errorf("%+v", m)
	}
	want := `sum by (model) (increase(dynamo_frontend_requests_started_total{dynamo_namespace="my_ns"}[60s])) Bearer secret`
	if (*asked)[0] != want {
		t.Errorf("asked %s, want %s", (*asked)[0], want)
	}

	if list, err = s.Take(t.Context(), now.Add(20*time.Second)); err != nil || list[1].Requests != 40 {
		t.Errorf("after 20 s: %+v, %v", list, err)
	}
}

// Releases that count no starts have the total instead, and a figure that fails leaves the others.
func TestTakeWithLess(t *testing.T) {
	s, _ := server(t, map[string]string{requests: vector("m", "60"), promptTokens: `{"status":"error","error":"too much"}`})
	list, err := s.Take(t.Context(), time.Now())
	if len(list) != 1 || list[0].Requests != 5 || list[0].Prompt.Count != 0 || err == nil || !strings.Contains(err.Error(), "too much") {
		t.Errorf("%+v, %v", list, err)
	}
}

// Errors name what to change.
func TestTakeFails(t *testing.T) {
	for body, want := range map[string]string{
		"<html>":                             "check planner.prometheus.url",
		`{"status":"error","error":"parse"}`: "parse",
		vector():                             "the server has no arrivals",
		strings.Repeat("x", maxAnswer+2):     "more than 8 MB",
		`{"status":"success","data":{"result":[` + strings.Repeat(`{},`, maxModels) + `{}]}}`: "at most 1024 are read",
	} {
		s, _ := server(t, map[string]string{"dynamo": body})
		if list, err := s.Take(t.Context(), time.Now()); list != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, %v", body, list, err)
		}
	}
	if _, err := New(Config{CAFile: "/none"}); err == nil {
		t.Error("a file that is not there must be refused")
	}
}

// FuzzParse: no answer makes reading fail otherwise than by an error, and values are in their bounds.
func FuzzParse(f *testing.F) {
	f.Add([]byte(vector("m", "1e9")))
	f.Add([]byte(`{"status":"success","data":{"result":[{"value":[1,2]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := parse(200, data)
		for _, v := range values {
			if err != nil || !(v >= 0 && v <= 1e15) {
				t.Fatal(values, err)
			}
		}
	})
}
