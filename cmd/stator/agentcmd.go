package main

import (
	"context"

	"github.com/stator-project/stator/admin"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/workeragent"
	"github.com/stator-project/stator/workeragent/engine"
)

const agentAbout = `Runs a node agent. It starts the engines that the configuration names for its node, restarts them
when they fail, and publishes their state, load and KV events on the bus.`

func runAgent(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "agent", agentAbout)
	p := newProcess(env, f, "agent", "127.0.0.1:8084")
	node := f.String("node", "", "`name` of this node: the agent starts launches with this node (default: launches without a node)")
	if err := f.Read(args); err != nil {
		return err
	}
	if err := p.openOnBus(ctx); err != nil {
		return err
	}
	wanted, err := engine.Configured(p.cfg, *node)
	if err != nil {
		return err
	}
	a, err := workeragent.New(workeragent.Config{Launches: wanted, Bus: p.bus, Log: p.log, Metrics: p.reg,
		IndexBytes: p.cfg.Index.AgentBytes, Hard: env.hard})
	if err != nil {
		return err
	}
	p.part(a.Run)
	return p.run(ctx, admin.Sources{})
}
