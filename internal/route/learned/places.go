package learned

import "sync"

// Places are the workers that got the latest requests of sessions. Engines store answers by which a later request continues a conversation
// in the memory of one process, and routers do not see the ids of answers: so the session alone leads to the worker that has one. The
// latest 4,096 sessions are kept, each in a place that depends on its hash. The zero value is empty. All methods are safe for concurrent
// use.
type Places struct {
	mu sync.Mutex
	of [placesKept]struct {
		session uint64
		worker  string
	} // guarded by mu
}

// placesKept is the number of sessions. Their hashes and the headers of their workers' names have 96 KiB.
const placesKept = 4096

// Put stores the worker of a session's request. Session is the hash of its name; 0, for a request without one, is not stored. The name of
// the worker is kept.
func (p *Places) Put(session uint64, worker string) {
	if session == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	place := &p.of[session%placesKept]
	place.session, place.worker = session, worker
}

// Of returns the worker of a session's latest request; empty if it is not known.
func (p *Places) Of(session uint64) (worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if place := &p.of[session%placesKept]; session != 0 && place.session == session {
		return place.worker
	}
	return ""
}
