package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Object names an object with the subresource scale: a Deployment, a StatefulSet, a LeaderWorkerSet, or one of any other kind that has it.
type Object struct {
	// APIVersion is group and version, such as apps/v1.
	APIVersion, Kind, Namespace, Name string
}

// String returns the object as messages name it.
func (o *Object) String() string { return o.Kind + " " + o.Namespace + "/" + o.Name }

// Scale is the number of replicas of an object, and who has set it.
type Scale struct {
	// Replicas is the number that the object asks for, and not the number of pods that there are.
	Replicas int
	// Selector selects the object's pods, as a query for pods has it; empty while its controller has not reported one.
	Selector string
	// Version is the resourceVersion of the object: [Client.SetScale] refuses to change another one. UID is the object's, for events.
	Version, UID string
	// Writer is the field manager that has set the number last, as the API server records it; empty if that is not known. ByScale means
	// that it was set by the subresource, as `kubectl scale`, autoscalers and SetScale do, and not by creating or applying the object.
	Writer  string
	ByScale bool
}

const (
	// maxKinds bounds the kinds whose paths are remembered.
	maxKinds = 64
	// maxAnswer bounds an answer that is one object, or the kinds of a group: etcd bounds an object to 1.5 MiB.
	maxAnswer = 4 << 20
	// callTime bounds one request for an object.
	callTime = 5 * time.Second
)

// ErrNoScale is the error of a kind that the API server does not know, or that has no subresource scale.
var ErrNoScale = errors.New("the API server knows no such kind with a subresource scale")

// Scale reads the number of replicas of an object. It needs the right to get the object and its subresource scale.
func (c *Client) Scale(ctx context.Context, o *Object) (s Scale, err error) {
	path, err := c.pathOf(ctx, o)
	if err != nil {
		return s, err
	}
	var scale struct {
		named
		Spec struct {
			Replicas int `json:"replicas"`
		} `json:"spec"`
		Status struct {
			Selector string `json:"selector"`
		} `json:"status"`
	}
	if err := c.read(ctx, path+"/scale", "application/json", &scale); err != nil {
		return s, fmt.Errorf("read the scale of %s: %w", o, err)
	}
	m := &scale.Metadata
	s = Scale{Replicas: scale.Spec.Replicas, Selector: scale.Status.Selector, Version: m.ResourceVersion, UID: m.UID}

	// The subresource does not have the field managers. The metadata alone are asked for: a pod template may have 100 KB.
	var object struct {
		Metadata struct {
			ManagedFields []managed `json:"managedFields"`
		} `json:"metadata"`
	}
	if err := c.read(ctx, path, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", &object); err != nil {
		return s, fmt.Errorf("read the field managers of %s: %w", o, err)
	}
	for _, m := range object.Metadata.ManagedFields {
		if m.setsReplicas() {
			s.Writer, s.ByScale = m.Manager, m.Subresource == "scale"
			break
		}
	}
	return s, nil
}

// managed lists the fields that a manager has set. The API server removes a field from the list of a manager when another one sets it to
// another value, and the manager when its list is empty.
type managed struct {
	Manager     string `json:"manager"`
	Subresource string `json:"subresource"`
	Fields      struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	} `json:"fieldsV1"`
}

// setsReplicas reports whether spec.replicas is one of the fields: every kind with a scale that is known has its number there.
func (m *managed) setsReplicas() bool { return m.Fields.Spec["f:replicas"] != nil }

// SetScale sets the number of replicas of an object, unless it has changed since a version: then the error is a *Status of code 409. The
// API server records the writer as the field manager of the number. It has at most 128 characters. try changes nothing: the API server only
// checks the rights and the number. SetScale needs the right to patch the subresource scale, and none to change the object.
func (c *Client) SetScale(ctx context.Context, o *Object, replicas int, version, writer string, try bool) error {
	path, err := c.pathOf(ctx, o)
	if err != nil {
		return err
	}
	body := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"replicas":%d}}`, version, replicas)
	query := url.Values{"fieldManager": {writer}}
	if try {
		query.Set("dryRun", "All")
	}
	if err := c.patch(ctx, path+"/scale", query, body); err != nil {
		return fmt.Errorf("set the scale of %s to %d: %w", o, replicas, err)
	}
	return nil
}

// costAnnotation is read by ReplicaSets, which delete ready pods with the least cost first.
const costAnnotation = "controller.kubernetes.io/pod-deletion-cost"

// LeastCost is the deletion cost of a pod that goes first, and DrainedCost of one that goes after it, before all others.
const (
	LeastCost   = "-2147483648"
	DrainedCost = "-2147483647"
)

// SetDeletionCost sets the cost of deleting a pod, or removes it if cost is empty. It needs the right to patch pods.
func (c *Client) SetDeletionCost(ctx context.Context, namespace, pod, cost string) error {
	value := "null"
	if cost != "" {
		value = fmt.Sprintf("%q", cost)
	}
	body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, costAnnotation, value)
	if err := c.patch(ctx, podsPath(namespace)+"/"+url.PathEscape(pod), nil, body); err != nil {
		return fmt.Errorf("set the deletion cost of pod %s/%s: %w", namespace, pod, err)
	}
	return nil
}

// read decodes one object.
func (c *Client) read(ctx context.Context, path, accept string, into any) error {
	ctx, stop := context.WithTimeout(ctx, callTime)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", accept)
	body, err := c.do(req)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(into)
}

// patch merges a body into an object.
func (c *Client) patch(ctx context.Context, path string, query url.Values, body string) error {
	return c.write(ctx, http.MethodPatch, path+"?"+query.Encode(), "application/merge-patch+json", body)
}

// write sends a body, and ignores the object in the answer.
func (c *Client) write(ctx context.Context, method, path, kind, body string) error {
	ctx, stop := context.WithTimeout(ctx, callTime)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	answer, err := c.do(req)
	if err == nil {
		_ = answer.Close()
	}
	return err
}

// pathOf returns the path of an object. The API server is asked once for the resources of a kind.
func (c *Client) pathOf(ctx context.Context, o *Object) (string, error) {
	group := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		group = "/api/" + o.APIVersion
	}
	key := o.APIVersion + "/" + o.Kind
	c.mu.Lock()
	plural := c.plurals[key]
	c.mu.Unlock()
	if plural == "" {
		var err error
		plural, err = c.pluralOf(ctx, group, o.Kind)
		if err != nil {
			return "", fmt.Errorf("find the resource of %s, %s: %w", o, o.APIVersion, err)
		}
		c.mu.Lock()
		if c.plurals == nil || len(c.plurals) >= maxKinds {
			c.plurals = map[string]string{}
		}
		c.plurals[key] = plural
		c.mu.Unlock()
	}
	return group + "/namespaces/" + url.PathEscape(o.Namespace) + "/" + plural + "/" + url.PathEscape(o.Name), nil
}

// pluralOf returns the name of a kind's resource, which must have the subresource scale.
func (c *Client) pluralOf(ctx context.Context, group, kind string) (string, error) {
	var known struct {
		Resources []struct{ Name, Kind string } `json:"resources"`
	}
	err := c.read(ctx, group, "application/json", &known)
	var status *Status
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return "", ErrNoScale
	}
	if err != nil {
		return "", err
	}
	for _, r := range known.Resources {
		if r.Kind != kind || strings.Contains(r.Name, "/") {
			continue
		}
		for _, sub := range known.Resources {
			if sub.Name == r.Name+"/scale" {
				return r.Name, nil
			}
		}
	}
	return "", ErrNoScale
}

// Autoscaler is an object that scales another one.
type Autoscaler struct {
	Kind, Name string
	// Scaled names the object that it scales. Its version is not compared.
	Scaled Object
}

// autoscaler has the fields of a HorizontalPodAutoscaler and of KEDA's ScaledObject that are read.
type autoscaler struct {
	named
	Spec struct {
		ScaleTargetRef struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Name       string `json:"name"`
		} `json:"scaleTargetRef"`
	} `json:"spec"`
}

// kedaLabel is on the HorizontalPodAutoscalers that KEDA makes. Its value is the name of the ScaledObject.
const kedaLabel = "scaledobject.keda.sh/name"

// Autoscalers reads the HorizontalPodAutoscalers and KEDA's ScaledObjects of a namespace. It needs the right to list them. A cluster
// without KEDA has no ScaledObjects.
func (c *Client) Autoscalers(ctx context.Context, namespace string) (all []Autoscaler, err error) {
	for _, resource := range []string{"/apis/keda.sh/v1alpha1/namespaces/%s/scaledobjects",
		"/apis/autoscaling/v2/namespaces/%s/horizontalpodautoscalers"} {
		isKEDA := strings.Contains(resource, "keda")
		_, err := readAll(ctx, c, fmt.Sprintf(resource, url.PathEscape(namespace)), url.Values{}, func(a autoscaler) {
			found := Autoscaler{Kind: "HorizontalPodAutoscaler", Name: a.Metadata.Name}
			if owner := a.Metadata.Labels[kedaLabel]; isKEDA || owner != "" {
				found.Kind, found.Name = "ScaledObject", cmp.Or(owner, found.Name)
			}
			ref := &a.Spec.ScaleTargetRef
			found.Scaled = Object{cmp.Or(ref.APIVersion, "apps/v1"), cmp.Or(ref.Kind, "Deployment"), namespace, ref.Name}
			all = append(all, found)
		})
		var status *Status
		if isKEDA && errors.As(err, &status) && status.Code == http.StatusNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Scales reports whether the autoscaler scales an object.
func (a *Autoscaler) Scales(o *Object) bool {
	groupOf := func(version string) string {
		group, _, _ := strings.Cut(version, "/")
		return group
	}
	s := &a.Scaled
	return s.Kind == o.Kind && s.Name == o.Name && s.Namespace == o.Namespace && groupOf(s.APIVersion) == groupOf(o.APIVersion)
}

// failedCreate has the fields of an Event that are read. Controllers write lastTimestamp or eventTime, by their age.
type failedCreate struct {
	named
	InvolvedObject struct {
		Name string `json:"name"`
	} `json:"involvedObject"`
	Message       string    `json:"message"`
	LastTimestamp time.Time `json:"lastTimestamp"`
	EventTime     time.Time `json:"eventTime"`
}

// Uncreated returns why the controllers of an object could not create pods: the newest message of them, such as an exceeded quota; empty if
// there is none. A Deployment has its pods created by a ReplicaSet, so objects whose names begin with the object's count, too. It needs the
// right to list events.
func (c *Client) Uncreated(ctx context.Context, o *Object) (message string, err error) {
	var newest time.Time
	path := "/api/v1/namespaces/" + url.PathEscape(o.Namespace) + "/events"
	_, err = readAll(ctx, c, path, url.Values{"fieldSelector": {"reason=FailedCreate"}}, func(e failedCreate) {
		at := e.LastTimestamp
		if e.EventTime.After(at) {
			at = e.EventTime
		}
		rest, isOfObject := strings.CutPrefix(e.InvolvedObject.Name, o.Name)
		if isOfObject && (rest == "" || rest[0] == '-') && !at.Before(newest) {
			message, newest = e.Message, at
		}
	})
	return message, err
}
