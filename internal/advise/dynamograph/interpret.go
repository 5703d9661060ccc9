package dynamograph

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/fleet"
)

// interpret makes the fleet of the components.
func (r *reader) interpret() {
	for _, c := range r.components {
		switch c.kind {
		case "frontend":
			r.frontend(c)
		case "planner":
			r.planner(c)
		case "epp":
			r.note(c.path, "\"stator extproc\" takes its place: see docs/your-own-envoy.md")
		case "worker", "prefill", "decode":
			r.engine(c)
		default:
			r.note(c.path, "Stator has no component of type %s", quoted(c.kind))
		}
	}

	if len(r.graph.Pools) == 0 {
		r.refuse("spec", "has no component of type worker, prefill or decode")
		return
	}
	if r.graph.Model == "" {
		r.refuse("spec", "names no model: no engine has --model, --model-path or a modelRef")
	}
	planned := slices.ContainsFunc(r.components, func(c *component) bool { return c.kind == "planner" })
	for i := range r.graph.Pools {
		r.graph.Pools[i].Scaled = r.graph.Pools[i].Scaled || planned
	}
	r.roles()
}

// roles completes the roles: workers beside prefill workers decode, and decode workers without them do both.
func (r *reader) roles() {
	prefills := slices.ContainsFunc(r.graph.Pools, func(p Pool) bool { return p.Role == fleet.Prefill })
	var kept []Pool
	for _, p := range r.graph.Pools {
		switch {
		case prefills && p.Role == fleet.Aggregated:
			p.Role = fleet.Decode
		case !prefills:
			p.Role = fleet.Aggregated
		}
		if slices.ContainsFunc(kept, func(k Pool) bool { return k.Role == p.Role }) {
			r.note("component "+quoted(p.Component), "it is left out: a model has one pool of workers for each role, and another "+
				"component is the %s pool", p.Role)
			continue
		}
		if half := engines.Of(r.graph.Engine).Plan.Half; p.Role != fleet.Aggregated && half != "" && p.Args["kv-transfer-config"] == nil {
			_ = yaml.Unmarshal([]byte(half), &p.Args) // a line of ours; Dynamo's workers transfer by NIXL without the option
		}
		kept = append(kept, p)
	}
	r.graph.Pools = kept
}

// policies are the modes of Dynamo's router that Stator has by the same name.
var policies = []string{"kv", "round-robin", "random", "power-of-two", "least-loaded", "direct"}

// frontend takes the routing policy over.
func (r *reader) frontend(c *component) {
	r.note(c.path, "Envoy and \"stator extproc\" take its place, with the keys gateway and router of the configuration")
	if c.replicas != 1 {
		r.note(c.path+".replicas", "set the number of routers and of Envoys where they are deployed")
	}
	const elsewhere = "see \"Flag by flag\" in docs/moving-from-dynamo.md"
	policy := func(mode, path string) {
		if !slices.Contains(policies, mode) {
			r.note(path, "Stator has no policy %s: use one of %s", quoted(mode), strings.Join(policies, ", "))
			return
		}
		r.graph.Policy = mode
	}

	for _, v := range c.env {
		if v.name == "DYN_ROUTER_MODE" {
			policy(v.value, v.path)
		} else {
			r.note(v.path, "the variable %s is not taken over: %s", quoted(v.name), elsewhere)
		}
	}
	_, options, ok := parseCommand(c.command, c.args)
	if !ok {
		r.note(c.commandPath, "the script is not read")
	}
	for _, o := range options {
		if o.name == "router-mode" {
			policy(o.value(), c.option(o.name))
		} else {
			r.note(c.option(o.name), elsewhere)
		}
	}
}

// planner takes the targets over.
func (r *reader) planner(c *component) {
	r.note(c.path, "the planner of the configuration takes its place: set planner.maxGPUs")
	settings := map[string]any{}
	_, options, ok := parseCommand(c.command, c.args)
	if !ok {
		r.note(c.commandPath, "the script is not read")
	}
	for _, o := range options {
		var several map[string]any
		if o.name == "config" && json.Unmarshal([]byte(o.value()), &several) == nil {
			maps.Copy(settings, several)
			continue
		}
		settings[o.name] = o.value()
	}
	for _, v := range c.env {
		r.note(v.path, "the variable %s of the planner is not taken over", quoted(v.name))
	}

	for _, key := range slices.Sorted(maps.Keys(settings)) {
		value, isNumber := settings[key].(float64)
		if s, isText := settings[key].(string); isText {
			v, err := strconv.ParseFloat(s, 64)
			value, isNumber = v, err == nil
		}
		target := time.Duration(value * float64(time.Millisecond))
		isNumber = isNumber && value > 0 && value < math.MaxInt64/float64(time.Hour)
		switch name := strings.TrimSuffix(strings.ReplaceAll(key, "_", "-"), "-ms"); {
		case name == "ttft" && isNumber:
			r.graph.TTFT = target
		case name == "itl" && isNumber:
			r.graph.ITL = target
		default:
			r.note(c.option(key), "see the keys of planner in docs/configuration.md")
		}
	}
}

// modules are the Python modules of Dynamo's workers, with the engine in each.
var modules = map[string]string{"dynamo.vllm": engines.VLLM.Name, "dynamo.sglang": engines.SGLang.Name}

// engine takes the engines of a component over.
func (r *reader) engine(c *component) {
	module, options, ok := parseCommand(c.command, c.args)
	if !ok {
		r.refuse(c.commandPath, "is a script of a shell with more than one command: write the command line of the engine itself")
		return
	}
	kind := modules[module]
	if module == "" {
		kind = modules["dynamo."+r.backend]
	}
	switch {
	case kind == "":
		r.refuse(c.path, "runs %s with the backend %s: engines vllm and sglang can be taken over", quoted(module), quoted(r.backend))
		return
	case r.graph.Engine != "" && r.graph.Engine != kind:
		r.refuse(c.path, "has engines of another kind, %s, than the component before it: a model has engines of one kind", kind)
		return
	}
	r.graph.Engine = kind

	p := Pool{Component: c.name, Replicas: c.replicas, Scaled: c.isScaled, Image: c.image, Args: map[string]any{}, Env: map[string]string{}}
	for _, role := range []string{c.kind, c.sub} {
		p.setRole(role)
	}
	for _, v := range slices.Concat(r.env, c.env) {
		if strings.HasPrefix(v.name, "DYN_") {
			r.note(v.path, "the variable %s is for Dynamo's runtime, and stock engines do not read it", quoted(v.name))
			continue
		}
		p.Env[v.name] = v.value
	}
	for i := range options {
		r.engineOption(c, &p, &options[i])
	}
	if r.graph.Model == "" {
		r.graph.Model = c.model
	}
	r.checkGPUs(c, &p)
	r.graph.Pools = append(r.graph.Pools, p)
}

// setRole sets the role that a text names, if it names one.
func (p *Pool) setRole(text string) {
	if role, err := fleet.ParseRole(text); err == nil && role != fleet.Aggregated {
		p.Role = role
	}
}

// engineOption takes one option of an engine over.
func (r *reader) engineOption(c *component, p *Pool, o *option) {
	path := c.option(o.name)
	same := func(into *string) {
		if *into != "" && *into != o.value() {
			r.refuse(path, "is %s in one component and %s in another: a configuration has one model", quoted(o.value()), quoted(*into))
		}
		*into = o.value()
	}

	launch := &engines.Of(r.graph.Engine).Launch
	switch o.name {
	case "is-prefill-worker":
		p.Role = fleet.Prefill
	case "is-decode-worker":
		p.Role = fleet.Decode
	case "disaggregation-mode":
		p.setRole(o.value())
	case "model", "model-path":
		same(&r.graph.Model)
	case "served-model-name":
		same(&r.graph.Served)
	case "block-size", "page-size":
		n, err := strconv.Atoi(o.value())
		if err != nil || n < 1 || r.graph.BlockSize != 0 && r.graph.BlockSize != n {
			r.refuse(path, "is %s: it must be a number, and the same for all engines of the model", quoted(o.value()))
		}
		r.graph.BlockSize = n
	default:
		switch {
		case isDynamos(o.name):
			r.note(path, "it is an option of Dynamo's worker, which the stock engine does not have")
		case launch.Refused[o.name] != "":
			r.note(path, "%s", launch.Refused[o.name])
		case len(o.values) > 1:
			r.note(path, "it has several values, and options in launch[].args have one")
		default:
			p.Args[o.name] = typed(o.value())
		}
	}
}

// checkGPUs notes GPUs of the pods that the engine's options do not use.
func (r *reader) checkGPUs(c *component, p *Pool) {
	if c.gpus == 0 {
		return
	}
	uses := 1
	for name, shortest := range engines.Of(r.graph.Engine).Launch.GPUs {
		for key, value := range p.Args {
			n, isNumber := value.(int)
			if isNumber && n > 0 && n <= maxGPUs && strings.HasPrefix(name, key) && strings.HasPrefix(key, shortest) {
				uses *= n
			}
		}
	}
	if uses != c.gpus {
		r.note(c.gpusPath, "the options of the engine use %d GPUs, and so many are in the result, not %d", uses, c.gpus)
	}
}

// dynamos are options of Dynamo's workers, besides those that begin with one of dynamosPrefixes.
var dynamos = []string{
	"namespace", "endpoint", "endpoint-types", "kv-state-endpoint", "discovery-backend", "request-plane", "response-plane", "event-plane",
	"fpm-trace", "connector", "exclude-tools-when-tool-choice-none", "custom-jinja-template", "dump-config-to", "output-modalities",
	"health-check-payload", "engine-request-limit", "use-vllm-tokenizer", "use-sglang-tokenizer", "sleep-mode-level", "route-to-encoder",
	"enable-multimodal", "mm-prompt-template", "frontend-decoding", "omni", "stage-configs-path", "model-express-url", "disagg-config",
	"disagg-config-key", "embedding-worker", "image-diffusion-worker", "video-generation-worker", "migration-limit", "store-kv",
	"enable-local-indexer", "durable-kv-events",
}

var dynamosPrefixes = []string{"dyn-", "tcp-tls-", "nats-tls-", "media-output-", "multimodal-", "afd-", "benchmark-"}

// isDynamos reports whether an option is one of Dynamo's worker, and not of the engine in it.
func isDynamos(name string) bool {
	name = strings.TrimPrefix(name, "no-")
	return slices.Contains(dynamos, name) ||
		slices.ContainsFunc(dynamosPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
