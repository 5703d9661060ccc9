package main

import (
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/xds"
)

const snippetAbout = `Prints what to add to the configuration of an Envoy that you have, so that routers choose the
workers of its requests: YAML with comments. docs/your-own-envoy.md has the way step by step.`

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
	if err := checkRouters(f, &routers, *secrets != ""); err != nil {
		return err
	}

	cfg, err := snippetConfig(*file)
	if err != nil {
		return err
	}
	s.Settings = xdsSettings(cfg, routers)
	s.ExtProcSecrets, s.ExtProcServerName = *secrets, *serverName
	if len(pools) > 0 {
		for _, name := range pools {
			if *file != "" && !slices.Contains(s.Models, name) {
				return f.UsageError("--pool: %s has no model %s; it has %s", *file, name, strings.Join(s.Models, ", "))
			}
		}
		s.Models = pools
	}
	if *edsOnly {
		s.XDS = *xdsAt
	}
	s.Endpoints = listedAddresses(cfg)

	text, err := xds.Snippet(s)
	if err != nil {
		return err
	}
	_, err = env.out.Write(text)
	return err
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
