// Command clients runs the blocks of docs/clients.md as they are, against a whole gateway with four simulated engines, and has the agents
// among these clients go on with their conversations for some turns. A proxy between client and gateway reads the usage of each answer.
//
// A client fails if its program fails, or if any of its requests gets another status than 200. Of an agent, each turn after the first must
// find cached tokens, and the cached tokens that decisions promised and those that engines report are compared.
//
// With --record FILE, the agents talk to a scripted engine that calls tools, in place of the gateway, and their requests are kept as
// samples, without their texts: see shape.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stator-project/stator/test/process"
)

func main() { process.Main("clients", run) }

type options struct {
	stator, page, node, python, only, record string
	turns                                    int
}

func readOptions(args []string, usage io.Writer) (o options, err error) {
	f := flag.NewFlagSet("clients", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.stator, "stator", "bin/stator", "the `program`")
	f.StringVar(&o.page, "page", "docs/clients.md", "the `page` whose blocks are run")
	f.StringVar(&o.node, "node", ".node-clients", "`folder` with the packages of package.json")
	f.StringVar(&o.python, "python", ".venv-clients", "virtual `environment` with the packages of requirements.txt")
	f.StringVar(&o.only, "only", "", "run only the client with this `heading`")
	f.StringVar(&o.record, "record", "", "`file` for samples of what agents send to a scripted engine, without their texts")
	f.IntVar(&o.turns, "turns", 12, "turns of the conversation of an agent")
	err = f.Parse(args)
	return o, err
}

// configuration is that of the gateway. Hints of all clients count, so that a hint in a wrong form would be refused. Agents ask for answers
// of 32,000 tokens, so engines end them by themselves.
const configuration = `
apiVersion: stator.dev/v1alpha1
kind: Stator
gateway: {hintsFrom: everyone}
models:
- name: sim
  path: "builtin:sim"
  launch: [{engine: sim, count: 4, args: {answerTokens: 64}}]
`

var errFailed = errors.New("not all clients work")

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := readOptions(args, progress)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	clients, err := parsePage(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", o.page, err)
	}

	if o.record != "" {
		return o.recordAgents(ctx, clients, progress)
	}
	g, err := process.StartGateway(ctx, process.GatewayConfig{
		Stator: o.stator, Configuration: configuration,
		Ready: func(ctx context.Context, g *process.Gateway) error { return g.Exact(ctx) },
	})
	if err != nil {
		return err
	}
	defer g.Stop()
	if err := g.AwaitRanks(ctx, 4); err != nil {
		return err
	}

	fmt.Fprintf(out, "%d clients, 4 simulated engines behind Envoy; load average %s\n\n", len(clients), process.LoadAverage())
	fmt.Fprintln(out, header)
	failed := false
	for _, c := range clients {
		if o.only != "" && c.name != o.only {
			continue
		}
		fmt.Fprintf(progress, "%s\n", c.name)
		r := &result{}
		o.play(ctx, g.URL, &c, r, func(list []*exchange) { r.turn(ctx, g, list) })
		fmt.Fprintln(out, r.row(c.name))
		if problem := r.problem(); problem != "" {
			failed = true
			fmt.Fprintf(progress, "%s: %s\n", c.name, problem)
		}
	}
	if failed {
		return errFailed
	}
	return nil
}

// goesOn has the command with which an agent sends the next turn of its last conversation, by the heading of its section.
var goesOn = map[string]string{
	"Claude Code": `claude -p --continue "$TURN"`,
	"Codex":       `codex exec --skip-git-repo-check resume --last "$TURN"`,
	"OpenCode":    `opencode run --continue "$TURN"`,
}

// play runs the blocks of a client with the address of an engine, and then the turns of an agent. seen gets the requests of each turn.
func (o *options) play(ctx context.Context, engine string, c *client, r *result, seen func([]*exchange)) {
	home, err := os.MkdirTemp("", "stator-client-")
	if err != nil {
		r.err = err
		return
	}
	defer func() { _ = os.RemoveAll(home) }()

	proxy, err := startRecorder(engine)
	if err != nil {
		r.err = err
		return
	}
	defer proxy.stop()

	s := &shell{options: o, home: home, gateway: proxy.url}
	r.err = s.prepare(ctx, c)
	for i := range c.blocks {
		if r.err == nil && c.blocks[i].path == "" {
			r.err = s.run(ctx, &c.blocks[i])
		}
	}
	seen(proxy.take())
	for turn := 2; goesOn[c.name] != "" && turn <= o.turns && r.err == nil; turn++ {
		s.env = append(s.env, fmt.Sprintf("TURN=This is turn %d. Tell a little more.", turn))
		r.err = s.run(ctx, &block{language: "sh", text: c.exports() + goesOn[c.name]})
		seen(proxy.take())
	}
}

// recordAgents writes a sample of each request of the agents, a line each.
func (o *options) recordAgents(ctx context.Context, clients []client, progress io.Writer) error {
	engine, stop := startScript()
	defer stop()
	var samples []byte
	for _, c := range clients {
		if goesOn[c.name] == "" || o.only != "" && c.name != o.only {
			continue
		}
		r := &result{}
		o.play(ctx, engine, &c, r, func(list []*exchange) { r.exchanges = append(r.exchanges, list...) })
		fmt.Fprintf(progress, "%s: %d requests\n", c.name, len(r.exchanges))
		if problem := r.problem(); problem != "" {
			return fmt.Errorf("%s: %s", c.name, problem)
		}
		for _, e := range r.exchanges {
			line, err := sample(e)
			if err != nil {
				return err
			}
			samples = append(samples, line...)
		}
	}
	return os.WriteFile(o.record, samples, 0o600)
}

// shell runs blocks in a home and a repository of their own.
type shell struct {
	*options
	home, gateway string
	env           []string
}

// prepare writes the files that the page names. Paths with ~ are in the home, and others in the folder where blocks run.
func (s *shell) prepare(ctx context.Context, c *client) error {
	if err := os.MkdirAll(s.folder(), 0o755); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "git", "init", "--quiet", s.folder()).CombinedOutput(); err != nil {
		return fmt.Errorf("git init: %w: %s", err, out)
	}
	for _, b := range c.blocks {
		if b.path == "" {
			continue
		}
		path := filepath.Join(s.folder(), b.path)
		if rest, ok := strings.CutPrefix(b.path, "~/"); ok {
			path = filepath.Join(s.home, rest)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(s.here(b.text)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *shell) folder() string { return filepath.Join(s.home, "repository") }

// here names the proxy in place of the gateway of the page.
func (s *shell) here(text string) string { return strings.ReplaceAll(text, gatewayOfPage, s.gateway) }

// patience bounds a block: an agent tries again for minutes.
const patience = 2 * time.Minute

// run runs a block, and returns an error with the end of its output if it fails.
func (s *shell) run(ctx context.Context, b *block) error {
	node, err := filepath.Abs(s.node)
	if err != nil {
		return err
	}
	python, err := filepath.Abs(s.python)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text := s.here(b.text)
	var cmd *exec.Cmd
	switch b.language {
	case "sh":
		cmd = exec.CommandContext(ctx, "sh", "-e", "-c", text)
	case "python":
		cmd = exec.CommandContext(ctx, filepath.Join(python, "bin", "python"), "-B", "-c", text)
	case "js":
		// Modules are found beside the script.
		script := filepath.Join(node, "block.mjs")
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			return err
		}
		cmd = exec.CommandContext(ctx, "node", script)
	default:
		return fmt.Errorf("no block of %q can be run: put a path in backquotes and a colon before it if it is a file", b.language)
	}
	cmd.Dir = s.folder()
	path := strings.Join([]string{filepath.Join(node, "node_modules", ".bin"), filepath.Join(python, "bin"), os.Getenv("PATH")}, ":")
	cmd.Env = append(slices.Concat(os.Environ(), s.env), "HOME="+s.home, "PATH="+path,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "LITELLM_LOCAL_MODEL_COST_MAP=True")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out[max(0, len(out)-1000):])
	}
	return nil
}
