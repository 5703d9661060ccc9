package kubeapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"strings"
	"time"
)

// create answers a controller that creates a pod.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var pod map[string]any
	if json.NewDecoder(r.Body).Decode(&pod) != nil {
		refuse(w, http.StatusBadRequest, "the body is no JSON")
		return
	}
	var meta struct {
		Name   string
		Labels map[string]string
	}
	text, _ := json.Marshal(pod["metadata"])
	if json.Unmarshal(text, &meta) != nil || meta.Name == "" {
		refuse(w, http.StatusUnprocessableEntity, "the pod has no name, or labels that are no texts")
		return
	}

	namespace, now := path.Base(path.Dir(r.URL.Path)), time.Now().UTC()
	pod["metadata"] = map[string]any{
		"name": meta.Name, "namespace": namespace, "uid": meta.Name + now.String(), "labels": meta.Labels, "creationTimestamp": now,
	}
	pod["status"] = map[string]any{"phase": "Pending"}
	s.put(podPath(namespace, meta.Name), pod)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte("{}"))
}

// setStatus answers a kubelet that sets fields of a pod's status.
func (s *Server) setStatus(w http.ResponseWriter, r *http.Request) {
	var body struct{ Status map[string]any }
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, "the body is no JSON")
		return
	}
	s.changePod(w, strings.TrimSuffix(r.URL.Path, "/status"), func(pod map[string]any) {
		status := maps.Clone(pod["status"].(map[string]any))
		maps.Copy(status, body.Status)
		pod["status"] = status
	})
}

// end answers a request that deletes a pod. With a grace period the pod stays until its kubelet deletes it without one.
func (s *Server) end(w http.ResponseWriter, r *http.Request) {
	var body struct{ GracePeriodSeconds int }
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, "the body is no JSON")
		return
	}
	if body.GracePeriodSeconds == 0 {
		s.remove(r.URL.Path)
		_, _ = w.Write([]byte("{}"))
		return
	}
	s.changePod(w, r.URL.Path, func(pod map[string]any) {
		pod["metadata"].(map[string]any)["deletionTimestamp"] = time.Now().UTC()
	})
}

// changePod changes a copy of a pod and of its metadata, and puts it in the place of the pod.
func (s *Server) changePod(w http.ResponseWriter, at string, change func(pod map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.objects[at]
	if before == nil {
		refuse(w, http.StatusNotFound, "there is no such pod")
		return
	}
	pod := maps.Clone(before)
	pod["metadata"] = maps.Clone(before["metadata"].(map[string]any))
	change(pod)
	s.recordLocked("MODIFIED", at, pod)
	s.objects[at] = pod
	_, _ = w.Write([]byte("{}"))
}
