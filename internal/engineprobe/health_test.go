package engineprobe

import (
	"cmp"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/fleet"
)

// patientClient waits for engines on a busy machine, and hastyClient is for engines that do not answer.
var (
	patientClient = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	hastyClient   = &http.Client{Timeout: 200 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
)

// clientFor returns the client for an engine that is to answer so.
func clientFor(want Answer) *http.Client {
	if want == Silent {
		return hastyClient
	}
	return patientClient
}

// TestAskHealth asks engines that answer, refuse, and say nothing.
func TestAskHealth(t *testing.T) {
	answering := func(status int) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/alive" && r.URL.Path != "/v1/models/org/m/ready" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			w.WriteHeader(status)
		})
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()

	for _, c := range []struct {
		name, address string
		want          Answer
		detail        string
		path          string
	}{
		{"healthy", answering(200), Healthy, "", ""},
		{"without such a page", answering(404), Healthy, "/alive answers 404", ""},
		{"loading", answering(503), Refusing, "/alive answers 503", ""},
		{"dead", gone.Addr().String(), Refusing, "connection refused", ""},
		{"frozen", mute.Addr().String(), Silent, "no answer in time", ""},
		{"no address", "no address", Refusing, "wrong address", ""},
		{"Dynamo's frontend", answering(200), Healthy, "", fleet.ReadyPath("org/m")},
		{"Dynamo's frontend without its worker", answering(404), Refusing, "/v1/models/org%2Fm/ready answers 404", fleet.ReadyPath("org/m")},
	} {
		got, detail := AskHealth(t.Context(), clientFor(c.want), c.address, cmp.Or(c.path, "/alive"))
		if got != c.want || !strings.HasPrefix(detail, c.detail) || (c.detail == "") != (detail == "") {
			t.Errorf("%s: %s, %q; want %s, %q", c.name, got, detail, c.want, c.detail)
		}
	}
}

// TestAskCompletion: an engine that answers at all is healthy, except with a server error or without a token. One that begins an answer and
// does not end it is silent.
func TestAskCompletion(t *testing.T) {
	const late = "a completion of one token has no answer in time"
	const empty = "/v1/completions answers 200 without a token"
	with := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
	}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		want   Answer
		detail string
	}{
		"an answer":        {with(`{"choices":[{"text":"b"}],"usage":{"completion_tokens":1}}`), Healthy, ""},
		"an end at once":   {with(`{"choices":[{"text":""}],"usage":{"completion_tokens":1}}`), Healthy, ""},
		"no usage":         {with(`{"choices":[{"text":""}]}`), Healthy, ""},
		"a long answer":    {with(`{"choices":[{"text":"` + strings.Repeat("b", maxHealth) + `"}]}`), Healthy, ""},
		"no choice":        {with(`{"choices":[]}`), Refusing, empty},
		"no token":         {with(`{"choices":[{"text":""}],"usage":{"completion_tokens":0}}`), Refusing, empty},
		"no body":          {with(""), Refusing, empty},
		"no JSON":          {with("<html>"), Refusing, empty},
		"no completions":   {http.NotFound, Healthy, "/v1/completions answers 404"},
		"a dead scheduler": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, Refusing, "/v1/completions answers 500"},
		"no answer":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Silent, late},
		"half an answer": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, Silent, late},
	} {
		e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body) // else the server does not see that the client leaves
			c.serve(w, r)
		}))
		a, detail := AskCompletion(t.Context(), clientFor(c.want), e.Listener.Addr().String(), "m")
		if a != c.want || detail != c.detail {
			t.Errorf("%s: %v, %q; want %v, %q", name, a, detail, c.want, c.detail)
		}
		e.Close()
	}
}
