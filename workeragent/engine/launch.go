package engine

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// Launch is one engine process that is wanted.
type Launch struct {
	// Kind is sim, llamacpp, vllm or exec.
	Kind string
	// Name is the worker's.
	Name string
	// Model is the name it serves, ModelPath its files, Aliases further names.
	Model, ModelPath string
	Aliases          []string
	Role             fleet.Role
	// BlockSize is the size of a KV block in tokens.
	BlockSize int
	// Command is the command line of kind exec.
	Command []string
	// Args are the engine's own settings, by name.
	Args map[string]string
	// Taints are the worker's.
	Taints fleet.Taints
	// Self is the path of this program, for sim; Python an interpreter, for llamacpp and vllm.
	Self, Python string
}

// Command is how to run a process and where it will serve.
type Command struct {
	Path string
	Args []string
	Env  []string
	// Worker is what to say of it; state and epoch are the agent's to fill in.
	Worker fleet.Worker
}

// host is where launched engines serve: their node's loopback.
const host = "127.0.0.1"

// Build chooses free ports and builds the command line. A port may be taken before the
// engine binds it; then the engine ends and is started again with another.
func (l Launch) Build() (Command, error) {
	ports, err := freePorts(3)
	if err != nil {
		return Command{}, fmt.Errorf("find free ports for %s: %w", l.Name, err)
	}
	return l.command(ports)
}

// command builds the command line of an engine that serves HTTP, events and their replay on
// these ports, in this order.
func (l Launch) command(ports []int) (Command, error) {
	c := Command{Worker: fleet.Worker{
		Name: l.Name, Model: l.Model, Role: l.Role, Engine: l.Kind, Ranks: 1, BlockSize: l.BlockSize,
		Address: net.JoinHostPort(host, strconv.Itoa(ports[0])), Taints: l.Taints,
	}}
	build, ok := kinds[l.Kind]
	if !ok {
		return Command{}, fmt.Errorf("engine %q cannot be launched: use sim, llamacpp, vllm or exec", l.Kind)
	}
	if err := build(l, ports, &c); err != nil {
		return Command{}, err
	}
	return c, nil
}

// Validate says what is wrong with the launch without starting anything.
func (l Launch) Validate() error {
	_, err := l.command([]int{1, 2, 3})
	return err
}

var kinds = map[string]func(Launch, []int, *Command) error{
	"sim":      simulated,
	"llamacpp": llamaCPP,
	"vllm":     vllm,
	"exec":     other,
}

// freePorts asks the kernel for n different ports that are free now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all at the end, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func endpoint(port int) string { return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)) }

// number reads a whole number among the launch's args; def where it is absent.
func (l Launch) number(key string, def int) (int, error) {
	text, ok := l.Args[key]
	if !ok {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("args.%s of %s is %q: it must be a whole number", key, l.Name, text)
	}
	return n, nil
}

// only refuses args that the kind does not know: a setting without effect is a trap.
func (l Launch) only(known ...string) error {
	for key := range l.Args {
		if len(known) == 0 {
			return fmt.Errorf("args.%s of %s is unknown to engine %s: it takes none", key, l.Name, l.Kind)
		}
		if !slices.Contains(known, key) {
			return fmt.Errorf("args.%s of %s is unknown to engine %s: it takes %s", key, l.Name, l.Kind, strings.Join(known, ", "))
		}
	}
	return nil
}
