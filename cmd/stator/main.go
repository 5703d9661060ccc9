// Command stator makes a fleet of LLM engines behind Envoy behave as one cache-aware engine. Without
// arguments it prints its subcommands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	// A static image has no certificate authorities. These are used if the system has none.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/stator-project/stator/internal/child"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/workeragent/engine"
)

// command is one subcommand. run receives the arguments after the name.
type command struct {
	name, summary string
	run           func(ctx context.Context, env environment, args []string) error
}

// environment is the part of its process that a command may use.
type environment struct {
	in       io.Reader
	out, err io.Writer
	// hard ends with the second request to stop. Then nothing is drained.
	hard context.Context
}

// commands are listed as help prints them.
func commands() []command {
	return []command{
		{"up", "run everything on this machine: bus, router, control plane, engines and Envoy", runUp},
		{"extproc", "run a router: Envoy's external processor, and the receiver of its access log", runExtProc},
		{"xds", "run the control plane: listeners, routes, clusters and endpoints for Envoys", runXDS},
		{"plan", "propose a fleet for a model, some GPUs and latency targets", runPlan},
		{"planner", "run the planner", runPlanner},
		{"agent", "run a node agent, which starts engines and restarts them when they fail", runAgent},
		{"bus", "run the message bus, an embedded NATS server", runBus},
		{"sim", "run one simulated engine with the interfaces of vLLM", runSim},
		{"tokenize", "print the token ids of texts or requests, in JSON lines", runTokenize},
		{"render", "print the prompts that a model's template makes of chats, in JSON lines", runRender},
		{"hash", "print the block hashes of token ids, in JSON lines", runHash},
		{"replay", "play a trace against a simulated fleet and print the figures", runReplay},
		{"shadow", "report what the router would have changed, from the decision log of a shadow", runShadow},
		{"status", "show the state of a fleet: processes, Envoys, workers, the plan, and faults", runStatus},
		{"top", "show a router live in the terminal: workers, queue, tenants, decisions and their reasons", runTop},
		{"explain", "print why a request went to its worker", runExplain},
		{"validate", "check a configuration file", runValidate},
		{"drain", "take a worker or a node out of service, and wait for its requests", runDrain},
		{"doctor", "find what is wrong with a running fleet, and what to do", runDoctor},
		{"collect", "gather the state of a fleet into one file for a bug report, or serve such a file", runCollect},
		{"kv", "show and change a node's store of KV blocks", runKV},
		{"weights", "copy the files of a model from node to node, each to the next one", runWeights},
		{"envoy", "print the bootstrap of an Envoy that you run, or what to add to one that you have", runEnvoy},
		{"completion", "print the completion for bash, zsh or fish, or the manual page", runCompletion},
		{"version", "print the version", runVersion},
	}
}

func main() {
	// An agent runs this program between itself and an engine. That is no command for people.
	if len(os.Args) > 1 && os.Args[1] == engine.HoldCommand {
		os.Exit(child.Hold(os.Args[2:]))
	}

	ctx, hard := signals()
	err := Main(ctx, environment{in: os.Stdin, out: os.Stdout, err: os.Stderr, hard: hard}, os.Args[1:])
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, cli.ErrUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "stator:", err)
		os.Exit(1)
	}
}

// signals returns a context that ends with the first SIGINT or SIGTERM, and one that ends with the second.
func signals() (soft, hard context.Context) {
	soft, stopSoft := context.WithCancel(context.Background())
	hard, stopHard := context.WithCancel(context.Background())
	in := make(chan os.Signal, 2)
	signal.Notify(in, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-in
		stopSoft()
		<-in
		stopHard()
	}()
	return soft, hard
}

// Main runs a command line. Tests call it with arguments of their choice.
func Main(ctx context.Context, env environment, args []string) error {
	if len(args) == 0 {
		usage(env.out)
		return nil
	}

	name, rest := args[0], args[1:]
	switch name {
	case "help", "-h", "--help":
		if len(rest) == 0 {
			usage(env.out)
			return nil
		}
		name, rest = rest[0], []string{"-h"}
	case "-v", "--version":
		name = "version"
	}

	c, err := findCommand(env, name)
	if err != nil {
		return err
	}
	return c.run(ctx, env, rest)
}

// findCommand returns the command of that name, or prints that there is none.
func findCommand(env environment, name string) (command, error) {
	var names []string
	for _, c := range commands() {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}

	text := fmt.Sprintf("stator: there is no command %q", name)
	if near := config.Nearest(name, names); near != "" {
		text += "; did you mean " + near + "?"
	}
	fmt.Fprint(env.err, text+"\n\n")
	usage(env.err)
	return command{}, cli.ErrUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Stator makes a fleet of LLM engines behind Envoy behave as one cache-aware engine.\n\nUsage: stator COMMAND [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "\n`stator help COMMAND` describes a command and its flags. Start with `stator up`.\n")
}
