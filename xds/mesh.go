package xds

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Mesh names the objects of a Kubernetes cluster to which routers are added there. Which of them are needed depends on the way:
// the errors of [Istio] and [EnvoyGateway] name the flag of what is missing.
type Mesh struct {
	// Namespace has the workers and their route.
	Namespace string
	// Gateway is the Gateway, and GatewayNamespace its namespace. GatewayLabels select the pods of Istio's ingress gateway in place
	// of the label that a Gateway gives its pods, such as istio=ingressgateway.
	Gateway, GatewayNamespace, GatewayLabels string
	// Service and Port are those of the workers.
	Service string
	Port    int
	// Route is an HTTPRoute that leads to the workers. RouteName is a route as istiod names it, in place of Route.
	Route, RouteName string
	// Pool is an InferencePool of the workers, which makes Service and Route needless.
	Pool string
	// MessageTimeout bounds a decision and its wait in a queue, in seconds, for a proxy that cannot extend it.
	MessageTimeout int
}

// The forms of names. They are printed into YAML without quotes, so they have no character that YAML reads.
var (
	objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	routeName  = regexp.MustCompile(`^[-A-Za-z0-9._|:/]{1,253}$`)
	labelRE    = regexp.MustCompile(`^[-A-Za-z0-9._/]{1,253}=[-A-Za-z0-9._]{0,63}$`)
)

// check refuses values that are no names of objects. Its errors name flags.
func (m *Mesh) check() error {
	for flag, name := range map[string]string{
		"--namespace": m.Namespace, "--gateway": m.Gateway, "--service": m.Service, "--route": m.Route, "--inference-pool": m.Pool,
	} {
		if name != "" && !objectName.MatchString(name) {
			return fmt.Errorf("%s is %q: use the name of an object in Kubernetes", flag, name)
		}
	}
	switch {
	case m.Namespace == "":
		return errors.New("name the namespace of the workers and the routers with --namespace")
	case m.Gateway == "" && m.GatewayLabels == "":
		return errors.New("name the Gateway with --gateway NAMESPACE/NAME")
	case !objectName.MatchString(m.GatewayNamespace):
		return fmt.Errorf("--gateway has the namespace %q: use NAMESPACE/NAME", m.GatewayNamespace)
	case m.GatewayLabels != "" && !labelRE.MatchString(m.GatewayLabels):
		return fmt.Errorf("--gateway-labels is %q: use one label of the gateway's pods, such as istio=ingressgateway", m.GatewayLabels)
	case m.RouteName != "" && !routeName.MatchString(m.RouteName):
		return fmt.Errorf("--route-name is %q: use the name of a route in /config_dump of the gateway", m.RouteName)
	case m.Port < 1 || m.Port > 65535:
		return fmt.Errorf("--port is %d: use the port of the workers' Service, 1 to 65535", m.Port)
	}
	return nil
}

// routerService is the Service of the routers.
type routerService struct {
	name, namespace, host string
	port                  int
}

// serviceOf finds the Service of the routers in their address.
func (s *SnippetSettings) serviceOf() (r routerService, err error) {
	err = fmt.Errorf("--extproc-address is %q: use the DNS name of one Service, such as stator.llm.svc.cluster.local:9002",
		strings.Join(s.ExtProc, ","))
	if len(s.ExtProc) != 1 {
		return r, err
	}
	host, port, splitErr := net.SplitHostPort(s.ExtProc[0])
	name, rest, _ := strings.Cut(host, ".")
	namespace, domain, _ := strings.Cut(rest, ".")
	number, portErr := strconv.ParseUint(port, 10, 16)
	// The domain of the cluster may be another one than cluster.local, or be left out.
	isName := objectName.MatchString(name) && objectName.MatchString(namespace) && objectName.MatchString(domain)
	if splitErr != nil || portErr != nil || number == 0 || !isName || domain != "svc" && !strings.HasPrefix(domain, "svc.") {
		return r, err
	}
	return routerService{name: name, namespace: namespace, host: host, port: int(number)}, nil
}

// checkMesh refuses settings that the objects of a mesh cannot have.
func (s *SnippetSettings) checkMesh(m *Mesh) error {
	// With several models the decision selects the route, and an HTTPRoute has no place for that.
	switch {
	case len(s.Models) != 1:
		return errors.New("name one model with --pool: objects of a mesh lead to the workers of one")
	case s.ExtProcSecrets != "":
		return errors.New("--secrets are files in the gateway, which a mesh does not mount: leave it out, and start routers with " +
			"--insecure or --tls-self-signed and --tls-client-ca none")
	}
	return m.check()
}

// docs joins documents of YAML.
func docs(parts ...string) []byte { return []byte(strings.Join(parts, "---\n")) }
