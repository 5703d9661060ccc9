package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// Launch describes one engine process to start.
type Launch struct {
	// Kind is the name of a kind of engine that [Kinds] has.
	Kind string
	// Name is the worker's name.
	Name string
	// Model is the name that the engine serves, Aliases are further names, and ModelPath is the folder
	// or file of the model.
	Model, ModelPath string
	Aliases          []string
	// Adapters are the LoRA adapters of kind sim, and LoadAdapters lets it load others. Other engines get both by Args and
	// Env.
	Adapters     []string
	LoadAdapters bool
	Role         fleet.Role
	// BlockSize is the size of a KV block in tokens.
	BlockSize int
	// KVStore has the engine use the store of KV blocks of its model on this node, at [Site.KVStore].
	KVStore bool
	// Command is the command line of kind exec.
	Command []string
	// Args are the settings of this kind of engine, by name.
	Args map[string]string
	// Taints are the worker's taints.
	Taints fleet.Taints
	// Env are environment variables by name, and Dir is the working folder; empty is the agent's.
	Env map[string]string
	Dir string
	// GPUs are the devices of this engine, see [AssignGPUs]; empty leaves the choice to the engine.
	GPUs []string
	// Spare engines run only if a plan asks for them.
	Spare bool
	// Survive has the engine run on when its agent ends.
	Survive bool
	// Self is the path of this program, which runs kind sim. Python is the interpreter that runs engines in
	// Python: a path, or a name in PATH.
	Self, Python string
}

// Command is the command line of an engine, and the worker that it will be.
type Command struct {
	Path string
	Args []string
	Env  []string
	Dir  string
	// Holder is the command line of the process between the agent and the engine, see child.Hold. The
	// simulated engine has none unless it survives the agent, because it starts no processes.
	Holder []string
	// Worker has the addresses that the engine will serve on. The agent fills in state and epoch.
	Worker fleet.Worker

	at       *Site
	port     *reservation   // nil in a command of Validate
	transfer []*reservation // of the sockets by which other engines fetch KV caches; one after the other
	// transferPort is the first of them; 0 if there are none.
	transferPort int
	options      *optionsFile // nil for engines that read none
}

// Port returns the port of the engine's HTTP server.
func (c *Command) Port() int { return c.port.port }

// TransferPort returns the first port of the sockets by which other engines fetch KV caches; 0 if there are none.
func (c *Command) TransferPort() int { return c.transferPort }

// Fingerprint returns a text that another command line, environment, working folder or options file does not have.
func (c *Command) Fingerprint() string {
	text := fmt.Sprintf("%q %q %q %q", c.Path, c.Args, c.Env, c.Dir)
	if c.options != nil {
		text += fmt.Sprintf(" %q", c.options.text)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Leave keeps the sockets of an engine that runs on. Its ports cannot be given to another one while it listens.
func (c *Command) Leave() { c.releasePorts() }

// releasePorts gives the engine's ports back.
func (c *Command) releasePorts() {
	c.port.release()
	for _, r := range c.transfer {
		r.release()
	}
}

// HoldCommand is the hidden subcommand of this program that runs child.Hold.
const HoldCommand = "hold"

// Release gives the engine's ports back and removes its sockets and its options file. The engine must have ended.
func (c *Command) Release() {
	c.at.removeSockets(c.port.port)
	c.releasePorts()
}

// Build reserves the ports of an engine, builds its command line, and writes its options file if it has one. Another
// program may take a port before the engine binds it; then the engine ends, and the next Build chooses another. The
// caller must call Command.Release when the engine has ended.
func (l Launch) Build(at *Site) (*Command, error) {
	port, err := at.Ports.reserve(at.Host)
	if err != nil {
		return nil, fmt.Errorf("reserve a port for %s: %w", l.Name, err)
	}
	transfer, err := l.reserveTransfer(at)
	if err != nil {
		port.release()
		return nil, fmt.Errorf("reserve ports for %s: %w", l.Name, err)
	}

	first := 0
	if len(transfer) > 0 {
		first = transfer[0].port
	}
	c, err := l.command(at, port.port, first)
	if err == nil {
		err = c.options.write()
	}
	if err != nil {
		(&Command{port: port, transfer: transfer}).releasePorts()
		return nil, err
	}
	c.port, c.transfer = port, transfer
	return c, nil
}

// Rebuild returns the command of an engine that runs already, with its ports. The caller must call
// Command.Release when the engine has ended.
func (l Launch) Rebuild(at *Site, port, transferPort int) (*Command, error) {
	c, err := l.command(at, port, transferPort)
	if err != nil {
		return nil, err
	}
	n, err := l.transferPorts()
	if err != nil {
		return nil, err
	}

	c.port = holdUsed(port)
	for i := range n {
		c.transfer = append(c.transfer, holdUsed(transferPort+i))
	}
	return c, nil
}

// reserveTransfer reserves the ports of the sockets by which other engines fetch KV caches.
func (l Launch) reserveTransfer(at *Site) ([]*reservation, error) {
	n, err := l.transferPorts()
	if err != nil || n == 0 {
		return nil, err
	}
	return at.Ports.reserveRun(at.Host, n)
}

// transferPorts returns how many ports, one after the other, the engine needs for its transfers of KV caches.
func (l Launch) transferPorts() (int, error) {
	switch kind := engines.Of(l.Kind); {
	case kind.Connectors:
		return l.vllmTransferPorts()
	case l.hasBootstrap(kind):
		return 1, nil
	}
	return 0, nil
}

// command builds the command line for an engine whose HTTP server has that port. transferPort is the first port for
// transfers of KV caches; 0 if there are none.
func (l Launch) command(at *Site, port, transferPort int) (*Command, error) {
	c := &Command{at: at, transferPort: transferPort, Worker: fleet.Worker{
		Name: l.Name, Model: l.Model, Role: l.Role, Engine: l.Kind, Ranks: 1, BlockSize: l.BlockSize,
		Address: at.address(port), Taints: l.Taints, MaxRequests: l.maxRequests(),
	}}

	kind, ok := engines.Named(l.Kind)
	if !ok || !kind.IsLaunched() {
		return nil, fmt.Errorf("engine %q cannot be launched: use %s", l.Kind, engines.Choices((*engines.Kind).IsLaunched))
	}
	if err := shapes[kind.Launch.Shape](l, port, c); err != nil {
		return nil, err
	}
	if l.Role != fleet.Aggregated && c.Worker.Transfer == fleet.NoTransfer {
		c.Worker.Transfer = kind.Transfer
	}
	c.Dir = l.Dir
	c.Env = append(c.Env, l.environment()...)
	if (kind.Launch.Shape != engines.Simulated || l.Survive) && l.Self != "" {
		c.Holder = []string{l.Self, HoldCommand}
	}
	return c, nil
}

// maxRequests returns the number of requests that a rank runs at once, if the arguments name it. A wrong one is an error of the engine.
func (l Launch) maxRequests() int {
	for key, text := range l.Args {
		if n := engines.MaxRequests(key, text); n > 0 {
			return n
		}
	}
	return 0
}

// environment returns the variables of the configuration, and the variables that give the engine its GPUs. They
// come after the variables of the kind of engine, so that they replace them.
func (l Launch) environment() (all []string) {
	if len(l.GPUs) > 0 {
		// CUDA's own order begins with the fastest device; NVML, nvidia-smi and vLLM count along the bus.
		all = append(all, "CUDA_DEVICE_ORDER=PCI_BUS_ID", visibleDevices+"="+strings.Join(l.GPUs, ","))
	}
	for _, name := range slices.Sorted(maps.Keys(l.Env)) {
		all = append(all, name+"="+l.Env[name])
	}
	return all
}

// Validate returns an error for a launch that is not valid.
func (l Launch) Validate() error {
	transferPort := 0
	if n, err := l.transferPorts(); err == nil && n > 0 { // command reports the error
		transferPort = maxPort - n
	}
	c, err := l.command(&Site{Host: "127.0.0.1"}, maxPort, transferPort)
	if err != nil {
		return err
	}
	if err := c.Worker.ValidateTransfer(); err != nil {
		return fmt.Errorf("launch %s: %w", l.Name, err)
	}
	return nil
}

// shapes holds, for each shape, the function that builds a command line of it.
var shapes = map[engines.Shape]func(Launch, int, *Command) error{
	engines.Simulated:   simulated,
	engines.Script:      llamaCPP,
	engines.ByOptions:   byOptions,
	engines.UserCommand: anyCommand,
}

// Kinds returns the kinds of engines that can be launched, sorted.
func Kinds() []string { return slices.Sorted(slices.Values(engines.Names((*engines.Kind).IsLaunched))) }

// number returns the argument key as a whole number, or def if it is absent.
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

// refuseUnknownArgs returns an error for an argument that is not in the list: a setting without effect
// would mislead its user.
func (l Launch) refuseUnknownArgs(known ...string) error {
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
