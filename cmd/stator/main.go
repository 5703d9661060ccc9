// Command stator makes a fleet of stock LLM engines behind Envoy behave as one cache-aware
// engine. Run it without arguments for the list of its subcommands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// command is one subcommand. Its run gets the arguments after its name.
type command struct {
	name, summary string
	run           func(ctx context.Context, env environment, args []string) error
}

// environment is what a command may touch of the process it runs in.
type environment struct {
	in       io.Reader
	out, err io.Writer
	// hard ends when the user asks a second time to stop: then nothing is drained.
	hard context.Context
}

// commands are listed as help prints them.
func commands() []command {
	return []command{
		{"up", "run everything on this machine: bus, router, control plane, engines and Envoy", runUp},
		{"extproc", "run the router: Envoy's external processor and the receiver of its access log", runExtProc},
		{"xds", "run the control plane: listeners, routes, clusters and endpoints for Envoys", runXDS},
		{"planner", "run the planner", runPlanner},
		{"agent", "run a node agent: start engines and keep them alive", runAgent},
		{"bus", "run the message bus, an embedded NATS server", runBus},
		{"sim", "run one simulated engine that speaks as vLLM does", runSim},
		{"tokenize", "turn text or requests into token ids, a JSON line each", runTokenize},
		{"render", "render chats by a model's template, a JSON line each", runRender},
		{"hash", "hash token ids into blocks, a JSON line each", runHash},
		{"replay", "play a trace against a simulated fleet, and say what came of it", runReplay},
		{"explain", "say why a request went where it went", runExplain},
		{"validate", "check a configuration file", runValidate},
		{"doctor", "say what is wrong with a running fleet, and what to do", runDoctor},
		{"envoy", "print a bootstrap for an Envoy that someone else runs", runEnvoy},
		{"version", "print the version", runVersion},
	}
}

func main() {
	ctx, hard := signals()
	err := Main(ctx, environment{in: os.Stdin, out: os.Stdout, err: os.Stderr, hard: hard}, os.Args[1:])
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "stator:", err)
		os.Exit(1)
	}
}

// signals returns a context that ends with the first SIGINT or SIGTERM and one that ends with
// the second.
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

// errUsage says that the arguments were wrong and that this has been said.
var errUsage = errors.New("usage")

// Main is main without the process: tests call it with arguments of their own.
func Main(ctx context.Context, env environment, args []string) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage(env.out)
		return nil
	}
	if args[0] == "--version" {
		args[0] = "version"
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, env, args[1:])
		}
	}
	fmt.Fprintf(env.err, "stator: there is no command %q\n\n", args[0])
	usage(env.err)
	return errUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Stator makes a fleet of LLM engines behind Envoy behave as one cache-aware engine.\n\nUsage: stator COMMAND [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "\n`stator COMMAND -h` lists a command's flags. Start with `stator up`.\n")
}

// flags returns a flag set for a command, whose name may end with the arguments it takes in
// brackets. Asked for help it prints what the command is for above its flags; about a wrong
// flag it says what is wrong, and where to look.
func flags(env environment, name, about string) *flag.FlagSet {
	command, arguments, _ := strings.Cut(name, " [")
	if arguments != "" {
		arguments = " [" + arguments
	}
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	complaints := &watchedWriter{Writer: env.err}
	f.SetOutput(complaints)
	f.Usage = func() { // called after a complaint, or for help
		if complaints.written {
			fmt.Fprintf(env.err, "`stator %s -h` lists the flags.\n", command)
			return
		}
		fmt.Fprintf(env.out, "Usage: stator %s%s [flags]\n\n%s\n\n", command, arguments, strings.TrimSpace(about))
		f.VisitAll(func(o *flag.Flag) { printFlag(env.out, o) })
	}
	return f
}

// watchedWriter knows whether anything was written.
type watchedWriter struct {
	io.Writer
	written bool
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	w.written = true
	return w.Writer.Write(p)
}

// printFlag writes a flag with two dashes, as Envoy and Kubernetes do.
func printFlag(w io.Writer, o *flag.Flag) {
	kind, text := flag.UnquoteUsage(o)
	head := "  --" + o.Name
	if len(o.Name) == 1 {
		head = "  -" + o.Name
	}
	if kind != "" {
		head += " " + strings.ToUpper(kind)
	}
	if o.DefValue != "" && o.DefValue != "false" && o.DefValue != "0" {
		text += fmt.Sprintf(" (default %s)", o.DefValue)
	}
	fmt.Fprintf(w, "%-30s %s\n", head, text)
}

// parse reads flags and refuses stray arguments.
func parse(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage // the flag set has said why
	}
	return noMore(f, f.Args())
}

// noMore refuses what is left of the arguments.
func noMore(f *flag.FlagSet, args []string) error {
	if len(args) > 0 {
		fmt.Fprintf(f.Output(), "stator %s: unexpected argument %q\n", f.Name(), args[0])
		return errUsage
	}
	return nil
}
