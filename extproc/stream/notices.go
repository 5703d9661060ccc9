package stream

import (
	"log/slog"
	"sync"
)

// notices logs mistakes in the configuration of an Envoy's filter, once for each Envoy.
// Every request would repeat it.
type notices struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[[2]string]struct{} // by Envoy and text; at most maxNotices; guarded by mu
}

// maxNotices bounds the notices that are logged. It exceeds the number of Envoys and mistakes in one place.
const maxNotices = 256

// logOnce logs a notice about an Envoy, unless it was logged before.
func (n *notices) logOnce(source, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := [2]string{source, text}
	if _, ok := n.seen[key]; ok || len(n.seen) == maxNotices {
		return
	}

	if n.seen == nil {
		n.seen = map[[2]string]struct{}{}
	}
	n.seen[key] = struct{}{}
	n.log.Warn("an Envoy's ext_proc filter is not configured as it should be", "envoy", source, "problem", text)
}
