package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/xds"
)

const snippetAbout = `Prints what to add to the configuration of an Envoy that you have, so that routers choose the
workers of its requests: YAML with comments. docs/your-own-envoy.md has the way step by step. With --into it
adds the parts to the file, and keeps your comments and the order of your keys.

With --for it prints objects of Kubernetes for kubectl apply: an EnvoyFilter or a Telemetry of Istio, policies of
Envoy Gateway, or the bootstrap of an Envoy in the pod of a router. docs/mesh.md compares the ways.`

// Values of --mode.
const (
	modeBuffered   = "BUFFERED"
	modeFullDuplex = "FULL_DUPLEX_STREAMED"
)

// Values of --for.
const (
	forIstio        = "istio"
	forEnvoyGateway = "envoy-gateway"
	forStandalone   = "standalone"
)

// istioEnvoy is the version of the patches for Istio unless --envoy names one: an istiod refuses fields that are newer than itself.
const istioEnvoy xds.Version = 37

// meshFlags are the flags of --for.
type meshFlags struct {
	xds.Mesh
	way, gateway string
}

// addFlags adds the flags.
func (m *meshFlags) addFlags(f *cli.Flags) {
	f.Group("Kubernetes", func() {
		f.StringVar(&m.way, "for", "", "`way` in: istio, envoy-gateway or standalone; empty for the parts of a static configuration")
		addNamespace(f, &m.Namespace, "`namespace` of the workers, their route and the Service of the routers")
		f.StringVar(&m.gateway, "gateway", "", "`namespace/name` of the Gateway")
		f.StringVar(&m.GatewayLabels, "gateway-labels", "",
			"`label` of the pods of Istio's ingress gateway, such as istio=ingressgateway, in place of the label of a "+
				"Gateway's pods; they are in istio-system unless --gateway names another namespace")
		f.StringVar(&m.Service, "service", "", "`name` of the Service of the workers, for Istio without an InferencePool")
		f.IntVar(&m.Port, "port", 8000, "port of that Service")
		f.StringVar(&m.Route, "route", "", "`name` of the HTTPRoute that leads to the workers; its first rule gets the routers")
		f.StringVar(&m.RouteName, "route-name", "",
			"`name` of the route as Istio has it, in place of --route: http[].name of a VirtualService, or namespace.httproute.rule")
		f.StringVar(&m.Pool, "inference-pool", "",
			"`name` of an InferencePool of the workers, for Istio: prints the access log, which is all that istiod does not write itself")
	})
}

// addNamespace adds --namespace, and -n for it.
func addNamespace(f *cli.Flags, to *string, usage string) {
	f.StringVar(to, "namespace", "", usage)
	f.StringVar(to, "n", "", "the same as --namespace")
}

// print prints the objects of a way, or the parts of a static configuration.
func (m *meshFlags) print(f *cli.Flags, s xds.SnippetSettings, cfg *config.Config, xdsAt string) ([]byte, error) {
	if m.way == "" {
		return xds.Snippet(s)
	}
	var isFull bool
	m.GatewayNamespace, m.Gateway, isFull = strings.Cut(m.gateway, "/")
	if !isFull {
		m.GatewayNamespace, m.Gateway = m.Namespace, m.gateway
	}
	if m.GatewayLabels != "" && m.gateway == "" {
		m.GatewayNamespace = "istio-system"
	}
	host := "stator." + m.Namespace + ".svc.cluster.local"
	if !isGiven(f.FlagSet, "extproc-address") {
		s.ExtProc = []string{host + ":9002"}
	}
	if s.XDS != "" && !isGiven(f.FlagSet, "xds-address") {
		s.XDS = host + ":9003"
	}

	switch m.way {
	case forIstio:
		if s.XDS != "" && !isGiven(f.FlagSet, "pool", "config") {
			return nil, f.UsageError("--eds-only: name the model of the workers with --pool, as engines name it")
		}
		if !isGiven(f.FlagSet, "envoy") {
			s.Version = istioEnvoy
		}
		return xds.Istio(s, m.Mesh)
	case forEnvoyGateway:
		wait := cfg.Gateway.DecisionTimeout.Std()
		for i := range cfg.Models {
			longest := max(cfg.Models[i].Router.Queue.MaxWait, cfg.Models[i].Holds())
			wait = max(wait, (cfg.Gateway.DecisionTimeout + longest).Std())
		}
		m.MessageTimeout = int(math.Ceil(wait.Seconds()))
		return xds.EnvoyGateway(s, m.Mesh)
	case forStandalone:
		return xds.Standalone(xds.BootstrapSettings{
			NodeID: nodeID, Admin: "127.0.0.1:9901", MaxConnections: maxConnections, XDS: xdsAt,
		}, m.Namespace)
	default:
		return nil, f.UsageError("--for is %q: use istio, envoy-gateway or standalone", m.way)
	}
}

func runSnippet(env environment, args []string) error {
	f := cli.New(env.out, env.err, "envoy snippet", snippetAbout)
	version := f.String("envoy", xds.NewestVersion.String(), "`version` of Envoy, 1.36 to 1.40: newer fields are left out")
	file := f.String("config", "", "configuration `file` of the routers: models, workers and settings of the gateway are taken from it")
	var pools cli.List
	f.Var(&pools, "pool", "`name` of a model; may be repeated (default: the models of --config, or sim)")
	edsOnly := f.Bool("eds-only", false, "endpoints come from stator xds, which serves nothing else; without it they are listed")
	var routers cli.List
	f.Var(&routers, "extproc-address", "`address` at which Envoy reaches a router: ip:port, name:port (all its addresses) or "+
		"unix:///path; may be a list with commas, and given more than once (default 127.0.0.1:9002)")
	xdsAt := f.String("xds-address", "127.0.0.1:9003",
		"`address` of stator xds with --eds-only: ip:port, name:port or unix:///path; may be a list with commas")

	into := f.String("into", "", "YAML `file` with the static configuration of an Envoy, which gets the parts in place of standard output")
	host := f.String("virtual-host", "", "`name` of the virtual host that gets the routes, with --into; needed if the file has several")
	mode := f.String("mode", modeBuffered, "request_body_mode of the filter: BUFFERED, or FULL_DUPLEX_STREAMED as in Istio, which has no "+
		"retries, and no answers while no router runs")
	var mesh meshFlags
	mesh.addFlags(f)
	var s xds.SnippetSettings
	f.StringVar(&s.NodeID, "node-id", "",
		"`name` of the Envoy, different for each on one host: bookings of an Envoy that dies are found by it")
	secrets := f.String("secrets", "",
		"`folder` of secrets as Envoy sees it, written by stator envoy bootstrap: routers and stator xds have TLS")
	serverName := f.String("extproc-server-name", xds.DefaultExtProcServerName, "DNS `name` in the certificates of routers, with --secrets")
	f.StringVar(&s.XDSServerName, "xds-server-name", xds.DefaultXDSServerName,
		"DNS `name` in the certificate of stator xds, with --secrets")
	if err := f.Read(args); err != nil {
		return err
	}

	var err error
	s.Version, err = xds.ParseVersion(*version)
	if err != nil {
		return f.UsageError("--envoy: %v", err)
	}
	s.FullDuplex = *mode == modeFullDuplex
	switch {
	case *mode != modeBuffered && !s.FullDuplex:
		return f.UsageError("--mode is %q: use %s or %s, because routers read no whole prompts in other modes",
			*mode, modeBuffered, modeFullDuplex)
	case mesh.way != "" && (*into != "" || s.FullDuplex):
		return f.UsageError("--into and --mode are for a static configuration, and --for prints objects of Kubernetes")
	case *host != "" && *into == "":
		return f.UsageError("--virtual-host needs --into")
	}
	if err := checkRouters(f, &routers, *secrets != ""); err != nil {
		return err
	}

	cfg, err := snippetConfig(*file)
	if err != nil {
		return err
	}
	s.Settings = xdsSettings(cfg, routers)
	s.ExtProcSecrets, s.ExtProcServerName = *secrets, *serverName
	for _, name := range pools {
		if *file != "" && !slices.Contains(s.Models, name) {
			return f.UsageError("--pool: %s has no model %s; it has %s", *file, name, strings.Join(s.Models, ", "))
		}
	}
	if len(pools) > 0 {
		s.Models = pools
	}
	if *edsOnly {
		s.XDS = *xdsAt
	}
	s.Endpoints = listedAddresses(cfg)

	if *into != "" {
		return addToFile(env, *into, s, *host)
	}
	text, err := mesh.print(f, s, cfg, *xdsAt)
	if err != nil {
		return err
	}
	_, err = env.out.Write(text)
	return err
}

// maxEnvoyFile bounds the file of --into, in bytes.
const maxEnvoyFile = 16 << 20

// addToFile adds the parts to a file, and replaces it as a whole. The file that a symbolic link names is replaced, not the link.
func addToFile(env environment, path string, s xds.SnippetSettings, host string) error {
	if strings.HasSuffix(path, ".json") {
		return fmt.Errorf("--into: %s is JSON, which has no comments: write it as YAML first", path)
	}
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxEnvoyFile {
		return fmt.Errorf("--into: %s is no file of at most %d MiB", path, maxEnvoyFile>>20)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--into: %w", err)
	}

	text, err = xds.AddSnippet(text, s, host)
	if err != nil {
		return fmt.Errorf("--into: %s: %w", path, err)
	}
	if err := os.WriteFile(file+".new", text, info.Mode().Perm()); err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	fmt.Fprintf(env.out, "%s has the parts. Check it with: envoy --mode validate -c %s\n", path, path)
	return nil
}

// snippetConfig reads the configuration of the routers, or the default one.
func snippetConfig(file string) (*config.Config, error) {
	if file != "" {
		return configfile.Read(file)
	}
	return config.Parse(defaultConfig)
}

// listedAddresses returns the workers of each model that the configuration lists. Workers with a DNS name are left out, because a pick
// has an IP.
func listedAddresses(cfg *config.Config) map[string][]string {
	list := map[string][]string{}
	for _, m := range cfg.Models {
		for _, w := range m.Workers {
			if _, _, isName := fleet.SplitName(w.Address); !isName {
				list[m.Name] = append(list[m.Name], w.Address)
			}
		}
	}
	return list
}
