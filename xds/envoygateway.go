package xds

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/envoynames"
)

// EnvoyGateway returns, as YAML, the objects of Envoy Gateway by which routers choose workers. They need no EnvoyPatchPolicy.
func EnvoyGateway(s SnippetSettings, m Mesh) ([]byte, error) {
	if err := s.checkMesh(&m); err != nil {
		return nil, err
	}
	r, err := s.serviceOf()
	switch {
	case err != nil:
		return nil, err
	case m.Gateway == "":
		return nil, errors.New("name the Gateway with --gateway NAMESPACE/NAME: policies of Envoy Gateway select no labels")
	case m.Route == "":
		return nil, errors.New("name the HTTPRoute that leads to the workers with --route")
	case m.Pool != "":
		return nil, errors.New("--inference-pool has no effect here, because Envoy Gateway knows no InferencePool: name the Service " +
			"of the workers in the HTTPRoute; an Envoy AI Gateway that adds pools needs endpointPickerRef alone")
	case s.XDS != "":
		return nil, errors.New("--eds-only has no effect here: Envoy Gateway lists the endpoints of the Service")
	}

	// All policies have the name of the program, one of each kind in a namespace. Values that clients could set do not reach this
	// text: names are checked above.
	// Each policy has one target: with two, a change of one of them would change the other one, too.
	target := func(kind, name string) string {
		return fmt.Sprintf("  targetRefs:\n  - group: gateway.networking.k8s.io\n    kind: %s\n    name: %s\n", kind, name)
	}
	routers := func(indent string) string {
		ref := []string{"- name: " + r.name, "  namespace: " + r.namespace, fmt.Sprintf("  port: %d", r.port)}
		return indent + strings.Join(ref, "\n"+indent) + "\n"
	}
	object := func(kind, namespace, about string) string {
		return fmt.Sprintf("%s\napiVersion: gateway.envoyproxy.io/v1alpha1\nkind: %s\nmetadata:\n  name: stator\n  namespace: %s\nspec:\n",
			wrap(about), kind, namespace)
	}

	parts := []string{
		wrap(aboutEnvoyGateway) + "\n\n" + object("EnvoyExtensionPolicy", m.Namespace, aboutExtension(&s)) +
			target("HTTPRoute", m.Route) + "  extProc:\n  - backendRefs:\n" + routers("    ") + fmt.Sprintf(
			extension, m.MessageTimeout, !s.FailClosed, envoynames.NamespaceLB, envoynames.NamespaceLB, envoynames.Namespace),

		object("BackendTrafficPolicy", m.Namespace, aboutTraffic) + target("HTTPRoute", m.Route) + fmt.Sprintf(
			traffic, envoynames.HeaderDestination, s.MaxBodyBytes, int(s.IdleTimeout.Seconds())),

		object("ClientTrafficPolicy", m.GatewayNamespace, aboutClients) + target("Gateway", m.Gateway) + fmt.Sprintf(
			"  connection:\n    bufferLimit: \"%d\"\n  headers:\n    earlyRequestHeaders:\n      remove:\n      - %s\n",
			s.MaxBodyBytes, strings.Join(s.removed(), "\n      - ")),

		object("EnvoyProxy", m.GatewayNamespace, fmt.Sprintf(aboutProxy, m.Gateway)) +
			"  telemetry:\n    accessLog:\n      settings:\n      - sinks:\n        - type: ALS\n          als:\n            type: " +
			"HTTP\n            logName: stator\n            backendRefs:\n" + routers("            "),
	}
	if m.Namespace != r.namespace || m.GatewayNamespace != r.namespace {
		parts = append(parts, fmt.Sprintf(grant, wrap("Objects of other namespaces may name the Service of the routers."),
			r.namespace, m.Namespace, m.GatewayNamespace, r.name))
	}
	return docs(parts...), nil
}

// extension ends the policy of the filter.
const extension = `    backendSettings:
      circuitBreaker:
        maxConnections: 100000
        maxPendingRequests: 100000
        maxParallelRequests: 100000
    messageTimeout: %ds
    failOpen: %t
    processingMode:
      request:
        body: Buffered
    metadata:
      accessibleNamespaces:
      - %s
      writableNamespaces:
      - %s
      - %s
`

// traffic ends the policy of the cluster of workers.
const traffic = `  loadBalancer:
    type: RoundRobin
    endpointOverride:
      extractFrom:
      - header: %s
  requestBuffer:
    limit: "%d"
  circuitBreaker:
    maxConnections: 100000
    maxPendingRequests: 100000
    maxParallelRequests: 100000
  healthCheck:
    panicThreshold: 0
  timeout:
    http:
      connectionIdleTimeout: 4s
      streamIdleTimeout: %ds
`

// grant allows the objects of two namespaces to name a Service.
const grant = `%s
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata:
  name: stator
  namespace: %s
spec:
  from:
  - group: gateway.envoyproxy.io
    kind: EnvoyExtensionPolicy
    namespace: %s
  - group: gateway.envoyproxy.io
    kind: EnvoyProxy
    namespace: %s
  to:
  - group: ""
    kind: Service
    name: %s
`

const aboutEnvoyGateway = "Stator's routers behind Envoy Gateway, without EnvoyPatchPolicy. Apply it with `kubectl apply -f " +
	"-`, and remove it with `kubectl delete -f -`. The HTTPRoute needs `timeouts: {request: 0s}`, or long answers are cut off."

// aboutExtension explains the filter.
func aboutExtension(s *SnippetSettings) string {
	text := "The filter that asks routers, on one HTTPRoute. Envoy Gateway sets no max_message_timeout, so messageTimeout must be " +
		"longer than a decision and its wait in a queue."
	if s.FailClosed {
		return text + " Without a router requests are refused, because routers remove members of KV transfers, " +
			"and salt the prompts of tenants."
	}
	return text + " With failOpen a request goes on without a decision, which is the case in the mode Buffered alone."
}

const aboutTraffic = "The cluster of workers obeys the header in which routers name them. The bound of a body is that of " +
	"routers. By default requests above 1,024 get 503."

const aboutClients = "Without bufferLimit the bound is 32,768 bytes, and longer prompts get 413. Without the removal of these " +
	"headers a client chooses its worker by itself while no router answers."

const aboutProxy = "The access log ends bookings. The object needs a reference, from the Gateway or from its GatewayClass. An " +
	"EnvoyProxy that you have gets spec.telemetry in its place:\n" +
	"  kubectl -n NAMESPACE patch gateway %s --type merge -p\n" +
	`    '{"spec":{"infrastructure":{"parametersRef":{"group":"gateway.envoyproxy.io","kind":"EnvoyProxy","name":"stator"}}}}'`

// removed returns the headers that clients may not set.
func (s *SnippetSettings) removed() []string {
	names := envoynames.RouterHeaders()
	if !s.HintHeaders {
		names = slices.Concat(names, envoynames.HintHeaders())
	}
	return names
}
