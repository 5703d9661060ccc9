package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/stator-project/stator/discovery/kubernetes"
	"github.com/stator-project/stator/doctor"
	"github.com/stator-project/stator/internal/adminclient"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/configfile"
)

const doctorAbout = `Looks at a running fleet and reports what is wrong, why it matters and what to do. It asks the
router's admin port, those of agents, and of each worker the HTTP server and the event sockets. It changes
nothing and sends no prompts. Exit status: 0 nothing is wrong, 1 there are findings.

With --envoy-admin it also reads the configuration of an Envoy that you have, and reports what is missing or wrong
there. Without --config, --admin-address and --agent it looks at that Envoy alone. Its notes do not change the exit status.

With --kubernetes it looks at the InferencePools of a namespace: can they be switched to Stator's routers, what would fail, and what is
left after an uninstallation? Run it in a pod, so that it reaches the engines, too.`

// doctorFlags are the flags of `stator doctor`.
type doctorFlags struct {
	file      string
	agents    cli.List
	admin     adminclient.Config
	envoyAt   string
	inCluster bool
	cluster   doctor.Cluster
	api       string
	wait      time.Duration
	asJSON    bool
}

func (o *doctorFlags) addFlags(f *cli.Flags) {
	f.StringVar(&o.file, "config", "", "configuration `file` of the router (default: the one that "+configVariable+" names, as in the "+
		"pods of the chart; without that, the configuration of a plain stator up)")
	f.Var(&o.agents, "agent",
		"`address` of an agent's admin port, like --admin-address; may be repeated; the agent of stator up need not be named")
	o.admin.AddFlags(f.FlagSet)
	f.StringVar(&o.envoyAt, "envoy-admin", "",
		"`address` of the admin port of an Envoy that you have: http://ip:port, ip:port, https://name:port or unix:///path")
	f.Group("Kubernetes", func() {
		f.BoolVar(&o.inCluster, "kubernetes", false,
			"look at the InferencePools of a namespace, their pickers, pods and engines, in place of a router")
		addNamespace(f, &o.cluster.Namespace, "`namespace` of the pools (default that of this process's pod)")
		f.StringVar(&o.cluster.Service, "router-service", "stator", "`name` of the Service of the routers")
		f.StringVar(&o.api, "kubernetes-api", "", kubernetesAPIUsage)
	})
	f.DurationVar(&o.wait, "wait", 3*time.Second, "how long to read event sockets, and to watch cache states for progress")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
}

func runDoctor(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "doctor", doctorAbout)
	var o doctorFlags
	o.addFlags(f)
	if err := f.Read(args); err != nil {
		return err
	}
	if o.wait <= 0 {
		fmt.Fprintln(env.err, "stator doctor: --wait must be positive")
		return cli.ErrUsage
	}
	asked, err := o.asked(f)
	if err != nil {
		return err
	}

	endBar := cli.NewProgressBar(env.err).During(o.wait)
	diagnosis := doctor.Examine(ctx, asked)
	endBar()
	if o.asJSON {
		err = diagnosis.PrintJSON(env.out)
	} else {
		diagnosis.Print(env.out)
	}
	if err != nil {
		return err
	}

	switch n := diagnosis.Faults(); n {
	case 0:
		return nil
	case 1:
		return errors.New("1 finding")
	default:
		return fmt.Errorf("%d findings", n)
	}
}

// asked returns the places at which the doctor looks.
func (o *doctorFlags) asked(f *cli.Flags) (doctor.Config, error) {
	ofPod := os.Getenv(configVariable)
	cfg, err := doctorConfig(cmp.Or(o.file, ofPod), o.inCluster || ofPod != "")
	if err != nil {
		return doctor.Config{}, err
	}

	client, err := adminclient.New(o.admin, doctor.Timeout)
	if err != nil {
		return doctor.Config{}, err
	}
	asked := doctor.Config{Fleet: cfg, AdminAddress: o.admin.Address, Admin: client, Wait: o.wait}
	asked.Engines, err = openEngines(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return asked, err
	}
	for _, address := range o.agents {
		port := o.admin
		port.Address = address
		client, err := adminclient.New(port, doctor.Timeout)
		if err != nil {
			return asked, err
		}
		asked.Agents = append(asked.Agents, doctor.AgentPort{Address: address, Admin: client})
	}
	if o.envoyAt != "" {
		client, err := adminclient.New(adminclient.Config{Address: o.envoyAt}, doctor.EnvoyTimeout)
		if err != nil {
			return asked, err
		}
		asked.Envoy = &doctor.EnvoyPort{Address: o.envoyAt, Admin: client}
		asked.EnvoyAlone = !isGiven(f.FlagSet, "config", "admin-address", "agent", "kubernetes")
	}
	if !o.inCluster {
		return asked, nil
	}

	if isGiven(f.FlagSet, "admin-address", "agent") {
		return asked, f.UsageError("--kubernetes looks at a cluster in place of a router and agents: leave --admin-address and --agent out")
	}
	o.cluster.Client, err = kubernetes.NewClient(o.api)
	if err != nil {
		return asked, err
	}
	o.cluster.Namespace = cmp.Or(o.cluster.Namespace, o.cluster.Client.Namespace())
	if o.cluster.Namespace == "" {
		return asked, f.UsageError("name the namespace of the pools with -n: this process runs in no pod")
	}
	asked.Kubernetes = &o.cluster
	return asked, nil
}

// configVariable names the configuration of the router beside which the doctor is started, such as by kubectl exec.
const configVariable = "STATOR_CONFIG"

// doctorConfig reads the configuration of the router. In a cluster it may name no model, because routers find them.
func doctorConfig(file string, inCluster bool) (*config.Config, error) {
	switch {
	case file == "" && inCluster:
		return config.Default(), nil
	case inCluster:
		return configfile.ReadPartial(file)
	case file == "":
		return config.Parse(defaultConfig)
	default:
		return configfile.Read(file)
	}
}

// isGiven reports whether one of these flags is on the command line.
func isGiven(f *flag.FlagSet, names ...string) (given bool) {
	f.Visit(func(set *flag.Flag) { given = given || slices.Contains(names, set.Name) })
	return given
}
