package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/listen"
	"github.com/stator-project/stator/internal/modelfile"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/workeragent/engine"
)

//go:embed default.yaml
var defaultConfig []byte

const upAbout = `Runs everything on this machine: message bus, router, control plane, planner, engines and Envoy.
Without --config there are two simulated engines. --to names engines of yours that run already, instead of a
configuration file: they are asked for everything. Ctrl-C drains and stops; a second Ctrl-C stops at once.`

type upFlags struct {
	file, engine, http, admin, model, modelDir, envoy, policy, decisions string
	to                                                                   string
	engines                                                              []string // the addresses of to
	workers, prefill, decode, concurrency, envoys                        int
	drain                                                                time.Duration
	doors                                                                listen.Doors // of the admin port
	log                                                                  *cli.LogFlags
	set                                                                  map[string]bool // flags that were given
}

func readUpFlags(env environment, args []string) (*upFlags, error) {
	o := &upFlags{set: map[string]bool{}}
	f := cli.New(env.out, env.err, "up [FILE]", upAbout)
	f.StringVar(&o.file, "config", "", "configuration `file`; see docs/configuration.md")
	f.StringVar(&o.to, "to", "",
		"`url` of an engine that runs already, such as http://127.0.0.1:8000; may be a list with commas. Models, tokenizers, block sizes "+
			"and KV events are found, so no --config is needed")
	f.StringVar(&o.engine, "engine", engines.Sim.Name, "engine to launch for the first model: "+strings.Join(engine.Kinds(), ", "))
	f.IntVar(&o.workers, "workers", 2, "number of these engines")
	f.IntVar(&o.prefill, "prefill", 0, "number of engines that only prefill; needs --decode, and replaces --workers")
	f.IntVar(&o.decode, "decode", 0, "number of engines that only decode; needs --prefill")
	f.StringVar(&o.http, "listen-address", "127.0.0.1:8080", "`address` of the gateway")
	f.StringVar(&o.admin, "admin-address", "127.0.0.1:8081", "`address` of the admin port; port 0 chooses a free one")
	f.StringVar(&o.model, "model", "", "`name` of the first model (default sim, or the last part of --model-dir)")
	f.StringVar(&o.modelDir, "model-dir", "", "model folder, .gguf `file` or hf:ORG/MODEL of the first model (default builtin:sim)")
	f.StringVar(&o.policy, "policy", pick.KV, "routing policy of the first model: "+strings.Join(pick.Names(), ", "))
	addDecisionLogFlag(f, &o.decisions)
	f.StringVar(&o.envoy, "envoy", "", "`path` of Envoy (default: the one in .venv)")
	f.IntVar(&o.concurrency, "envoy-concurrency", 0, "Envoy's worker threads (default: one per core)")
	f.IntVar(&o.envoys, "envoys", 1, "number of Envoys, which share the gateway's port: of two, one serves while the other is away")
	f.DurationVar(&o.drain, "drain-time", 10*time.Second, "how long to wait for running requests when stopping")
	o.doors.AddFlags(f.FlagSet, "the admin port")
	o.log = cli.AddLogFlags(f)

	if err := f.ReadWithFile(args, &o.file); err != nil {
		return nil, err
	}
	f.Visit(func(g *flag.Flag) { o.set[g.Name] = true })
	if o.envoys < 1 || o.envoys > maxEnvoys {
		return nil, f.UsageError("--envoys is %d: it must be 1 to %d", o.envoys, maxEnvoys)
	}
	if o.set["workers"] && o.workers < 1 {
		return nil, f.UsageError("--workers is %d: it must be at least 1", o.workers)
	}
	if o.set["to"] {
		for _, other := range []string{"config", "engine", "workers", "prefill", "decode", "model"} {
			if o.set[other] || other == "config" && o.file != "" {
				return nil, f.UsageError("--to cannot be used with --%s: engines of --to run already, and report their models", other)
			}
		}
		var err error
		o.engines, err = readTo(o.to)
		if err != nil {
			return nil, f.UsageError("%v", err)
		}
	}
	switch {
	case o.prefill < 0 || o.decode < 0 || (o.prefill > 0) != (o.decode > 0):
		return nil, f.UsageError("--prefill is %d and --decode is %d: both must be at least 1, or neither given", o.prefill, o.decode)
	case o.prefill > 0 && o.set["workers"]:
		return nil, f.UsageError("--workers cannot be used with --prefill and --decode: give the number of each")
	}
	return o, nil
}

// config returns the configuration of the file, or the default one, changed by the flags.
func (o *upFlags) config() (cfg *config.Config, err error) {
	switch {
	case o.set["to"]:
		cfg = config.Default()
		o.overlayGateway(cfg)
		return cfg, nil
	case o.file != "":
		cfg, err = configfile.Read(o.file)
	default:
		cfg, err = config.Parse(defaultConfig)
	}
	if err != nil {
		return nil, err
	}
	return cfg, o.overlay(cfg)
}

// overlayGateway applies the flags that belong to no model.
func (o *upFlags) overlayGateway(cfg *config.Config) {
	if o.set["listen-address"] {
		cfg.Gateway.Listen = o.http
	}
	if o.set["decision-log"] {
		cfg.Decisions.Log = o.decisions
	}
}

// overlay applies the flags that were given. Flags of the first model override its settings.
func (o *upFlags) overlay(cfg *config.Config) error {
	if o.set["to"] {
		return nil // they are in it
	}
	first := &cfg.Models[0]
	o.overlayGateway(cfg)
	if o.set["policy"] {
		first.Router.Policy = o.policy
	}
	if o.set["model-dir"] {
		folder, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("--model-dir: %w", err)
		}
		first.Path = modelfile.Resolve(o.modelDir, folder)
		if o.file == "" {
			first.Name = modelfile.Name(first.Path)
		}
	}
	if o.set["model"] {
		first.Name = o.model
	}

	if (o.set["engine"] || o.set["workers"] || o.prefill > 0) && len(first.Launch) == 0 {
		first.Launch = []config.Launch{{Engine: o.engine, Role: "aggregated"}}
		first.Launch[0].SetCount(o.workers)
	}
	if o.set["engine"] && first.Launch[0].Engine != o.engine {
		first.Launch[0].Engine, first.Launch[0].Args = o.engine, nil // args are the other engine's
	}
	if o.set["workers"] {
		first.Launch[0].SetCount(o.workers)
	}
	if o.prefill > 0 {
		prefill := first.Launch[0]
		prefill.Role = fleet.Prefill.String()
		prefill.SetCount(o.prefill)
		first.Launch[0].Role = fleet.Decode.String()
		first.Launch[0].SetCount(o.decode)
		first.Launch = append(first.Launch, prefill)
	}

	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("with these flags: %w", err)
	}
	return nil
}
