package stream

import (
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// observed are the messages of an Envoy that ignores replies.
func observed(list ...*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
	for _, m := range list {
		m.ObservabilityMode = true
	}
	return list
}

// TestShadow: a shadow decides about a body in pieces, replies to nothing, and follows the response to its end.
func TestShadow(t *testing.T) {
	w, e, client := followingAs(t, true)
	replies := all(t, client, observed(completionHeaders(false), bodyMessage(false, hello[:5]), bodyMessage(true, hello[5:]),
		responseHeaders(false, ":status", "200"), responseBody(false, `{"usage":{"completion_`), responseBody(true, `tokens":7}}`))...)
	got := e.one(t)
	if len(replies) != 0 || got.Status != 200 || got.Output != 7 || got.ResponseBytes != 33 || got.LastByte == 0 || w.bodyBytes() != 0 {
		t.Errorf("%d replies, %d bytes held, %+v", len(replies), w.bodyBytes(), got)
	}
	if d, ok := w.Router.Explain(got.Booking); !ok || d.PromptTokens != len("hello") {
		t.Errorf("decision %+v", d)
	}
}

// TestShadowHarmsNothing: the stream of a request that a shadow cannot use ends without a reply and without an error, and the log names the
// setting to change.
func TestShadowHarmsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		list []*extprocv3.ProcessingRequest
		log  string
	}{
		"it awaits a reply":  {[]*extprocv3.ProcessingRequest{first(buffered)}, "set observability_mode"},
		"no body":            {observed(completionHeaders(false), responseHeaders(true, ":status", "200")), "set request_body_mode"},
		"headers twice":      {observed(completionHeaders(false), completionHeaders(false)), "arrived twice"},
		"a body of no model": {observed(completionHeaders(false), bodyMessage(true, "no JSON")), ""},
	} {
		w, e, client := followingAs(t, true)
		replies := all(t, client, c.list...)
		if len(replies) != 0 || len(e.got) != 0 || c.log != "" && w.Log.Count(c.log) != 1 {
			t.Errorf("%s: %d replies, %d ends, log: %s", name, len(replies), len(e.got), &w.Log)
		}
		w.idle(t)
	}
}
