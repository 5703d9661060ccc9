package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// The functions of this file are for engines of which every argument of a launch becomes an option of the command line.

// byOptions runs the engine that is installed in the interpreter's environment. Every argument becomes an option of its command line,
// apart from options that the agent sets, and from the argument that becomes a file.
func byOptions(l Launch, port int, c *Command) error {
	kind := engines.Of(l.Kind)
	own := &kind.Launch
	spell := engines.OptionName
	if own.Underscores {
		spell = underscored
	}
	if err := l.checkOptions(own.Refused, spell); err != nil {
		return err
	}
	ranks, err := l.ranks(own.Ranks...)
	if err != nil {
		return err
	}
	c.Worker.Ranks = ranks
	l.publishEvents(kind, port, c)
	var inFiles []string
	if own.OptionsInFile {
		text, err := l.trtllmOptions(c)
		if err != nil {
			return err
		}
		c.options = &optionsFile{path: c.at.socket(port, "options.yaml"), text: text}
		inFiles = append(inFiles, inFile)
	}

	c.Path = l.Python
	c.Args = l.fill(own.Args, port, c)
	if l.Role != fleet.Aggregated {
		c.Args = append(c.Args, l.fill(own.RoleArgs, port, c)...)
	}
	if l.hasBootstrap(kind) {
		c.Worker.Transfer = fleet.TransferBootstrap
		c.Worker.TransferAt = c.at.address(c.transferPort)
	}
	c.Args = append(c.Args, l.optionArgs(spell, inFiles...)...)
	c.Env = slices.Clone(own.Env)
	if !kind.Connectors {
		return nil
	}
	if err := l.vllmStore(c); err != nil {
		return err
	}
	return l.vllmTransfer(c)
}

// hasBootstrap reports whether other engines meet at a bootstrap server of the engine, for which the agent chooses the port.
func (l Launch) hasBootstrap(kind *engines.Kind) bool {
	return kind.Transfer == fleet.TransferBootstrap && l.Role != fleet.Aggregated
}

// publishEvents sets the endpoints of the engine's KV events.
func (l Launch) publishEvents(kind *engines.Kind, port int, c *Command) {
	switch kind.Dialect {
	case engines.NoEvents:
	case engines.TRTLLMEvents:
		c.Worker.KVEvents = "http://" + c.Worker.Address + "/kv_cache_events"
	default:
		c.Worker.KVEvents, c.Worker.KVReplay = c.at.endpoints(port)
	}
}

// fill returns the arguments of a kind with the values of this launch in them, see [engines.Launch].
func (l Launch) fill(args []string, port int, c *Command) (filled []string) {
	file := ""
	if c.options != nil {
		file = c.options.path
	}
	values := strings.NewReplacer("{path}", l.ModelPath, "{model}", l.Model, "{host}", c.at.Host, "{port}", strconv.Itoa(port),
		"{blockSize}", strconv.Itoa(l.BlockSize), `"{endpoint}"`, toJSON(c.Worker.KVEvents), `"{replay}"`, toJSON(c.Worker.KVReplay),
		"{endpoint}", c.Worker.KVEvents, "{replay}", c.Worker.KVReplay, "{file}", file, "{role}", l.Role.String(),
		"{transferPort}", strconv.Itoa(c.transferPort))
	for _, a := range args {
		if a == "{aliases}" {
			filled = append(filled, l.Aliases...)
			continue
		}
		filled = append(filled, values.Replace(a))
	}
	return filled
}

// underscored returns an option as the help of trtllm-serve spells it.
func underscored(key string) string {
	return strings.ReplaceAll(strings.TrimPrefix(key, "--"), "-", "_")
}

// dataParallel is the option for the number of ranks. It is a beginning of other options, too.
const dataParallel = "data-parallel-size"

// checkOptions refuses arguments that are not the name of an option, that are there twice, or that the agent sets itself. own has
// the options that the agent sets, with a replacement for each, and spell returns an option as the engine's help spells it.
func (l Launch) checkOptions(own map[string]string, spell func(key string) string) error {
	spelled := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(l.Args)) {
		if err := l.checkOption(key, own, spell); err != nil {
			return err
		}
		name := spell(key)
		if other, twice := spelled[name]; twice {
			return fmt.Errorf("args.%s and args.%s of %s are the same option", other, key, l.Name)
		}
		spelled[name] = key
	}
	return nil
}

// checkOption refuses an option that the agent sets itself. Python's argparse also accepts the beginning of an option's
// name, and vLLM sets one value of an option by NAME.KEY.
func (l Launch) checkOption(key string, own map[string]string, spell func(key string) string) error {
	name := spell(key)
	beginning, _, _ := strings.Cut(name, ".")
	if beginning == "" || strings.ContainsAny(name, "= \t\n") || strings.HasPrefix(name, "-") {
		return fmt.Errorf("args.%s of %s is not the name of an option: write it as in max-model-len: 8192", key, l.Name)
	}
	if beginning == dataParallel {
		return nil
	}

	for _, option := range slices.Sorted(maps.Keys(own)) {
		if strings.HasPrefix(option, beginning) {
			return fmt.Errorf("args.%s of %s: %s", key, l.Name, own[option])
		}
	}
	if strings.HasPrefix(l.Args[key], "--") {
		return fmt.Errorf("args.%s of %s is %q, which is another option: give each option a key", key, l.Name, l.Args[key])
	}
	return nil
}

// optionArgs returns the arguments as options of a command line, sorted, without the options of the list. true is an option
// without a value.
func (l Launch) optionArgs(spell func(key string) string, without ...string) (args []string) {
	for _, key := range slices.Sorted(maps.Keys(l.Args)) {
		if slices.Contains(without, key) {
			continue
		}
		args = append(args, "--"+spell(key))
		if v := l.Args[key]; v != "" && v != "true" {
			args = append(args, v)
		}
	}
	return args
}

// ranks returns the number of data-parallel ranks that one of the options asks for.
func (l Launch) ranks(options ...string) (int, error) {
	ranks, by := 1, ""
	for _, key := range slices.Sorted(maps.Keys(l.Args)) {
		if !slices.Contains(options, engines.OptionName(key)) {
			continue
		}
		n, err := strconv.Atoi(l.Args[key])
		if err != nil || n < 1 || n > fleet.MaxRanks {
			return 0, fmt.Errorf("args.%s of %s is %q: it must lie between 1 and %d", key, l.Name, l.Args[key], fleet.MaxRanks)
		}
		if ranks > 1 && n > 1 {
			return 0, fmt.Errorf("args.%s and args.%s of %s both ask for ranks: use one of them", by, key, l.Name)
		}
		if n > 1 {
			ranks, by = n, key
		}
	}
	return ranks, nil
}
