package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
)

const agentAbout = `Runs a node agent. It starts the engines that the configuration names for its node, restarts them
when they fail, and publishes their state, load and KV events on the bus.`

// agentFlags are the flags of `stator agent` beside the flags that every part has.
type agentFlags struct {
	node, address, ports, stateDir string
	stopEngines                    bool
	drain                          time.Duration
	files                          weightsOptions
}

func (o *agentFlags) addFlags(f *cli.Flags) {
	f.StringVar(&o.node, "node", "", "`name` of this node: the agent starts launches with this node (default: launches without a node)")
	f.StringVar(&o.address, "advertise-address", "",
		"`IP` at which engines listen and routers reach them (default: the address of the route to the bus)")
	f.StringVar(&o.ports, "engine-ports", engine.DefaultPorts, "`range` of the engines' ports; agents of one host may share it")
	f.StringVar(&o.stateDir, "state-dir", "", "`folder` of engines that survive the agent (launch[].survive); one agent at a time uses it")
	f.BoolVar(&o.stopEngines, "stop-engines", false, "stop the engines in --state-dir that have survived their agent, and end")
	f.DurationVar(&o.drain, "drain-time", time.Minute,
		"how long engines go on with their requests, without new ones, when the agent stops; 0s stops them at once")
	o.files.addNodeFlags(f, "weights-")
}

func runAgent(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "agent", agentAbout)
	p := newProcess(env, f, "agent", "127.0.0.1:8084")
	defer p.close()
	var o agentFlags
	o.addFlags(f)
	if err := f.Read(args); err != nil {
		return err
	}
	if o.stopEngines {
		return stopSurvivors(env, p, o.stateDir)
	}

	if err := p.openOnBus(ctx); err != nil {
		return err
	}
	wanted, err := launchesOf(p.cfg, o.node, p.log)
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		return noLaunches(p.cfg, o.node)
	}

	if o.address == "" {
		o.address, err = workeragent.RouteAddress(p.cfg.Bus.URL)
		if err != nil {
			return err
		}
	}
	state, sockets, err := agentFolder(p, o.stateDir)
	if err != nil {
		return err
	}
	if state != nil {
		defer state.Close()
	} else {
		defer func() { _ = os.RemoveAll(sockets) }()
	}
	site, err := engine.NewSite(o.address, o.ports, sockets)
	if err != nil {
		return err
	}

	stores, err := newKVStores(p.cfg, wanted, o.node, &site, p.bus, p.log, p.reg)
	if err != nil {
		return err
	}
	ensure, closeFiles, err := o.files.ensure(p, o.node)
	if err != nil {
		return err
	}
	defer closeFiles()
	a, err := workeragent.New(workeragent.Config{
		Launches: wanted, Scaled: p.cfg.Planner.ByAgents(), Node: o.node, Site: site, State: state,
		Bus: p.bus, Log: p.log, Metrics: p.reg, Engines: p.engines,
		IndexBytes: p.cfg.Index.MaxBytes, Store: stores.report, Files: ensure, DrainTime: o.drain, Hard: env.hard,
	})
	if err != nil {
		return err
	}
	p.part(a.Run)
	p.part(func(ctx context.Context) error {
		return p.followed.Follow(ctx, func(cfg *config.Config) error {
			launches, err := launchesOf(cfg, o.node, p.log)
			if err != nil {
				return err
			}
			return a.Reload(launches, cfg.Planner.DrainTimeout.Std())
		})
	})
	stores.addParts(p.part, p.bus, o.node)
	return p.runParts(ctx, admin.Sources{Ready: p.bus.Err, Agent: a.Status, KV: stores.sources()})
}

// launchesOf returns the engines of a node, with their GPUs.
func launchesOf(cfg *config.Config, node string, log *slog.Logger) ([]engine.Launch, error) {
	wanted, err := engine.Configured(cfg, node)
	if err != nil {
		return nil, err
	}
	return giveGPUs(wanted, log)
}

// agentFolder returns the folder of the engines' sockets: the folder of the state, or else a private one.
func agentFolder(p *process, stateDir string) (state *workeragent.State, sockets string, err error) {
	if stateDir == "" {
		sockets, err = makeRunFolder(p.log)
		return nil, sockets, err
	}
	state, err = workeragent.OpenState(stateDir)
	if err != nil {
		return nil, "", err
	}
	return state, state.Sockets(), nil
}

// stopSurvivors stops the engines that have survived their agent.
func stopSurvivors(env environment, p *process, stateDir string) error {
	if stateDir == "" {
		return p.flags.UsageError("--stop-engines needs the --state-dir of the agent")
	}
	log, err := p.logFlags.Logger(env.err)
	if err != nil {
		return err
	}
	state, err := workeragent.OpenState(stateDir)
	if err != nil {
		return err
	}
	defer state.Close()
	return state.StopEngines(env.hard, nil, log)
}

// noLaunches returns the error of an agent that would have nothing to start.
func noLaunches(cfg *config.Config, node string) error {
	var nodes []string
	for i := range cfg.Models {
		for _, l := range cfg.Models[i].Launch {
			nodes = append(nodes, fmt.Sprintf("%q", l.Node))
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if len(nodes) == 0 {
		return fmt.Errorf("no model of the configuration has a launch for node %q: add one, or start no agent", node)
	}
	return fmt.Errorf("no launch of the configuration is for node %q: correct --node, or launch[].node; the file has %s",
		node, strings.Join(nodes, ", "))
}

// giveGPUs assigns the GPUs of this host to the engines without configured ones. It returns the engines without spare ones for which there
// are no GPUs.
func giveGPUs(wanted []engine.Launch, log *slog.Logger) ([]engine.Launch, error) {
	found, source := engine.FindGPUs()
	given, err := engine.AssignGPUs(slices.Clone(wanted), found)
	if err != nil {
		return nil, fmt.Errorf("%w (devices by %s: %s)", err, source, strings.Join(found, ","))
	}
	if len(given) < len(wanted) {
		log.Warn("there are GPUs for fewer engines than launch[].max: the planner cannot start the others",
			"engines", len(given), "max", len(wanted), "gpus", len(found), "found_by", source)
	}
	for i := range given {
		if len(given[i].GPUs) > 0 {
			log.Info("GPUs assigned", "worker", given[i].Name, "gpus", given[i].GPUs, "found_by", source)
		}
	}
	return given, nil
}
