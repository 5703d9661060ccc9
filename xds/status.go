package xds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Status lists the resources that Envoys were sent, accepted and refused.
type Status struct {
	// Failures are the parts of the configuration that cannot be built now. Their last good versions stay in force. Sorted by part.
	Failures []Failure
	// Envoys are the connected ones, sorted by node id: at most 4,096. Unlisted counts the streams of others.
	Envoys   []EnvoyStatus
	Unlisted int
}

// Failure is a part of the configuration that cannot be built.
type Failure struct {
	// Part is "tables" for listeners, routes and clusters, or the name of the cluster whose endpoints cannot be built.
	Part  string    `json:"part"`
	Error string    `json:"error"`
	Since time.Time `json:"since"`
}

// EnvoyStatus is one connected Envoy. Two with the same node id are one.
type EnvoyStatus struct {
	Node, Version string
	Since         time.Time // when the first of its streams began
	Streams       int
	// Types has an entry for each type of resource that it was sent: cluster, endpoint, listener, route; sorted.
	Types []TypeStatus
}

// TypeStatus has the responses that an Envoy was sent for one type of resource. Versions are the versions of the responses.
type TypeStatus struct {
	Type string
	// Pushes counts responses.
	Pushes uint64
	// Sent is the version of the last response, and Accepted the version of the last one that the Envoy accepted; empty for
	// none.
	Sent, Accepted     string
	SentAt, AcceptedAt time.Time
	// Refusal is the last refusal (NACK), which may be of an earlier response than Accepted; nil for none.
	Refusal *Refusal
}

// Refusal is a response that an Envoy did not accept. The Envoy keeps its previous resources.
type Refusal struct {
	Version string `json:"version"`
	// Message is the reason that the Envoy gave, cut to 2,048 bytes.
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// Bounds of the memory for the pages.
const (
	maxEnvoys     = 4096
	maxMessage    = 2048
	maxUnanswered = 8 // responses of one stream and type
)

// partTables is the Part of listeners, routes and clusters.
const partTables = "tables"

// Status returns the resources that Envoys were sent, accepted and refused. It may be called from any goroutine.
func (s *Server) Status() Status { return s.status.now() }

// journal is the source of Status. All methods are safe for concurrent use.
type journal struct {
	mu       sync.Mutex
	failures map[string]Failure       // guarded by mu; by part
	envoys   map[string]*envoyStatus  // guarded by mu; by node id, at most maxEnvoys
	streams  map[streamID]*streamSent // guarded by mu; those whose Envoys are in envoys
	left     map[streamID]bool        // guarded by mu; the other ones
}

// envoyStatus is the state of one Envoy.
type envoyStatus struct {
	EnvoyStatus

	types map[string]*TypeStatus
}

// streamSent has the responses that one stream has sent and its Envoy has not answered.
type streamSent struct {
	node       string
	unanswered map[string][]response // by type; the newest is last
}

// response is one response of a stream.
type response struct{ nonce, version string }

func newJournal() *journal {
	return &journal{
		failures: map[string]Failure{}, envoys: map[string]*envoyStatus{}, streams: map[streamID]*streamSent{}, left: map[streamID]bool{},
	}
}

// fail records why a part of the configuration cannot be built.
func (s *journal) fail(part, why string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	f, known := s.failures[part]
	if !known {
		f = Failure{Part: part, Since: now}
	}
	f.Error = clip(why, maxMessage)
	s.failures[part] = f
}

// succeed records that a part of the configuration was built.
func (s *journal) succeed(part string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.failures, part)
}

// join adds a stream of an Envoy, unless it is there.
func (s *journal) join(id streamID, node *corev3.Node, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[id] != nil || s.left[id] {
		return
	}

	name := strings.Map(printable, clip(node.GetId(), maxName))
	e := s.envoys[name]
	if e == nil {
		if len(s.envoys) >= maxEnvoys {
			s.left[id] = true
			return
		}
		e = &envoyStatus{EnvoyStatus{Node: name, Since: now}, map[string]*TypeStatus{}}
		s.envoys[name] = e
	}
	e.Version = fullVersion(node)
	e.Streams++
	s.streams[id] = &streamSent{name, map[string][]response{}}
}

// leave removes a stream. An Envoy is forgotten with its last one.
func (s *journal) leave(id streamID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.left, id)
	stream := s.streams[id]
	if stream == nil {
		return
	}

	delete(s.streams, id)
	e := s.envoys[stream.node]
	e.Streams--
	if e.Streams == 0 {
		delete(s.envoys, stream.node)
	}
}

// sent records a response on a stream.
func (s *journal) sent(id streamID, url string, r response, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := s.streams[id]
	if stream == nil {
		return
	}

	kind := shortType(url)
	waiting := append(stream.unanswered[kind], r)
	stream.unanswered[kind] = waiting[max(0, len(waiting)-maxUnanswered):]
	types := s.envoys[stream.node].types
	t := types[kind]
	if t == nil {
		t = &TypeStatus{Type: kind}
		types[kind] = t
	}
	t.Pushes++
	t.Sent, t.SentAt = r.version, now
}

// answered records that an Envoy accepted a response, or refused it for a reason. It does nothing for a nonce that was answered
// already, or never sent.
func (s *journal) answered(id streamID, url string, r request, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := s.streams[id]
	if stream == nil || r.nonce == "" {
		return
	}

	kind := shortType(url)
	waiting := stream.unanswered[kind]
	i := slices.IndexFunc(waiting, func(sent response) bool { return sent.nonce == r.nonce })
	if i < 0 {
		return
	}
	t, version := s.envoys[stream.node].types[kind], waiting[i].version
	stream.unanswered[kind] = slices.Delete(waiting, 0, i+1) // answers come in order
	if r.refuses {
		t.Refusal = &Refusal{version, r.why, now}
		return
	}
	t.Accepted, t.AcceptedAt = version, now
}

// now returns a copy.
func (s *journal) now() (out Status) {
	s.mu.Lock()
	defer s.mu.Unlock()

	out.Failures = slices.SortedFunc(maps.Values(s.failures), func(a, b Failure) int { return cmp.Compare(a.Part, b.Part) })
	out.Unlisted = len(s.left)
	for _, e := range s.envoys {
		shown := e.EnvoyStatus
		for _, t := range e.types {
			shown.Types = append(shown.Types, *t)
		}
		slices.SortFunc(shown.Types, func(a, b TypeStatus) int { return cmp.Compare(a.Type, b.Type) })
		out.Envoys = append(out.Envoys, shown)
	}
	slices.SortFunc(out.Envoys, func(a, b EnvoyStatus) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// printable replaces characters that a terminal may obey.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// clip returns a text cut to a length in bytes, and without broken characters.
func clip(text string, length int) string {
	return strings.ToValidUTF8(text[:min(len(text), length)], "")
}
