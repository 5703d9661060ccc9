package engine

import (
	"strconv"
)

// vllm runs the vLLM that is installed in the interpreter's environment. Every argument becomes an option
// of its command line, apart from options that the agent sets.
func vllm(l Launch, port int, c *Command) error {
	if err := l.checkOptions(ownOptions, optionName); err != nil {
		return err
	}
	ranks, err := l.ranks(dataParallel)
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
	c.Args = append(c.Args, l.optionArgs(optionName)...)

	c.Env = []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"}
	if err := l.vllmStore(c); err != nil {
		return err
	}
	return l.vllmTransfer(c)
}

// dataParallel is the option for the number of ranks.
const dataParallel = "data-parallel-size"

// ownOptions lists the options that must not be in args, with what to use instead. A later option of a
// command line replaces an earlier one, so these would change the facts that the agent publishes about
// the worker.
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
