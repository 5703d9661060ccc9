package kubernetes

import (
	"context"
	"log/slog"
	"maps"
	"net/url"
	"slices"
)

// service has the fields of a Service that are read. Routers read none: they need no rights on Services.
type service struct {
	named
	Spec struct {
		Ports []struct {
			Port int `json:"port"`
		} `json:"ports"`
	} `json:"spec"`
}

// endpointSlice has the fields of an EndpointSlice that are read: some of the endpoints of a Service. They have no labels, so workers are
// found by pods.
type endpointSlice struct {
	named
	Endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready *bool `json:"ready"` // unset means ready
		} `json:"conditions"`
	} `json:"endpoints"`
}

// slicesOf returns the path and the query of the EndpointSlices of a Service.
func slicesOf(namespace, service string) (path string, query url.Values) {
	return "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices",
		url.Values{"labelSelector": {"kubernetes.io/service-name=" + service}}
}

// FollowService calls apply with the IPs of all pods of a Service, sorted, at the start and after each change, until ctx ends. Pods that
// are not ready, or are going, are among them: replicas of a process speak to each other before they serve, and while they stop.
func FollowService(ctx context.Context, client *Client, namespace, service string, log *slog.Logger, apply func(ips []string)) {
	addresses := map[string][]string{} // by the name of the EndpointSlice; an address may move from one to another
	synced := false
	changed := func() {
		if !synced {
			return // during the first list, some of the addresses would be taken for all of them
		}
		all := slices.Concat(slices.Collect(maps.Values(addresses))...)
		slices.Sort(all)
		apply(slices.Compact(all))
	}

	f := follower[endpointSlice]{client: client, known: map[string]bool{}}
	f.path, f.query = slicesOf(namespace, service)
	f.change = func(name string, s *endpointSlice) {
		delete(addresses, name)
		if s != nil {
			for _, e := range s.Endpoints {
				addresses[name] = append(addresses[name], e.Addresses...)
			}
		}
		changed()
	}
	f.synced = func() {
		synced = true
		changed()
	}
	f.trouble = func(err error) {
		if err != nil {
			log.Warn("EndpointSlices cannot be read; the addresses stay as they are", "service", service, "err", err)
		}
	}
	f.run(ctx)
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

// Service reads a Service and its EndpointSlices. It has no error: what could not be read is in the result, because the doctor goes on
// without it.
func (c *Client) Service(ctx context.Context, namespace, name string) (s Service) {
	// A list with one name, because a get would need another right.
	query := url.Values{"fieldSelector": {"metadata.name=" + name}}
	_, s.Err = readAll(ctx, c, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/services", query, func(of service) {
		s.Exists = true
		for _, p := range of.Spec.Ports {
			s.Ports = append(s.Ports, p.Port)
		}
	})

	// A Service without pods has an EndpointSlice without endpoints. One that does not exist has none.
	path, query := slicesOf(namespace, name)
	_, s.SliceErr = readAll(ctx, c, path, query, func(slice endpointSlice) {
		s.Slices++
		for _, e := range slice.Endpoints {
			s.Endpoints++
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				s.Ready++
			}
		}
	})
	return s
}
