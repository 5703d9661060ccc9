package exchange

import (
	"strings"
	"testing"

	"github.com/stator-project/stator/internal/route/decision"
)

// TestPickHeaderOnlyWhereItIsRead: an Envoy configured by package xds receives the pick in metadata only. Every
// Envoy receives the changes of the request.
func TestPickHeaderOnlyWhereItIsRead(t *testing.T) {
	s, _ := newService(t)
	for _, c := range []struct {
		reads bool
		pick  decision.Decision
		want  int // headers set
	}{
		{false, decision.Decision{Model: "m", Placement: decision.Placement{Address: "10.0.0.1:80", Ranks: 1}}, 1},
		{true, decision.Decision{Model: "m", Placement: decision.Placement{Address: "10.0.0.1:80", Ranks: 1}}, 0},
		{true, decision.Decision{Model: "other", Placement: decision.Placement{Address: "10.0.0.1:80", Ranks: 2}}, 2},
	} {
		s.Reload(Settings{DefaultModel: "m", SeveralPools: c.pick.Model == "other"})
		x := s.Begin(Origin{ReadsMetadata: c.reads})
		if got := len(x.pick(&c.pick, nil).Set); got != c.want {
			t.Errorf("reads metadata %v, pick %+v: %d headers set, want %d", c.reads, c.pick, got, c.want)
		}
	}
}

// TestFormsOfErrors: errors have the form of the API whose path was asked.
func TestFormsOfErrors(t *testing.T) {
	a := NoAnswer()
	openAI := string(a.Body)
	for path, want := range map[string]string{
		"/v1/messages": `{"type":"error","error":{"type":"overloaded_error",`, "/v1/messages/count_tokens": `{"type":"error",`,
		"/v1/responses": openAI, "/v1/messagesx": openAI, "": openAI,
	} {
		if got := string(a.For(path).Body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	if page := (&Answer{Body: []byte("x")}).For("/v1/messages"); string(page.Body) != "x" {
		t.Errorf("an answer that is no error: %s", page.Body)
	}
}
