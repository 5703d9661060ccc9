package kubernetes

import (
	"context"
	"net/url"
)

// Pool is an InferencePool as it is now, with its pods and its picker. It is for a look from outside: a router follows changes instead.
type Pool struct {
	Namespace, Name string
	// Ports are its target ports; each is another engine in each pod.
	Ports []int
	// Pods are those that its selector matches. A pool without a selector has none.
	Pods []Pod
	// Picker is the Service that decides; its name is empty if the pool names none.
	Picker Picker
}

// Pod is a pod of a pool. Its name is that of the object, not the worker's: see [Endpoint].
// Endpoints are its engines; a pod that is not ready, or is being deleted, has none.
type Pod struct {
	Name        string
	Terminating bool
	Endpoints   []Endpoint
}

// Picker is an endpoint picker as a pool names it.
type Picker struct {
	Name string
	Port int
	// FailOpen means that requests go on without it.
	FailOpen bool
}

// Service is a Service as it is now.
type Service struct {
	// Exists and Ports count if Err is nil.
	Exists bool
	Ports  []int
	// Slices, Ready and Endpoints count its EndpointSlices and their addresses, if SliceErr is nil.
	Slices, Ready, Endpoints int
	// Err and SliceErr are the reasons why the Service or its EndpointSlices could not be read. They are apart, because an account may have
	// the rights for one of them alone: a *Status of code 403 is a lack of rights.
	Err, SliceErr error
}

// Pools reads the InferencePools of a namespace, in the order of their names, with their pods. The error is that of the pools, or of the
// first pods that could not be read.
func (c *Client) Pools(ctx context.Context, namespace string) ([]Pool, error) {
	found, err := readAll[inferencePool](ctx, c, poolsPath(namespace), url.Values{})
	if err != nil {
		return nil, err
	}

	// The pods of each pool are listed apart: a namespace may have thousands that belong to none.
	var all []Pool
	for _, p := range found {
		ref := p.Spec.EndpointPickerRef
		t := targetOf(&p)
		pool := Pool{Namespace: namespace, Name: p.meta().Name, Ports: t.ports}
		// failureMode is FailClose by default, and the API server fills it in.
		pool.Picker = Picker{Name: ref.Name, Port: ref.Port.Number, FailOpen: ref.FailureMode == "FailOpen"}
		if t.labels != "" { // without labels the query would select all pods of the namespace
			pods, err := readAll[pod](ctx, c, podsPath(namespace), url.Values{"labelSelector": {t.labels}})
			if err != nil {
				return nil, err
			}
			for _, pod := range pods {
				pool.Pods = append(pool.Pods, Pod{
					Name: pod.meta().Name, Terminating: pod.meta().DeletionTimestamp != "", Endpoints: endpoints(&pod, t.ports, namespace),
				})
			}
		}
		all = append(all, pool)
	}
	return all, nil
}

// Service reads a Service and its EndpointSlices. It has no error: what could not be read is in the result, because the doctor goes on
// without it.
func (c *Client) Service(ctx context.Context, namespace, name string) (s Service) {
	// A list with one name, because a get would need another right.
	var found []service
	found, s.Err = readAll[service](ctx, c, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/services",
		url.Values{"fieldSelector": {"metadata.name=" + name}})
	for _, f := range found {
		s.Exists = true
		for _, p := range f.Spec.Ports {
			s.Ports = append(s.Ports, p.Port)
		}
	}

	// A Service without pods has an EndpointSlice without endpoints. One that does not exist has none.
	var slices []endpointSlice
	slices, s.SliceErr = readAll[endpointSlice](ctx, c, slicesPath(namespace), slicesOf(name))
	s.Slices = len(slices)
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			s.Endpoints++
			// An unset condition means ready, as the API has it.
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				s.Ready++
			}
		}
	}
	return s
}

// readAll reads a list with all its pages, by a follower that is not run. Its bounds are those of followers.
func readAll[T object](ctx context.Context, c *Client, path string, query url.Values) (all []T, err error) {
	f := follower[T]{client: c, path: path, query: query, known: map[string]bool{}, remove: func(string) {}, synced: func() {}}
	f.apply = func(item T) { all = append(all, item) }
	_, err = f.list(ctx)
	return all, err
}
