package engine

import (
	"net"
	"strconv"

	"github.com/stator-project/stator/internal/fleet"
)

// sglang runs the SGLang that is installed in the interpreter's environment. Every argument becomes an option of its command
// line, apart from options that the agent sets. The role of the launch is SGLang's --disaggregation-mode.
func sglang(l Launch, port int, c *Command) error {
	if err := l.checkOptions(sglangOwn, optionName); err != nil {
		return err
	}
	ranks, err := l.ranks("dp-size", "dp", "data-parallel-size", "attn-dp-size", "attention-data-parallel-size")
	if err != nil {
		return err
	}

	c.Worker.Ranks = ranks
	c.Worker.KVEvents, c.Worker.KVReplay = c.at.endpoints(port)
	events := toJSON(map[string]any{
		"publisher": "zmq", "topic": "kv-events", "endpoint": c.Worker.KVEvents, "replay_endpoint": c.Worker.KVReplay,
	})

	c.Path = l.Python
	c.Args = []string{
		"-m", "sglang.launch_server", "--model-path", l.ModelPath, "--served-model-name", l.Model,
		"--host", c.at.Host, "--port", strconv.Itoa(port), "--page-size", strconv.Itoa(l.BlockSize),
		"--enable-metrics", "--enable-cache-report", "--kv-events-config", events,
	}
	if l.Role != fleet.Aggregated {
		bootstrap := strconv.Itoa(c.transferPort)
		c.Args = append(c.Args, "--disaggregation-mode", l.Role.String(), "--disaggregation-bootstrap-port", bootstrap)
		c.Worker.Transfer, c.Worker.TransferAt = fleet.TransferBootstrap, net.JoinHostPort(c.at.Host, bootstrap)
	}
	c.Args = append(c.Args, l.optionArgs(optionName)...)
	c.Env = []string{"HF_HUB_OFFLINE=1"}
	return nil
}

// sglangOwn is ownOptions for SGLang.
var sglangOwn = map[string]string{
	"host":                          "stator agent --advertise-address sets it",
	"port":                          "stator agent --engine-ports sets it",
	"model-path":                    "use models[].path",
	"model":                         "use models[].path",
	"served-model-name":             "use models[].name",
	"page-size":                     "use models[].blockSize",
	"enable-metrics":                "the agent sets it",
	"enable-cache-report":           "the agent sets it",
	"kv-events-config":              "the agent sets it, to read the engine's KV events",
	"disable-radix-cache":           "the router needs the engine's prefix cache",
	"config":                        "write the options of that file into args",
	"grpc-mode":                     "routers reach engines by HTTP",
	"smg-grpc-mode":                 "routers reach engines by HTTP",
	"encoder-only":                  "routers send whole prompts",
	"nnodes":                        "an agent starts whole engines on its host",
	"node-rank":                     "an agent starts whole engines on its host",
	"disaggregation-mode":           "use launch[].role",
	"disaggregation-bootstrap-port": "stator agent --engine-ports sets it",
	"enable-pd-role-switch":         "the role of a worker is launch[].role",
}
