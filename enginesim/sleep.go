package enginesim

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
	"github.com/stator-project/stator/internal/prompt/openai"
)

// A reset of the prefix cache and sleep are vLLM's of its development mode:
//
//	call                                   effect
//	-------------------------------------  ------------------------------------------------------------------
//	POST /reset_prefix_cache               the cache is empty at once; the event follows with the next pass
//	POST /reset_prefix_cache?events=none   the same without an event, which no engine should do
//	POST /sleep                            the same as a reset, and no pass begins until /wake_up
//	POST /wake_up, GET /is_sleeping        -
//
// While requests run, a reset and sleep are refused with 409 and change nothing. Requests that come while the engine sleeps wait in its
// queue.

// addSleep adds the handlers of a reset and of sleep.
func (s *Sim) addSleep(mux *http.ServeMux) {
	handle := func(pattern string, change func(r *http.Request) bool) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !change(r) {
				s.writeError(w, &openai.Error{Status: http.StatusConflict, Message: "Requests run: try again when they have ended."})
			}
		})
	}

	handle("POST /reset_prefix_cache", func(r *http.Request) bool { return s.resetCache(r.URL.Query().Get("events") != "none") })
	handle("POST /sleep", func(*http.Request) bool {
		if !s.resetCache(true) {
			return false
		}
		s.sleeping.Store(true)
		return true
	})
	handle("POST /wake_up", func(*http.Request) bool {
		s.sleeping.Store(false)
		s.wakePasses()
		return true
	})

	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]bool{"is_sleeping": s.sleeping.Load()}) // the client has gone
	})
}

// resetCache empties the prefix cache and returns true, unless requests run. reported means that the next pass publishes it.
func (s *Sim) resetCache(reported bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.engine.Reset() {
		return false
	}
	s.cleared = s.cleared || reported
	return true
}

// publish publishes the events of a pass, after an earlier reset. s.mu is held.
func (s *Sim) publish(events []kvevent.Raw) {
	if s.pub == nil {
		return
	}
	if s.cleared {
		s.cleared = false
		events = append([]kvevent.Raw{{Kind: kvevent.Cleared}}, events...)
	}
	if len(events) > 0 {
		s.pub.publish(time.Now(), s.cfg.Rank, events...)
	}
}
