package admin

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync/atomic"
)

// maxProfileSeconds bounds the time for which a profile is recorded.
const maxProfileSeconds = 60

// recording is true while a profile is recorded. It belongs to the process, as the profiler of Go does.
var recording atomic.Bool

// addProfiles adds the profiles of the Go runtime. The command line is not among them, because it may have secrets.
func addProfiles(p *pages) {
	p.addPage(pathProfiles, func(w http.ResponseWriter, r *http.Request) {
		// With seconds, the other profiles are recorded for that time too.
		if r.URL.Query().Has("seconds") {
			record(pprof.Index)(w, r)
			return
		}
		pprof.Index(w, r)
	})
	p.mux.HandleFunc("GET "+pathProfiles+"profile", record(pprof.Profile))
	p.mux.HandleFunc("GET "+pathProfiles+"trace", record(pprof.Trace))
	p.mux.HandleFunc("GET "+pathProfiles+"symbol", pprof.Symbol)
}

// record serves one recording at a time, of at most maxProfileSeconds.
func record(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
		if err == nil && !(seconds <= maxProfileSeconds) {
			http.Error(w, fmt.Sprintf("seconds must be at most %d", maxProfileSeconds), http.StatusBadRequest)
			return
		}
		if !recording.CompareAndSwap(false, true) {
			http.Error(w, "another profile is being recorded: try again when it has ended", http.StatusServiceUnavailable)
			return
		}

		defer recording.Store(false)
		h(w, r)
	}
}
