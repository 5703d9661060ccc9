// Package kubeapi is a small API server of Kubernetes for tests: lists and watches of pods, InferencePools, Services and
// EndpointSlices, and objects with the subresource scale, with the faults that real ones have. It has what package discovery/kubernetes
// asks for, and nothing more.
//
// All methods are safe for concurrent use.
package kubeapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is an API server. Create it with [New].
type Server struct {
	// URL is its address.
	URL string

	mu      sync.Mutex
	version int
	oldest  int // versions before it are forgotten
	objects map[string]map[string]any
	events  []event
	changed chan struct{} // closed at the next change
	broken  int           // the status of every answer; 0 for none
	cuts    int           // raised to end all watches
	half    bool          // watches end in the middle of a line
	lists   map[string]int
	scales  map[string]*scaled // by path
	refused int                // the status of every answer to a PATCH; 0 for none
	writes  []Write
	written []Event

	refusedEvents int // a status

	nodes map[string]map[string]string // labels by name; nil while nodes may not be read
}

// event is one change.
type event struct {
	version int
	kind    string // ADDED, MODIFIED or DELETED
	path    string // of the object
	object  map[string]any
}

// New returns a server that serves until the test ends.
func New(t testing.TB) *Server {
	s := &Server{objects: map[string]map[string]any{}, changed: make(chan struct{}), lists: map[string]int{}, scales: map[string]*scaled{}}
	web := httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = web.URL
	t.Cleanup(func() {
		s.Cut(false)
		web.CloseClientConnections()
		web.Close()
	})
	return s
}

// Pod describes a pod.
type Pod struct {
	Namespace, Name, UID, IP string
	Node                     string
	Labels                   map[string]string
	Ready, Terminating       bool
	Restarts                 int
	// Owner is the kind of its controller, and Unscheduled why its scheduler finds no node for it.
	Owner, Unscheduled string
	Created            time.Time
}

// PutPod adds or changes a pod.
func (s *Server) PutPod(p Pod) {
	meta := map[string]any{"name": p.Name, "namespace": p.Namespace, "uid": p.UID, "labels": p.Labels}
	if p.Terminating {
		meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	meta["creationTimestamp"] = p.Created
	meta["ownerReferences"] = []any{map[string]any{"kind": p.Owner, "controller": true}}
	ready, scheduled := "False", "True"
	if p.Ready {
		ready = "True"
	}
	if p.Unscheduled != "" {
		scheduled = "False"
	}
	spec := map[string]any{"nodeName": p.Node}
	s.put(podPath(p.Namespace, p.Name), map[string]any{"metadata": meta, "spec": spec, "status": map[string]any{
		"podIP": p.IP,
		"conditions": []any{
			map[string]any{"type": "PodScheduled", "status": scheduled, "message": p.Unscheduled},
			map[string]any{"type": "Ready", "status": ready},
		},
		"containerStatuses": []any{map[string]any{"restartCount": p.Restarts}},
	}})
}

// PutNode adds a node, or changes its labels. Before the first one, the account has no right to read nodes.
func (s *Server) PutNode(name string, labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes == nil {
		s.nodes = map[string]map[string]string{}
	}
	s.nodes[name] = labels
}

// node answers with the metadata of a node.
func (s *Server) node(w http.ResponseWriter, name string) {
	s.mu.Lock()
	labels, known := s.nodes[name]
	mayRead := s.nodes != nil
	s.lists["nodes"]++
	s.mu.Unlock()
	switch {
	case !mayRead:
		refuse(w, http.StatusForbidden, `nodes "`+name+`" is forbidden`)
	case !known:
		refuse(w, http.StatusNotFound, `nodes "`+name+`" not found`)
	default:
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "PartialObjectMetadata", "metadata": map[string]any{"name": name, "labels": labels},
		})
	}
}

// DeletePod deletes a pod.
func (s *Server) DeletePod(namespace, name string) { s.remove(podPath(namespace, name)) }

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// PutPool adds or changes an InferencePool.
func (s *Server) PutPool(namespace, name string, labels map[string]string, ports ...int) {
	var targets []any
	for _, p := range ports {
		targets = append(targets, map[string]any{"number": p})
	}
	s.put(poolPath(namespace, name), map[string]any{
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": name},
		"spec":     map[string]any{"selector": map[string]any{"matchLabels": labels}, "targetPorts": targets},
	})
}

// Picker is the endpoint picker that a pool names.
type Picker struct {
	Name        string
	Port        int
	FailureMode string
}

// NamePicker has a pool name a picker.
func (s *Server) NamePicker(namespace, pool string, p Picker) {
	path := poolPath(namespace, pool)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.objects[path]
	spec := maps.Clone(before["spec"].(map[string]any))
	spec["endpointPickerRef"] = map[string]any{"name": p.Name, "port": map[string]any{"number": p.Port}, "failureMode": p.FailureMode}
	object := map[string]any{"metadata": maps.Clone(before["metadata"].(map[string]any)), "spec": spec}
	s.recordLocked("MODIFIED", path, object)
	s.objects[path] = object
}

// PutService adds or changes a Service with a port, and an EndpointSlice with so many endpoints that are ready, and others.
func (s *Server) PutService(namespace, name string, port, ready, others int) {
	s.put("/api/v1/namespaces/"+namespace+"/services/"+name, map[string]any{
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": name},
		"spec":     map[string]any{"ports": []any{map[string]any{"port": port}}},
	})
	var endpoints []any
	for i := range ready + others {
		endpoints = append(endpoints, map[string]any{"conditions": map[string]any{"ready": i < ready}})
	}
	s.put("/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices/"+name+"-1", map[string]any{
		"metadata": map[string]any{
			"name": name + "-1", "namespace": namespace, "uid": name + "-1",
			"labels": map[string]string{"kubernetes.io/service-name": name},
		},
		"endpoints": endpoints,
	})
}

// DeletePool deletes an InferencePool.
func (s *Server) DeletePool(namespace, name string) { s.remove(poolPath(namespace, name)) }

func poolPath(namespace, name string) string {
	return "/apis/inference.networking.k8s.io/v1/namespaces/" + namespace + "/inferencepools/" + name
}

// PutEndpoints adds or changes an EndpointSlice of a Service.
func (s *Server) PutEndpoints(namespace, service, name string, ips ...string) {
	var endpoints []any
	for _, ip := range ips {
		endpoints = append(endpoints, map[string]any{"addresses": []string{ip}, "conditions": map[string]any{"ready": false}})
	}
	s.put("/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices/"+name, map[string]any{
		"metadata": map[string]any{
			"name": name, "namespace": namespace, "labels": map[string]string{"kubernetes.io/service-name": service},
		},
		"endpoints": endpoints,
	})
}

// NoAnswer has [Server.Break] end connections without an answer.
const NoAnswer = -1

// Break has every answer be that status, such as 403 or 503, and ends all watches. 0 ends it.
func (s *Server) Break(status int) {
	s.mu.Lock()
	s.broken = status
	s.mu.Unlock()
	s.Cut(false)
}

// Cut ends all watches, as API servers do every hour. half ends them in the middle of a line.
func (s *Server) Cut(half bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	s.half = half
	s.notifyLocked()
}

// Forget forgets all versions, so that watches from them are answered with 410, and ends all watches.
func (s *Server) Forget() {
	s.mu.Lock()
	s.version += 10
	s.oldest = s.version
	s.events = nil
	s.mu.Unlock()
	s.Cut(false)
}

// Lists returns how often a resource was listed: "pods" or "inferencepools". Of "nodes" it is how often one was read.
func (s *Server) Lists(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[resource]
}

func (s *Server) put(path string, object map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "ADDED"
	if before := s.objects[path]; before != nil {
		kind = "MODIFIED"
		object["metadata"].(map[string]any)["annotations"] = before["metadata"].(map[string]any)["annotations"]
	}
	s.recordLocked(kind, path, object)
	s.objects[path] = object
}

func (s *Server) remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[path]
	if object == nil {
		return
	}
	delete(s.objects, path)

	// A watch may be writing an earlier event of the object.
	object = maps.Clone(object)
	object["metadata"] = maps.Clone(object["metadata"].(map[string]any))
	s.recordLocked("DELETED", path, object)
}

func (s *Server) recordLocked(kind, path string, object map[string]any) {
	s.version++
	object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	s.events = append(s.events, event{s.version, kind, path, object})
	s.notifyLocked()
}

func (s *Server) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// serve answers a list or a watch.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.mu.Lock()
	broken := s.broken
	if r.Method != http.MethodGet && broken == 0 {
		broken = s.refused
	}
	at := s.scales[strings.TrimSuffix(r.URL.Path, "/scale")]
	s.mu.Unlock()

	switch {
	case broken == NoAnswer:
		panic(http.ErrAbortHandler) // which ends the connection
	case broken != 0:
		refuse(w, broken, "the test has broken the server")
	case query.Get("watch") == "true":
		s.watch(w, r)
	case at != nil:
		s.scale(w, r, at)
	case r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status"):
		s.setStatus(w, r)
	case r.Method == http.MethodPatch:
		s.annotate(w, r)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods"):
		s.create(w, r)
	case r.Method == http.MethodPost:
		s.record(w, r)
	case strings.HasPrefix(r.URL.Path, nodesPath):
		s.node(w, strings.TrimPrefix(r.URL.Path, nodesPath))
	case r.Method == http.MethodDelete:
		s.end(w, r)
	case strings.Count(r.URL.Path, "/") == 3:
		s.kinds(w, r)
	default:
		s.list(w, r)
	}
}

const nodesPath = "/api/v1/nodes/"

func refuse(w http.ResponseWriter, code int, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, message))
}

func status(code int, message string) map[string]any {
	return map[string]any{"kind": "Status", "code": code, "message": message}
}

// list answers with pages of at most as many objects as the client asks for.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	query := r.URL.Query()
	limit, _ := strconv.Atoi(query.Get("limit"))
	skip, _ := strconv.Atoi(query.Get("continue"))
	if skip == 0 {
		s.lists[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]++
	}

	items, next := []any{}, ""
	at := 0
	for path, object := range sorted(s.objects) {
		if !selects(query, r.URL.Path, path, object) {
			continue
		}
		at++
		if at <= skip {
			continue
		}
		if len(items) == limit {
			next = strconv.Itoa(skip + limit)
			break
		}
		items = append(items, object)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "List", "metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version), "continue": next}, "items": items,
	})
}

// watch answers with the changes after a version, until the watches are cut.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	after, err := strconv.Atoi(query.Get("resourceVersion"))
	if err != nil {
		refuse(w, http.StatusBadRequest, "resourceVersion is no number")
		return
	}
	s.mu.Lock()
	cuts := s.cuts
	if after < s.oldest {
		s.mu.Unlock()
		_, _ = fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}`)
		return
	}
	s.mu.Unlock()

	for {
		s.mu.Lock()
		changed := s.changed
		cut, half := s.cuts != cuts, s.half
		var due []event
		for _, e := range s.events {
			if e.version > after && selects(query, r.URL.Path, e.path, e.object) {
				due = append(due, e)
			}
		}
		s.mu.Unlock()

		for _, e := range due {
			after = e.version
			// The object of the event is written by hand, because clients tell errors by the beginning of the line.
			text, _ := json.Marshal(e.object)
			_, _ = fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", e.kind, text)
		}
		if len(due) == 0 {
			_, _ = fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}`+"\n", after)
		}
		if cut {
			if half {
				_, _ = fmt.Fprint(w, `{"type":"MODIFIED","object":{"metadata":{"na`)
			}
			return
		}
		w.(http.Flusher).Flush()

		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// sorted iterates over objects by their paths.
func sorted(objects map[string]map[string]any) func(func(string, map[string]any) bool) {
	return func(yield func(string, map[string]any) bool) {
		for _, path := range slices.Sorted(maps.Keys(objects)) {
			if !yield(path, objects[path]) {
				return
			}
		}
	}
}

// selects reports whether an object belongs to a collection, and has the labels or the name of a query. Of labels only equality is
// known.
func selects(query url.Values, collection, path string, object map[string]any) bool {
	name, isBelow := strings.CutPrefix(path, collection+"/")
	if !isBelow {
		return false
	}
	reason, _ := object["reason"].(string)
	if field := query.Get("fieldSelector"); field != "" && field != "metadata.name="+name && field != "reason="+reason {
		return false
	}
	labels, _ := object["metadata"].(map[string]any)["labels"].(map[string]string)
	for want := range strings.SplitSeq(query.Get("labelSelector"), ",") {
		key, value, _ := strings.Cut(want, "=")
		if want != "" && labels[key] != value {
			return false
		}
	}
	return true
}
