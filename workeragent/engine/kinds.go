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
	if err := l.refuseUnknownArgs("blocks", "engineSpeedup", "seed", "maxNumSeqs", "maxNumBatchedTokens", "startup",
		"tokenScale"); err != nil {
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

	for _, a := range l.Aliases {
		c.Args = append(c.Args, "--alias", a)
	}
	for _, a := range l.Adapters {
		c.Args = append(c.Args, "--adapter", a)
	}
	if l.LoadAdapters {
		c.Args = append(c.Args, "--load-adapters")
	}
	if l.Role != fleet.Aggregated {
		host, _, _ := net.SplitHostPort(c.Worker.Address)
		c.Args = append(c.Args, "--kv-transfer", net.JoinHostPort(host, "0"))
	}
	flags := map[string]string{
		"engineSpeedup": "--engine-speedup", "seed": "--seed", "maxNumSeqs": "--max-num-seqs",
		"maxNumBatchedTokens": "--max-num-batched-tokens",
		"startup":             "--startup", "tokenScale": "--token-scale",
	}
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		if v, ok := l.Args[key]; ok {
			c.Args = append(c.Args, flags[key], v)
		}
	}
	return nil
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

// toJSON returns settings of numbers, booleans and texts as JSON, which cannot fail.
func toJSON(settings map[string]any) string {
	text, err := json.Marshal(settings)
	if err != nil {
		panic(err) // a type that JSON does not have, in this file
	}
	return string(text)
}
