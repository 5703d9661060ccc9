package relay

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/stator-project/stator/test/doors"
)

// TestScenarios sends the requests of the scenarios of Envoy's messages to the relay. It answers those that the other door answers with
// the same status and code, and sends those that the other door sends to workers to one of the same workers. Left out are requests
// without a body, hints and tenants, which the relay takes from the decision, and paths that the relay does not serve.
func TestScenarios(t *testing.T) {
	played := 0
	for _, name := range []string{"adapters", "chat", "encoding", "local", "models", "ranks", "refused", "unknown"} {
		s := newScenario(t)
		datadriven.RunTest(t, "../stream/testdata/exchange/"+name+".txt", s.act)
		played += s.played
	}
	if played < 20 {
		t.Errorf("%d requests were played", played)
	}
}

// scenario is a relay before workers at any address, which answer with "good".
type scenario struct {
	*doors.World
	handler *Handler
	method  string // of the request whose body comes next
	path    string
	sent    []string // addresses of workers
	played  int
}

func newScenario(t *testing.T) *scenario {
	s := &scenario{World: doors.New("127.0.0.1:1", nil)}
	s.handler = New(Config{Requests: s.Requests, Log: s.Logger, Metrics: s.Registry})
	engine := httptest.NewServer(answers(http.StatusOK, "good"))
	t.Cleanup(engine.Close)
	s.handler.engines.DisableKeepAlives = true
	s.handler.engines.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		s.sent = append(s.sent, address)
		return (&net.Dialer{}).DialContext(ctx, network, engine.Listener.Addr().String())
	}
	return s
}

var (
	answerLine = regexp.MustCompile(`^answer (\d+) `)
	errorCode  = regexp.MustCompile(`"code":[^}]*`)
	workers    = regexp.MustCompile(`(?m)^  metadata envoy.lb x-gateway-destination-endpoint = (.*)$`)
)

// act plays a verb, and returns what the file expects: a difference fails the test itself.
func (s *scenario) act(t *testing.T, d *datadriven.TestData) string {
	switch {
	case s.Act(t, d):
	case d.Cmd == "request":
		s.method = d.CmdArgs[0].Key
		s.path = doors.Path(d)
	case d.Cmd == "body":
		s.body(t, d)
	}
	return d.Expected
}

func (s *scenario) body(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), s.method, s.path, bytes.NewReader(doors.Body(t, d)))
	got := httptest.NewRecorder()
	s.sent = nil
	s.handler.ServeHTTP(got, r)
	if got.Code == http.StatusNotFound && strings.Contains(got.Body.String(), "The relay has no such path") {
		return
	}
	s.played++

	if want := answerLine.FindStringSubmatch(d.Expected); want != nil {
		code := errorCode.FindString(d.Expected)
		if strconv.Itoa(got.Code) != want[1] || code == "" || errorCode.FindString(got.Body.String()) != code || len(s.sent) > 0 {
			t.Errorf("%s: %d %s, sent to %v; want %s and %s", d.Pos, got.Code, got.Body, s.sent, want[1], code)
		}
		return
	}
	among := workers.FindStringSubmatch(d.Expected)
	if got.Code != http.StatusOK || len(s.sent) != 1 || among == nil || !slices.Contains(strings.Split(among[1], ","), s.sent[0]) {
		t.Errorf("%s: %d %s, sent to %v; want one of %v", d.Pos, got.Code, got.Body, s.sent, among)
	}
}
