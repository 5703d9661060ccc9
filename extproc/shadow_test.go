package extproc

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stator-project/stator/extproc/exchange"
)

// TestWatcher: the end of a request is in the log with the worker that served and the tokens of the answer. The requests that are followed
// at one time are bounded.
func TestWatcher(t *testing.T) {
	l := newTestLog(t, 1<<20)
	w := &watcher{log: l.decisionLog}
	for range maxWatched {
		if !w.Follow("envoy", "x") {
			t.Fatal("a request within the bound is not followed")
		}
	}
	if w.Follow("envoy", "x") {
		t.Error("a request beyond the bound is followed")
	}
	w.Ended("envoy", exchange.Ending{Booking: "x", Served: "10.0.0.1:8000", Output: 7, FirstByte: time.Second}, time.Now())
	if !w.Follow("envoy", "x") {
		t.Error("the end of a request has made no room")
	}

	l.writeAll()
	text, err := os.ReadFile(l.path)
	want := `"outcome":"unconfirmed","served":"10.0.0.1:8000","first_byte_ms":1000,"last_byte_ms":0,"response_bytes":0,"output_tokens":7`
	if err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v, %s", err, text)
	}
	if (&watcher{}).Wanted("envoy") {
		t.Error("ends are wanted without a log")
	}
}
