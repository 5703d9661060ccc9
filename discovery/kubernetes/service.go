package kubernetes

import (
	"context"
	"log/slog"
	"maps"
	"net/url"
	"slices"
)

// An EndpointSlice has some of the endpoints of a Service, and a Service any number of them. Which slice has an endpoint changes, so their
// addresses are put together after each change.

// slicesPath returns the path of the EndpointSlices of a namespace, and slicesOf selects those of a Service.
func slicesPath(namespace string) string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
}

func slicesOf(service string) url.Values {
	return url.Values{"labelSelector": {"kubernetes.io/service-name=" + service}}
}

// FollowService calls apply with the IPs of all pods of a Service, sorted, at the start and after each change, until ctx ends. Pods that
// are not ready, or are going, are among them: replicas of a process speak to each other before they serve, and while they stop.
func FollowService(ctx context.Context, client *Client, namespace, service string, log *slog.Logger, apply func(ips []string)) {
	// The follower calls its functions from one goroutine, so none of this is locked.
	addresses := map[string][]string{} // by the name of the EndpointSlice
	synced := false
	changed := func() {
		// During the first list, some of the addresses would be taken for all of them.
		if !synced {
			return
		}
		all := map[string]bool{}
		for _, ips := range addresses {
			for _, ip := range ips {
				all[ip] = true
			}
		}
		apply(slices.Sorted(maps.Keys(all)))
	}

	(&follower[endpointSlice]{
		client: client, path: slicesPath(namespace), query: slicesOf(service),
		apply: func(s endpointSlice) {
			var ips []string
			for _, e := range s.Endpoints {
				ips = append(ips, e.Addresses...)
			}
			addresses[s.Metadata.Name] = ips
			changed()
		},
		remove: func(name string) {
			delete(addresses, name)
			changed()
		},
		synced: func() {
			synced = true
			changed()
		},
		trouble: func(err error) {
			if err != nil {
				log.Warn("EndpointSlices cannot be read; the addresses stay as they are", "service", service, "err", err)
			}
		},
	}).run(ctx)
}
