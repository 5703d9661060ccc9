package admin

import (
	"io"
	"net/http"
	"sync"

	"github.com/stator-project/stator/internal/decisionlog"
)

// maxDryRun bounds the body of a request of a dry run in bytes. The gateway's own bound counts, too.
const maxDryRun = 32 << 20

// addDryRun adds the call for a decision without its effects. One is made at a time: each may take as much memory as its body has bytes.
func (s Sources) addDryRun(p *pages) {
	if s.DryRun == nil {
		return
	}
	var one sync.Mutex
	p.postOf(pathDryRun, maxDryRun, func(w http.ResponseWriter, r *http.Request) {
		if !one.TryLock() {
			http.Error(w, "another dry run is being made: try again", http.StatusServiceUnavailable)
			return
		}
		defer one.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "read the body: "+err.Error(), http.StatusBadRequest)
			return
		}

		query := r.URL.Query()
		d, err := s.DryRun(query.Get("path"), query.Get("tenant"), body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		show(w, r, func() string { return d.String() + s.unready(d) }, func() any { return decisionlog.View(d) })
	})
}
