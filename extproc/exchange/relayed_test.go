package exchange

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// TestRelayToTheOnlyDecodeWorker: a decode worker that could not fetch a prompt computes it if there is no other one.
func TestRelayToTheOnlyDecodeWorker(t *testing.T) {
	p := newPrefillWorker(t, answers(http.StatusOK, `{"choices":[],"kv_transfer_params":`+given+`}`))
	s, router, _ := newSplit(t, 0, p.URL)
	r, ok := post(t.Context(), t, s, Head{}, completionOfClient)
	if !ok || r.Pick == nil || !r.Pick.Split {
		t.Fatalf("%+v", r)
	}

	relayed, refused := s.Relay(t.Context(), Head{Method: http.MethodPost, Path: "/v1/completions"}, r.Pick.ID, []byte(completionOfClient))
	if refused != nil {
		t.Fatalf("%s", refused.Body)
	}
	for i := range maxAttempts {
		attempt, refused := relayed.Next(t.Context(), time.Now())
		if refused != nil {
			t.Fatalf("attempt %d: %d %s", i, refused.Status, refused.Body)
		}
		if attempt.Address != "10.0.0.1:8000" || bodyOf(t, attempt) != completionOfClient || attempt.Last() != (i == maxAttempts-1) {
			t.Errorf("attempt %d: %s receives %s, last: %v", i, attempt.Address, bodyOf(t, attempt), attempt.Last())
		}
		// The end of the request counts for this worker, even if Envoy reports it now.
		if k, ok := s.LastBooking(r.Pick.ID); !ok || k.Rank.Worker.Address != attempt.Address {
			t.Errorf("attempt %d: the last booking is %+v, %v", i, k, ok)
		}
		attempt.Failed(io.EOF, time.Now())
	}
	if n := router.Bookings(); n != 0 {
		t.Errorf("%d bookings are left", n)
	}
}

// bodyOf returns the body that the decode worker of an attempt receives.
func bodyOf(t *testing.T, a *Attempt) string {
	t.Helper()
	r, err := a.Body.NewRequest(t.Context(), "http://"+a.Address)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFailuresOfALivingWorker: if the picked worker accepts connections, its failures are no evidence of its health.
func TestFailuresOfALivingWorker(t *testing.T) {
	for _, alive := range []bool{true, false} {
		p := newPrefillWorker(t, answers(http.StatusOK, `{"choices":[],"kv_transfer_params":`+given+`}`))
		s, router, _ := newSplit(t, 0, p.URL)
		for range 4 {
			r, _ := post(t.Context(), t, s, Head{}, completionOfClient)
			relayed, _ := s.Relay(t.Context(), Head{Method: http.MethodPost, Path: "/v1/completions"}, r.Pick.ID, []byte(completionOfClient))
			if at := relayed.FailedAt(); at != "10.0.0.1:8000" {
				t.Errorf("the worker at %q has failed", at)
			}
			if alive {
				relayed.IsAlive()
			}
			attempt, refused := relayed.Next(t.Context(), time.Now())
			if refused != nil || relayed.FailedAt() != "" {
				t.Fatalf("%+v", refused)
			}
			attempt.Left(time.Now())
		}
		if held := router.Stats().HeldBack > 0; held == alive {
			t.Errorf("alive %v: the worker is held back: %v", alive, held)
		}
	}
}
