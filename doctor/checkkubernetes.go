package doctor

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/handoff"
)

// clusterChecks are the checks of a Kubernetes cluster, in the order of their findings. finds is the text of
// docs/mesh.md.
var clusterChecks = []check[*clusterSeen]{
	{"kubernetes-api", "an API server that does not answer, rights that are missing, a cluster or a namespace without InferencePools",
		checkClusterAPI},
	{"kubernetes-picker", "pools whose picker is no router, is not there or is not ready, with the command that " +
		"switches or switches back; pools that name a picker that was uninstalled", checkPicker},
	{"kubernetes-pods", "pools without pods, or without ready ones", checkPods},
	{"kubernetes-engines", "ready pods whose engine does not answer, or cannot be used", checkPodEngines},
	{"kubernetes-model-files", "models that engines have loaded from a folder of theirs, which routers do not have", checkFoundModels},
	{"kubernetes-roles", "roles that need a pool of type ORIGINAL_DST, or a picker that is always asked", checkPoolRoles},
}

// diagnoseCluster runs the checks.
func diagnoseCluster(c *clusterSeen) Diagnosis {
	d := runChecks(clusterChecks, c, func(_ string, found []Finding) []Finding { return joinEqual(found) })
	d.looked = count(len(c.pools), "InferencePool") + " of namespace " + c.namespace
	return d
}

// eachPool runs a check on every pool, and sets the subject of findings.
func (c *clusterSeen) eachPool(check func(p *kubernetes.Pool) []Finding) (found []Finding) {
	for i := range c.pools {
		p := &c.pools[i]
		for _, f := range check(p) {
			f.Subject = "InferencePool " + p.Namespace + "/" + p.Name
			found = append(found, f)
		}
	}
	return found
}

// isForbidden reports whether rights are missing.
func isForbidden(err error) bool {
	var s *kubernetes.Status
	return errors.As(err, &s) && (s.Code == http.StatusForbidden || s.Code == http.StatusUnauthorized)
}

func checkClusterAPI(c *clusterSeen) []Finding {
	f := Finding{Subject: "namespace " + c.namespace, Why: "its pools, pods and engines cannot be checked"}
	var status *kubernetes.Status
	switch {
	case c.poolsErr == nil && len(c.pools) == 0:
		f.What = "it has no InferencePool"
		f.Why = "no gateway asks a picker for its pods"
		f.Remedy = "name another namespace with -n, or create a pool; without pools, start routers with --pod-selector: see docs/mesh.md"
	case c.poolsErr == nil:
		return c.unreadServices()
	case isForbidden(c.poolsErr):
		f.What = c.poolsErr.Error()
		f.Remedy = "give this account the rights get, list and watch on pods and inferencepools: `kubectl auth can-i --list -n " +
			c.namespace + "` shows those that it has"
	case errors.As(c.poolsErr, &status) && status.Code == http.StatusNotFound:
		f.What = "the cluster knows no InferencePools of inference.networking.k8s.io/v1"
		f.Remedy = "install the CRDs of the Gateway API inference extension, or start routers with --pod-selector: see docs/mesh.md"
	default:
		f.What = fmt.Sprintf("the API server cannot be read: %v", c.poolsErr)
		f.Remedy = "run `kubectl proxy`, and name it with --kubernetes-api http://127.0.0.1:8001; or run this in a pod"
	}
	return []Finding{f}
}

// unreadServices is a note about Services that could not be read.
func (c *clusterSeen) unreadServices() []Finding {
	for name, s := range c.services {
		for _, err := range []error{s.Err, s.SliceErr} {
			// EndpointSlices are enough, and routers have the right to read them where replicas know each other by them.
			if err != nil && (s.SliceErr != nil || !isForbidden(err)) {
				return []Finding{{
					Subject: "Service " + c.namespace + "/" + name, What: fmt.Sprintf("it cannot be read: %v", err), Note: true,
					Why:    "it is not known whether pickers are there and ready",
					Remedy: "run this with an account that may list services and endpointslices; routers do not need these rights",
				}}
			}
		}
	}
	return nil
}

// isAbsent and isReady report what is known of a Service. A Service that could not be read is neither absent nor
// without endpoints.
func isAbsent(s *kubernetes.Service) bool {
	return s.Err == nil && !s.Exists || isForbidden(s.Err) && s.SliceErr == nil && s.Slices == 0
}

func isReady(s *kubernetes.Service) bool { return !isAbsent(s) && (s.SliceErr != nil || s.Ready > 0) }

// patch returns the command by which a pool names a picker.
func patch(p *kubernetes.Pool, service string, port int) string {
	return fmt.Sprintf("kubectl -n %s patch inferencepool %s --type merge -p "+
		`'{"spec":{"endpointPickerRef":{"name":"%s","port":{"number":%d}}}}'`, p.Namespace, p.Name, service, port)
}

// routerPort is the customary port of a picker's Service.
const routerPort = 9002

// ownPort returns the port of the routers' Service.
func (c *clusterSeen) ownPort() int {
	s := c.services[c.service]
	if len(s.Ports) == 0 || slices.Contains(s.Ports, routerPort) {
		return routerPort
	}
	return s.Ports[0]
}

func checkPicker(c *clusterSeen) []Finding {
	ours := c.services[c.service]
	return c.eachPool(func(p *kubernetes.Pool) (found []Finding) {
		name := p.Picker.Name
		s := c.services[name]
		if fault, ok := c.pickerFault(p, &s); ok {
			found = append(found, fault)
		}
		switch {
		case name == c.service || (name == "" || isAbsent(&ours)) && len(found) > 0:
			// The finding above has the remedy.
		case isAbsent(&ours):
			found = append(found, Finding{
				What: fmt.Sprintf("its picker is %s, and the namespace has no Service %s of routers", name, c.service), Note: true,
				Why:    "there is nothing to switch to",
				Remedy: "install routers beside it; --router-service names their Service if it has another name",
			})
		case !isReady(&ours):
			found = append(found, Finding{
				What:   fmt.Sprintf("it cannot be switched yet: Service %s of the routers has no ready endpoint", c.service),
				Why:    "requests would fail after a switch",
				Remedy: "look at /readyz of the routers, which names the reason",
			})
		default:
			f := Finding{
				What: fmt.Sprintf("it can be switched: its picker is Service %s, and Service %s of the routers has %s", name, c.service,
					count(ours.Ready, "ready endpoint")), Note: true,
				Why: "routers decide as soon as the gateway has seen the change",
				Remedy: fmt.Sprintf(`%s; the way back: the same with "name":"%s" and "number":%d`,
					patch(p, c.service, c.ownPort()), name, p.Picker.Port),
			}
			found = append(found, f)
		}
		return found
	})
}

// pickerFault finds a picker that cannot be asked, and what that does to requests.
func (c *clusterSeen) pickerFault(p *kubernetes.Pool, s *kubernetes.Service) (f Finding, wrong bool) {
	f.Why = "failureMode is FailClose: every request is answered with 500"
	if p.Picker.FailOpen {
		f.Why = "failureMode is FailOpen: requests are spread over the pods without regard to caches and load"
	}

	switch {
	case p.Picker.Name == "":
		f.What, f.Why = "it names no picker", "the gateway spreads its requests without regard to caches, or refuses the pool"
		f.Remedy = "name the routers: " + patch(p, c.service, c.ownPort())
	case isAbsent(s):
		f.What = fmt.Sprintf("its picker, Service %s, does not exist: perhaps it was uninstalled", p.Picker.Name)
		f.Remedy = "install it again, or name another picker: " + patch(p, "NAME", routerPort)
	case s.Err == nil && !slices.Contains(s.Ports, p.Picker.Port):
		f.What = fmt.Sprintf("it names port %d of Service %s, which has %s", p.Picker.Port, p.Picker.Name, portsOf(s))
		f.Remedy = "name a port of the Service, not of its pods: " + patch(p, p.Picker.Name, firstPort(s))
	case !isReady(s):
		f.What = fmt.Sprintf("its picker, Service %s, has no ready endpoint (of %d)", p.Picker.Name, s.Endpoints)
		f.Remedy = "look at the pods of the Service and at their readiness; a router's /readyz names the reason"
	case s.SliceErr == nil && s.Ready == 1 && !p.Picker.FailOpen:
		f.What, f.Note = fmt.Sprintf("its picker, Service %s, has one endpoint", p.Picker.Name), true
		f.Why += " while that one is away"
		f.Remedy = "run two replicas, which share bookings: see docs/operations.md"
	default:
		return f, false
	}
	return f, true
}

func portsOf(s *kubernetes.Service) string {
	if len(s.Ports) == 0 {
		return "none"
	}
	return strings.Trim(fmt.Sprint(s.Ports), "[]")
}

func firstPort(s *kubernetes.Service) int {
	if len(s.Ports) == 0 {
		return routerPort
	}
	return s.Ports[0]
}

func checkPods(c *clusterSeen) []Finding {
	return c.eachPool(func(p *kubernetes.Pool) []Finding {
		ready := 0
		var waiting []string
		for _, pod := range p.Pods {
			switch {
			case len(pod.Endpoints) > 0:
				ready++
			case !pod.Terminating:
				waiting = append(waiting, pod.Name)
			}
		}

		f := Finding{Why: "requests are answered with 503", Remedy: "look at the pods with kubectl describe; a probe names the reason"}
		switch {
		case len(p.Ports) == 0:
			f.What, f.Remedy = "it has no target port", "add spec.targetPorts"
		case len(p.Pods) == 0:
			f.What = "its selector matches no pod of the namespace"
			f.Remedy = "compare spec.selector.matchLabels with the labels of the pod template (kubectl get pods " +
				"--show-labels): labels of a Deployment do not count"
		case ready == 0:
			f.What = fmt.Sprintf("none of its pods is ready (of %d)", len(p.Pods))
		case len(waiting) > 0:
			f.Note = true
			f.What = fmt.Sprintf("%d of %s are not ready: %s", len(waiting), count(len(p.Pods), "pod"), firstOf(waiting))
			f.Why = "they get no requests"
		default:
			return nil
		}
		return []Finding{f}
	})
}

func checkPodEngines(c *clusterSeen) (found []Finding) {
	silent, all := map[string]error{}, 0
	for e := range c.endpoints {
		all++
		if err := c.answers[e].err; err != nil {
			silent[e.Name+" ("+e.Address+")"] = err
		}
	}

	if len(silent) > 0 && len(silent) == all {
		return []Finding{{
			Subject: "namespace " + c.namespace, What: fmt.Sprintf("none of %s answers here", count(all, "engine")),
			Why: "addresses of pods are seldom reachable from outside of a cluster, and engines cannot be checked",
			Remedy: fmt.Sprintf("run this in a pod of the cluster: kubectl -n %s exec deploy/%s -c picker -- /stator doctor --kubernetes",
				c.namespace, c.service),
		}}
	}
	for name, err := range silent {
		found = append(found, Finding{
			Subject: "pod " + name, What: fmt.Sprintf("its engine does not answer which model it serves: %v", err),
			Why:    "its pod is ready, and routers send it no requests",
			Remedy: "check that the port is that of spec.targetPorts, and that GET /v1/models needs no key",
		})
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Subject, b.Subject) })
	if c.refused != nil {
		found = append(found, Finding{
			Subject: "namespace " + c.namespace, What: c.refused.Error(), Why: "routers send these engines no requests",
			Remedy: "correct the engine's options, or configure the model in a file with --config",
		})
	}
	return found
}

// checkFoundModels finds models whose files a router cannot find by itself.
func checkFoundModels(c *clusterSeen) (found []Finding) {
	done := map[string]bool{}
	for i := range c.found {
		w := &c.found[i]
		if !c.unread[w.Model] || done[w.Model] {
			continue
		}
		done[w.Model] = true
		from := "its engines do not report from where they have loaded it"
		if root := c.rootOf(w.Name); root != "" {
			from = fmt.Sprintf("its engines have loaded it from %s, which is no repository of a hub", root)
		}
		found = append(found, Finding{
			Subject: "model " + w.Model, What: from,
			Why: "routers without its tokenizer do not read prompts: requests go by load, without regard to caches",
			Remedy: "name its repository in a configuration file (models[].path: \"hf:ORG/NAME\"), or mount the folder into " +
				"the pods of routers and name it there",
		})
	}
	return found
}

// rootOf returns where the engine of a worker has loaded its model from.
func (c *clusterSeen) rootOf(worker string) string {
	for e, a := range c.answers {
		if e.Name == worker {
			return a.identity.Root
		}
	}
	return ""
}

func checkPoolRoles(c *clusterSeen) []Finding {
	return c.eachPool(func(p *kubernetes.Pool) (found []Finding) {
		var relayed, halves []string
		for _, pod := range p.Pods {
			for _, e := range pod.Endpoints {
				i := slices.IndexFunc(c.found, func(w fleet.Worker) bool { return w.Name == e.Name })
				if i < 0 || e.Role == fleet.Aggregated {
					continue
				}
				halves = append(halves, e.Name)
				if handoff.IsConcurrent(c.found[i].Transfer) {
					relayed = append(relayed, e.Name)
				}
			}
		}
		if len(relayed) > 0 {
			found = append(found, Finding{
				What: fmt.Sprintf("both engines of a request need it at once: %s", firstOf(relayed)),
				Why: "the relay of routers sends both, and is no endpoint of a pool whose endpoints are pods: routers refuse " +
					"these workers, unless they have --pool-reaches-relay",
				Remedy: "if the gateway's cluster is of type ORIGINAL_DST (Envoy AI Gateway, kgateway), start routers with " +
					"--relay-address and --pool-reaches-relay; otherwise use a transfer that needs no relay, or endpoints from stator xds",
			})
		}
		if len(halves) > 0 && p.Picker.FailOpen {
			found = append(found, Finding{
				What:   "it has prefill and decode workers, and its failureMode is FailOpen",
				Why:    "without a picker the gateway sends requests of clients to prefill workers, too",
				Remedy: "set spec.endpointPickerRef.failureMode to FailClose, and run two replicas of the routers",
			})
		}
		return found
	})
}
