package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/stator-project/stator/doctor"
	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/status"
)

const statusAbout = `Prints the state of a fleet: its processes; what each Envoy has accepted; for each worker health, events, the
state of its cache, how far routers are behind its events, and load; the plan; stores of KV blocks; and the faults that stator
doctor finds. It changes nothing and sends no prompts.

With several routers, --admin-address is a list with commas, or a DNS name that stands for all its addresses. Control planes,
planners and agents in processes of their own are named with --part.

Exit status: 0 nothing is wrong, 1 something is.`

// statusWait is how long the doctor reads event sockets and watches caches for progress. It is shorter than its own default, because
// people wait for the tables.
const statusWait = time.Second

func runStatus(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "status", statusAbout)
	var admin adminclient.Config
	admin.AddFlags(f.FlagSet)
	var parts cli.List
	f.Var(&parts, "part", "`address` of the admin port of another process, like --admin-address; may be repeated")
	file := f.String("config", "", "configuration `file` of the router, for the doctor: it compares prompts and workers with it")
	output := f.String("o", "table", "`format` of the output: table or json")
	if err := f.Read(args); err != nil {
		return err
	}
	if *output != "table" && *output != "json" {
		return f.UsageError("-o is table or json, not %q", *output)
	}

	routers := eachRouter(ctx, admin)
	endBar := cli.NewProgressBar(env.err).During(2 * statusWait)
	s, agents, err := readStatus(ctx, routers, parts)
	if err != nil {
		endBar()
		return err
	}
	found, err := examine(ctx, cmp.Or(*file, os.Getenv(configVariable)), routers[0], agents)
	endBar()
	if err != nil {
		return err
	}
	// The doctor examines the first router, too, and knows more.
	s.Findings = slices.DeleteFunc(s.Findings, func(f doctor.Finding) bool { return f.Subject == "part "+routers[0].Address })
	s.Findings = append(s.Findings, found.Findings...)

	if *output == "json" {
		enc := json.NewEncoder(env.out)
		enc.SetIndent("", "  ")
		err = enc.Encode(s)
	} else {
		s.Print(env.out, cli.HasColour(env.out))
	}
	if err == nil && slices.ContainsFunc(s.Findings, func(f doctor.Finding) bool { return !f.Note }) {
		err = errors.New("something is wrong: see above")
	}
	return err
}

// readStatus reads the pages of all processes, and returns the ports of those that are agents.
func readStatus(ctx context.Context, routers []adminclient.Config, parts []string) (s status.Status, agents []doctor.AgentPort, err error) {
	all := withParts(routers, parts)
	ports := make([]status.Port, len(all))
	for i, port := range all {
		client, err := adminclient.New(port, status.Timeout)
		if err != nil {
			return status.Status{}, nil, err
		}
		ports[i] = status.Port{Address: port.Address, Admin: client}
	}

	s = status.Read(ctx, ports)
	for i, part := range s.Parts[1:] {
		if slices.Contains(part.Runs, "agent") {
			agents = append(agents, doctor.AgentPort{Address: part.Address, Admin: ports[1+i].Admin})
		}
	}
	return s, agents, nil
}

// examine has the doctor look at a router, its workers and agents. Without a file it compares nothing with the configuration.
func examine(ctx context.Context, file string, router adminclient.Config, agents []doctor.AgentPort) (doctor.Diagnosis, error) {
	cfg := config.Default()
	var err error
	if file != "" {
		cfg, err = doctorConfig(file, true)
		if err != nil {
			return doctor.Diagnosis{}, err
		}
	}
	asked := doctor.Config{Fleet: cfg, AdminAddress: router.Address, Agents: agents, Wait: statusWait}
	asked.Admin, err = adminclient.New(router, doctor.Timeout)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	asked.Engines, err = openEngines(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	return doctor.Examine(ctx, asked), nil
}
