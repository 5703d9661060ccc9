package kubeapi

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scaled is an object with the subresource scale.
type Scaled struct {
	// APIVersion, Kind and Plural are its kind, such as apps/v1, Deployment and deployments.
	APIVersion, Kind, Plural string
	Namespace, Name          string
	Replicas                 int
	// Selector are the labels of its pods.
	Selector string
	// Changed is called after its number has changed, for a test that plays its controller. It may call the server.
	Changed func(replicas int)
}

func (x *Scaled) path() string {
	return "/apis/" + x.APIVersion + "/namespaces/" + x.Namespace + "/" + x.Plural + "/" + x.Name
}

// scaled is an object with the field manager of its number.
type scaled struct {
	Scaled
	version, manager, subresource string
}

// Write is a number that was set.
type Write struct {
	Name, Manager string
	Replicas      int
	At            time.Time
}

// PutScaled adds an object, as a person who applies it does.
func (s *Server) PutScaled(x Scaled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.scales[x.path()] = &scaled{Scaled: x, version: strconv.Itoa(s.version), manager: "kubectl-client-side-apply"}
}

// SetScale sets the number of an object by its subresource, as `kubectl scale` does.
func (s *Server) SetScale(name, manager string, replicas int) {
	s.mu.Lock()
	var changed func(int)
	for _, x := range s.scales {
		if x.Name == name {
			s.setLocked(x, manager, replicas)
			changed = x.Changed
		}
	}
	s.mu.Unlock()
	if changed != nil {
		changed(replicas)
	}
}

func (s *Server) setLocked(x *scaled, manager string, replicas int) {
	s.version++
	x.version = strconv.Itoa(s.version)
	if x.Replicas != replicas { // who sets the number that is there changes nothing
		x.Replicas = replicas
		x.manager, x.subresource = manager, "scale"
	}
}

// Replicas returns the number of an object.
func (s *Server) Replicas(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.scales {
		if x.Name == name {
			return x.Replicas
		}
	}
	return -1
}

// Touch raises the versions of all objects, as a controller that writes their status does: writes of an earlier version are conflicts.
func (s *Server) Touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	for _, x := range s.scales {
		x.version = strconv.Itoa(s.version)
	}
}

// RefuseWrites has every answer to a PATCH be that status. 0 ends it.
func (s *Server) RefuseWrites(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = status
}

// Writes returns the numbers that were set by PATCH.
func (s *Server) Writes() []Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Write(nil), s.writes...)
}

// Cost returns the deletion cost of a pod; empty if it has none.
func (s *Server) Cost(namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	object := s.objects[podPath(namespace, name)]
	if object == nil {
		return ""
	}
	all, _ := object["metadata"].(map[string]any)["annotations"].(map[string]any)
	cost, _ := all["controller.kubernetes.io/pod-deletion-cost"].(string)
	return cost
}

// PutAutoscaler adds a HorizontalPodAutoscaler of a Deployment.
func (s *Server) PutAutoscaler(namespace, name, deployment string) {
	s.put("/apis/autoscaling/v2/namespaces/"+namespace+"/horizontalpodautoscalers/"+name, map[string]any{
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": name},
		"spec":     map[string]any{"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment}},
	})
}

// DeleteAutoscaler deletes one.
func (s *Server) DeleteAutoscaler(namespace, name string) {
	s.remove("/apis/autoscaling/v2/namespaces/" + namespace + "/horizontalpodautoscalers/" + name)
}

// PutFailedCreate adds an event of a controller that could not create pods.
func (s *Server) PutFailedCreate(namespace, owner, message string) {
	s.put("/api/v1/namespaces/"+namespace+"/events/"+owner, map[string]any{
		"metadata":       map[string]any{"name": owner, "namespace": namespace, "uid": owner},
		"involvedObject": map[string]any{"name": owner}, "reason": "FailedCreate", "message": message, "lastTimestamp": time.Now().UTC(),
	})
}

// Event is an event that a client has written.
type Event struct{ Kind, Name, UID, Type, Reason, Message string }

// Events returns the events that clients have written, in their order.
func (s *Server) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Event(nil), s.written...)
}

// RefuseEvents has every answer to a client that writes an event be that status. 0 ends it.
func (s *Server) RefuseEvents(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusedEvents = status
}

// record answers a request that creates an event.
func (s *Server) record(w http.ResponseWriter, r *http.Request) {
	var body struct {
		InvolvedObject        struct{ Kind, Name, UID string }
		Type, Reason, Message string
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, "the body is no JSON")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusedEvents != 0 {
		refuse(w, s.refusedEvents, "the test refuses events")
		return
	}
	o := &body.InvolvedObject
	s.written = append(s.written, Event{o.Kind, o.Name, o.UID, body.Type, body.Reason, body.Message})
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte("{}"))
}

// kinds lists the resources of a group.
func (s *Server) kinds(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []any
	for _, x := range s.scales {
		if r.URL.Path == "/apis/"+x.APIVersion {
			all = append(all, map[string]any{"name": x.Plural, "kind": x.Kind},
				map[string]any{"name": x.Plural + "/scale", "kind": "Scale"})
		}
	}
	if all == nil {
		refuse(w, http.StatusNotFound, "the server could not find the requested resource")
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "resources": all})
}

// scale answers a request for an object's number, or for the object's metadata.
func (s *Server) scale(w http.ResponseWriter, r *http.Request, x *scaled) {
	var body struct {
		Metadata struct{ ResourceVersion string }
		Spec     struct{ Replicas int }
	}
	isWrite := r.Method == http.MethodPatch
	if isWrite && json.NewDecoder(r.Body).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, "the body is no JSON")
		return
	}
	s.mu.Lock()
	if isWrite && cmp.Or(body.Metadata.ResourceVersion, x.version) != x.version {
		s.mu.Unlock()
		refuse(w, http.StatusConflict, "the object has been modified")
		return
	}
	changes := isWrite && r.URL.Query().Get("dryRun") == ""
	if changes {
		manager := r.URL.Query().Get("fieldManager")
		s.writes = append(s.writes, Write{x.Name, manager, body.Spec.Replicas, time.Now()})
		s.setLocked(x, manager, body.Spec.Replicas)
	}

	meta := map[string]any{"name": x.Name, "namespace": x.Namespace, "resourceVersion": x.version, "uid": x.Name}
	answer := map[string]any{"metadata": meta}
	if strings.HasSuffix(r.URL.Path, "/scale") {
		answer["spec"] = map[string]any{"replicas": x.Replicas}
		answer["status"] = map[string]any{"selector": x.Selector}
	} else {
		meta["managedFields"] = []any{map[string]any{
			"manager": x.manager, "subresource": x.subresource,
			"fieldsV1": map[string]any{"f:spec": map[string]any{"f:replicas": map[string]any{}}},
		}}
	}
	text, _ := json.Marshal(answer)
	s.mu.Unlock()
	_, _ = w.Write(text)
	if changes && x.Changed != nil {
		x.Changed(body.Spec.Replicas)
	}
}

// annotate merges annotations into a pod.
func (s *Server) annotate(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Metadata struct{ Annotations map[string]any }
	}
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, "the body is no JSON")
		return
	}

	s.changePod(w, r.URL.Path, func(pod map[string]any) {
		meta := pod["metadata"].(map[string]any)
		before, _ := meta["annotations"].(map[string]any)
		all := map[string]any{}
		maps.Copy(all, before)
		for key, value := range body.Metadata.Annotations {
			all[key] = value
			if value == nil {
				delete(all, key)
			}
		}
		meta["annotations"] = all
	})
}
