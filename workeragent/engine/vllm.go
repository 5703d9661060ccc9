package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
)

// vllm runs the vLLM that is installed in the interpreter's environment. Every argument becomes an option
// of its command line, apart from those that the agent sets.
func vllm(l Launch, port int, c *Command) error {
	spelled := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(l.Args)) {
		if err := l.checkOption(key); err != nil {
			return err
		}
		name := optionName(key)
		if other, twice := spelled[name]; twice {
			return fmt.Errorf("args.%s and args.%s of %s are the same option", other, key, l.Name)
		}
		spelled[name] = key
	}
	ranks, err := l.ranks()
	if err != nil {
		return err
	}

	c.Worker.Ranks = ranks
	c.Worker.KVEvents, c.Worker.KVReplay = c.at.endpoints(port)
	events := toJSON(map[string]any{
		"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv-events",
		"endpoint": c.Worker.KVEvents, "replay_endpoint": c.Worker.KVReplay,
	})

	c.Path = l.Python
	c.Args = append([]string{
		"-m", "vllm.entrypoints.openai.api_server", "--model", l.ModelPath, "--served-model-name", l.Model,
	}, l.Aliases...)
	c.Args = append(c.Args, "--host", c.at.Host, "--port", strconv.Itoa(port), "--block-size", strconv.Itoa(l.BlockSize),
		"--enable-prefix-caching", "--enable-prompt-tokens-details", "--kv-events-config", events)
	for _, key := range slices.Sorted(maps.Keys(l.Args)) {
		c.Args = append(c.Args, "--"+optionName(key))
		if v := l.Args[key]; v != "" && v != "true" {
			c.Args = append(c.Args, v)
		}
	}

	c.Env = []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"}
	return nil
}

// dataParallel is the option for the number of ranks.
const dataParallel = "data-parallel-size"

// ownOptions lists the options that must not be in args, with what to use instead. A later option of a
// command line replaces an earlier one, so these would change what the agent publishes about the worker.
var ownOptions = map[string]string{
	"host":                      "stator agent --advertise-address sets it",
	"port":                      "stator agent --engine-ports sets it",
	"uds":                       "routers reach engines by IP and port",
	"model":                     "use models[].path",
	"served-model-name":         "use models[].name and models[].aliases",
	"block-size":                "use models[].blockSize",
	"kv-events-config":          "the agent sets it, to read the engine's KV events",
	"enable-prefix-caching":     "the agent sets it",
	"no-enable-prefix-caching":  "the router needs the engine's prefix cache",
	"config":                    "write the options of that file into args",
	"headless":                  "an agent starts whole engines",
	"data-parallel-rank":        "use data-parallel-size: an agent starts all ranks of an engine on its host",
	"data-parallel-start-rank":  "use data-parallel-size: an agent starts all ranks of an engine on its host",
	"data-parallel-size-local":  "use data-parallel-size: an agent starts all ranks of an engine on its host",
	"data-parallel-address":     "use data-parallel-size: an agent starts all ranks of an engine on its host",
	"data-parallel-hybrid-lb":   "the router chooses the rank",
	"data-parallel-external-lb": "the router chooses the rank",
}

// optionName returns an option as vLLM's help spells it.
func optionName(key string) string {
	return strings.ReplaceAll(strings.TrimPrefix(key, "--"), "_", "-")
}

// checkOption refuses an option that the agent sets itself. vLLM also accepts the beginning of an option's
// name, and sets one value of an option by NAME.KEY.
func (l Launch) checkOption(key string) error {
	name := optionName(key)
	beginning, _, _ := strings.Cut(name, ".")
	if beginning == "" || strings.ContainsAny(name, "= \t\n") || strings.HasPrefix(name, "-") {
		return fmt.Errorf("args.%s of %s is not the name of an option: write it as in max-model-len: 8192", key, l.Name)
	}
	if beginning == dataParallel {
		return nil
	}

	for _, own := range slices.Sorted(maps.Keys(ownOptions)) {
		if strings.HasPrefix(own, beginning) {
			return fmt.Errorf("args.%s of %s: %s", key, l.Name, ownOptions[own])
		}
	}
	if strings.HasPrefix(l.Args[key], "--") {
		return fmt.Errorf("args.%s of %s is %q, which is another option: give each option a key", key, l.Name, l.Args[key])
	}
	return nil
}

// ranks returns the number of data-parallel ranks that the options ask for.
func (l Launch) ranks() (int, error) {
	for key, text := range l.Args {
		if optionName(key) != dataParallel {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > fleet.MaxRanks {
			return 0, fmt.Errorf("args.%s of %s is %q: it must lie between 1 and %d", key, l.Name, text, fleet.MaxRanks)
		}
		return n, nil
	}
	return 1, nil
}
