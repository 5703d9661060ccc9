package engine

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// simulated runs the simulated engine, which is part of this program.
func simulated(l Launch, port int, c *Command) error {
	if err := l.refuseUnknownArgs("answerTokens", "blocks", "engineSpeedup", "seed", "maxNumSeqs", "maxNumBatchedTokens", "startup",
		"streamInterval", "thinkTokens", "tlsCert", "tlsClientCA", "tlsKey", "tokenScale", "transfer"); err != nil {
		return err
	}
	blocks, err := l.number("blocks", 16384)
	if err != nil {
		return err
	}

	c.Worker.Blocks = blocks
	c.Worker.KVEvents, c.Worker.KVReplay = c.at.endpoints(port)
	c.Path = l.Self
	c.Args = []string{
		"sim", "--name", l.Name, "--listen-address", c.Worker.Address, "--model", l.Model, "--model-dir", l.ModelPath,
		"--block-size", strconv.Itoa(l.BlockSize), "--blocks", strconv.Itoa(blocks),
		"--kv-events", c.Worker.KVEvents, "--kv-replay", c.Worker.KVReplay, "--log-level", "warn",
	}

	if l.KVStore {
		c.Args = append(c.Args, "--kv-store", c.at.KVStore(l.Model))
	}
	for _, a := range l.Aliases {
		c.Args = append(c.Args, "--alias", a)
	}
	for _, a := range l.Adapters {
		c.Args = append(c.Args, "--adapter", a)
	}
	if l.LoadAdapters {
		c.Args = append(c.Args, "--load-adapters")
	}
	if err := l.simulatedTransfer(port, c); err != nil {
		return err
	}
	flags := map[string]string{
		"answerTokens": "--answer-tokens", "engineSpeedup": "--engine-speedup", "seed": "--seed", "maxNumSeqs": "--max-num-seqs",
		"maxNumBatchedTokens": "--max-num-batched-tokens",
		"startup":             "--startup", "streamInterval": "--stream-interval", "thinkTokens": "--think-tokens",
		"tokenScale": "--token-scale",
		"tlsCert":    "--tls-cert", "tlsClientCA": "--tls-client-ca", "tlsKey": "--tls-key",
	}
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		if v, ok := l.Args[key]; ok {
			c.Args = append(c.Args, flags[key], v)
		}
	}
	return nil
}

// simulatedTransfer has a simulated engine transfer KV caches, if it has a role, or if its arguments ask for it.
func (l Launch) simulatedTransfer(port int, c *Command) error {
	name, asked := l.Args["transfer"]
	if !asked {
		name = fleet.TransferNixl.String()
		if l.Role == fleet.Aggregated {
			return nil
		}
	}
	kind, err := fleet.ParseTransfer(name)
	switch {
	case err != nil || kind == fleet.NoTransfer:
		return fmt.Errorf("args.transfer of %s is %q: use nixl, p2p, bootstrap or context", l.Name, name)
	case l.Role == fleet.Aggregated && kind != fleet.TransferP2P:
		return fmt.Errorf("args.transfer of %s is %s: engines without a role transfer KV caches by p2p alone", l.Name, name)
	}

	// Other engines get the address of some kinds from the router, so it must be known before the engine listens.
	at := net.JoinHostPort(c.at.Host, "0")
	if kind.HasAddress() {
		at = c.at.address(transferPort(port))
		c.Worker.TransferAt = at
	}
	c.Worker.Transfer = kind
	c.Args = append(c.Args, "--kv-transfer", at, "--kv-transfer-kind", name)
	if kind == fleet.TransferBootstrap {
		c.Args = append(c.Args, "--kv-transfer-role", l.Role.String())
	}
	return nil
}

// transferDistance is the distance of an engine's side-channel port from the port of its HTTP server: the whole default range of
// ports. So no other engine has it, and an agent that adopts the engine finds it again. An engine whose side channel has no free
// port ends, and is started with another port.
const transferDistance = 10000

// transferPort returns the port of the side channel of the engine that has that port.
func transferPort(port int) int {
	if port-transferDistance < minPort {
		return port + transferDistance
	}
	return port - transferDistance
}

// llamaScript runs the HTTP server of llama.cpp, from the xllamacpp wheel, for a GGUF file.
//
//go:embed llamacpp.py
var llamaScript string

// llamaCPP runs a llama.cpp server, which publishes no KV events.
func llamaCPP(l Launch, port int, c *Command) error {
	if err := l.refuseUnknownArgs("ctx", "slots", "threads"); err != nil {
		return err
	}
	settings := map[string]any{"model": l.ModelPath, "alias": l.Model, "host": c.at.Host, "port": port}
	for key, def := range map[string]int{"ctx": 8192, "slots": 4, "threads": 0} {
		n, err := l.number(key, def)
		if err != nil {
			return err
		}
		settings[key] = n
	}

	c.Worker.Blocks = settings["ctx"].(int) / max(1, l.BlockSize) // all slots share the context
	text := toJSON(settings)

	c.Path, c.Args = l.Python, []string{"-c", llamaScript, text}
	return nil
}

// anyCommand runs a command of the user's. It replaces {host}, {port}, {name} and {model} in it.
func anyCommand(l Launch, port int, c *Command) error {
	if err := l.refuseUnknownArgs(); err != nil {
		return err
	}
	if len(l.Command) == 0 {
		return fmt.Errorf("launch %s: engine exec needs a command", l.Name)
	}

	fill := strings.NewReplacer("{host}", c.at.Host, "{port}", strconv.Itoa(port), "{name}", l.Name, "{model}", l.Model)
	c.Path = fill.Replace(l.Command[0])

	for _, a := range l.Command[1:] {
		c.Args = append(c.Args, fill.Replace(a))
	}
	return nil
}

// toJSON returns a text, or settings of numbers, booleans and texts, as JSON, which cannot fail.
func toJSON(settings any) string {
	text, err := json.Marshal(settings)
	if err != nil {
		panic(err) // a type that JSON does not have, in this file
	}
	return string(text)
}
