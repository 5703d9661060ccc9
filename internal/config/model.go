package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/route/pick"
	"github.com/stator-project/stator/internal/route/serving"
)

// Model is a model: its names, the files that describe it, and its workers.
type Model struct {
	// Name is the value of "model" in requests.
	Name string `yaml:"name" default:"required"`
	// Path is a Hugging Face folder (tokenizer.json, chat template, config.json) or one .gguf file. A
	// relative path starts at the configuration file's folder. "hf:ORG/MODEL" or "hf:ORG/MODEL@REVISION" downloads
	// these files from a Hugging Face hub, some MB and never weights: see prompt.md. "builtin:sim" is a small vocabulary that is
	// part of Stator. Without a path the model's prompts are not read, and its requests go by session or by load: for
	// models whose vocabulary Stator refuses, such as embedding models and rerankers of BERT's kind. Launch needs it.
	Path string `yaml:"path" default:"prompts are not read"`
	// Aliases are further names for the same model. Engines need not know them: a worker gets the model's own name, where the router reads
	// bodies, and its answers have that name. While no router decides, only engines that were launched with an alias serve it.
	Aliases []string `yaml:"aliases"`
	// Adapters are LoRA adapters of the model's workers. Adapters that engines list in /v1/models, as vLLM does, need
	// no entry. Each has its own cache.
	Adapters []Adapter `yaml:"adapters"`
	// ContextLength is the most tokens of a prompt and its answer, as the engines' max_model_len. A longer prompt
	// is refused. 0 is the largest max_model_len that the engines report, or the length in the model's files if
	// none of them does.
	ContextLength int `yaml:"contextLength"`
	// BlockSize is the number of tokens in a KV block, 1 to 4096. "auto" is the size that the engines report by their events or metrics.
	// Each worker may have its own, up to four for a model, if they have a common divisor of at least 4. The size of an engine's events
	// counts in any case; the log and the doctor name workers whose size is not the number here. Engines that agents start get 16 with
	// "auto".
	BlockSize BlockSize `yaml:"blockSize" default:"auto"`
	// Profile is a folder with the measurements of Dynamo's profiler for these workers (prefill_raw_data and
	// decode_raw_data, .npz or .json). They are the first estimates of how long prompts and decode steps
	// last.
	Profile string `yaml:"profile" file:"relative" default:"a mid-sized model on one data-centre GPU" reload:"routers"`
	// Router configures how a worker is chosen.
	Router Router `yaml:"router"`
	// Migration has streams of answers continued at another worker when their own fails. See docs/migration.md.
	Migration Migration `yaml:"migration"`
	// Targets are the latencies that the planner keeps for this model.
	Targets Targets `yaml:"targets"`
	// IdleAfter is the time without a request after which plans end all engines that agents or Kubernetes run for this model. The next
	// requests wait for an engine that starts for them: see router.queue.hold and docs/planning.md. It needs a planner.connector. 0s
	// keeps min engines.
	IdleAfter Duration `yaml:"idleAfter"`
	// Canary has each router ask an engine for a completion of one token when it has done nothing for so long, at least 1s, and when a
	// request fails there or waits for longer than expected. It finds engines that answer at their health path and compute nothing, which
	// else only a client finds. An engine that does not answer it within 5 s gets no requests until it does. 0s asks for none.
	Canary Duration `yaml:"canary" reload:"routers"`
	// KV is the store of KV blocks that the engines of a node share beside their own caches. Engine sim uses it, and vLLM on processors.
	KV KV `yaml:"kv" reload:"agents"`
	// Launch lists the engines that an agent starts and keeps alive. Whole launches come and go without a restart.
	Launch []Launch `yaml:"launch" reload:"agents" entries:"live"`
	// Workers lists engines that are started elsewhere.
	Workers []Worker `yaml:"workers"`
	// Emitters are caches outside engines whose KV events routers read, such as LMCache's servers: see docs/emitters.md.
	Emitters []Emitter `yaml:"emitters" reload:"routers"`
}

// Adapter is a LoRA adapter of a model.
type Adapter struct {
	// Name is the value of "model" in requests, and the engines' name of the adapter.
	Name string `yaml:"name" default:"required"`
	// EngineName is the name of the adapter in the engines' KV events, if it differs.
	EngineName string `yaml:"engineName" default:"name"`
	// Path is the place at which engines find the adapter: a folder, or a repository on Hugging Face, as the engine sees
	// it. With it, a router has an engine of kind vllm or sim load the adapter when a request comes and no ready worker
	// has it. vLLM needs the option enable-lora, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment.
	Path string `yaml:"path" default:"the adapter is not loaded"`
}

// Names returns the names that clients may use for the model itself, the main one first.
func (m *Model) Names() []string { return append([]string{m.Name}, m.Aliases...) }

// Migration configures the streams of chats and completions whose worker fails.
type Migration struct {
	// Limit is how often a stream is continued, 0 to 100. 0 sends streams directly to workers, and a stream ends with its worker. Otherwise
	// streams of chats and completions pass through the router, which continues those with temperature 0; a stream that it cannot
	// continue ends with an error event. Engines must return token ids, as vllm and sim do. Routers and the control plane need
	// --relay-address; stator up has it.
	Limit int `yaml:"limit"`
	// Sampled continues streams with other temperatures, too. Their continuation has other tokens than the failed worker would have made.
	Sampled bool `yaml:"sampled"`
}

func (v *validator) model(m *Model, path string, names, workers, addresses map[string]string) {
	v.is(m.Name != "", path+".name", "is required: it is what clients put into \"model\"")
	v.is(len(m.Name) <= maxModelName, path+".name", "must have at most %d characters", maxModelName)
	v.is(m.Path != "" || !m.isLaunched(), path+".path",
		"is required with launch: a folder with tokenizer.json, a .gguf file, hf:ORG/MODEL, or builtin:sim")
	v.is(m.Canary == 0 || m.Canary >= minCanary, path+".canary", "must be 0s or at least %s", minCanary)
	v.is(m.BlockSize >= AutoBlockSize && m.BlockSize <= maxBlockSize, path+".blockSize",
		"must lie between 1 and %d, or be \"auto\"", maxBlockSize)
	v.targets(&m.Targets, path+".targets")
	v.oneOf(m.Router.Policy, pick.Names(), path+".router.policy")
	v.is(m.Router.DecodePolicy == "" || slices.Contains(pick.Names(), m.Router.DecodePolicy), path+".router.decodePolicy",
		"is %q: use one of %s", m.Router.DecodePolicy, strings.Join(pick.Names(), ", "))
	v.oneOf(m.Router.Prefill, serving.Prefills(), path+".router.prefill")
	v.is(m.Router.Temperature >= 0, path+".router.temperature", "must not be negative")
	_, err := m.Router.CostFunction()
	v.is(err == nil, path+".router.cost and weights", "%v", err)

	v.busy(&m.Router.Busy, path+".router.busy")
	v.queue(&m.Router, path+".router.queue")
	for i, alias := range m.Aliases {
		v.is(alias != "" && len(alias) <= maxModelName, fmt.Sprintf("%s.aliases[%d]", path, i),
			"must have 1 to %d characters", maxModelName)
	}
	for _, n := range m.Names() {
		v.is(names[n] == "", path, "the name %q is taken by %s", n, names[n])
		names[n] = path
	}
	v.is(m.ContextLength >= 0 && m.ContextLength <= maxContext, path+".contextLength", "must lie between 0 and %d", maxContext)
	v.adapters(m.Adapters, path+".adapters", names)
	v.is(m.Migration.Limit >= 0 && m.Migration.Limit <= maxMigrations, path+".migration.limit", "must lie between 0 and %d", maxMigrations)
	v.is(m.Migration.Limit != 0 || !m.Migration.Sampled, path+".migration.sampled", "has no effect: set limit, such as 3")
	v.roles(m, path)
	v.kv(m, path+".kv")
	for i := range m.Launch {
		v.launch(&m.Launch[i], fmt.Sprintf("%s.launch[%d]", path, i))
	}
	for i := range m.Workers {
		at := fmt.Sprintf("%s.workers[%d]", path, i)
		v.worker(&m.Workers[i], at)
		v.is(m.Path != "" || m.Workers[i].KVEvents == "", at+".kvEvents",
			"has no effect until %s.path is set: prompts that are not read are found in no cache", path)
		v.is(workers[m.Workers[i].Name] == "", at+".name", "is taken by %s", workers[m.Workers[i].Name])
		workers[m.Workers[i].Name] = at
		address := canonical(m.Workers[i].Address)
		v.is(addresses[address] == "", at+".address", "is taken by %s", addresses[address])
		addresses[address] = at
	}
}

// canonical returns an address in the one spelling that all spellings of it share.
func canonical(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return strings.ToLower(address) // a name
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String()
}

// adapters checks that each adapter has a name that no model has, and a name of its own in the engines' events.
func (v *validator) adapters(list []Adapter, path string, names map[string]string) {
	inEvents := map[string]bool{}
	for i := range list {
		a, at := &list[i], fmt.Sprintf("%s[%d]", path, i)
		v.is(a.Name != "", at+".name", "is required: it is what clients put into \"model\"")
		v.is(len(a.Name) <= maxModelName && len(a.EngineName) <= maxModelName, at, "must have names of at most %d characters", maxModelName)
		v.is(len(a.Path) <= maxAdapterPath, at+".path", "must have at most %d characters", maxAdapterPath)
		v.is(a.Path == "" || fleet.ValidAdapter(a.Name), at+".name", "must be of UTF-8 without control characters")
		v.is(names[a.Name] == "", at, "the name %q is taken by %s", a.Name, names[a.Name])
		names[a.Name] = at
		v.is(!inEvents[a.EngineName], at+".engineName", "is that of another adapter of the model")
		inEvents[a.EngineName] = true
	}
}

// roles returns how many launches and workers of the model have each role.
func (m *Model) roles() map[string]int {
	count := map[string]int{}
	for i := range m.Launch {
		count[m.Launch[i].Role]++
	}
	for i := range m.Workers {
		count[m.Workers[i].Role]++
	}
	return count
}

// isSplit reports whether requests of the model are split between workers that prefill and workers that decode.
func (m *Model) isSplit() bool {
	count := m.roles()
	return count[fleet.Prefill.String()]+count[fleet.Decode.String()] > 0
}

// roles checks that the workers of a model have roles that serve whole requests together.
func (v *validator) roles(m *Model, path string) {
	if !m.isSplit() {
		return
	}
	count := m.roles()
	v.is(count[fleet.Prefill.String()] > 0 && count[fleet.Decode.String()] > 0, path,
		"must have both prefill and decode workers: one of them alone serves no whole request")
	v.is(count[fleet.Aggregated.String()] == 0, path,
		"has aggregated workers beside prefill and decode workers, and they would get no requests: give them another role or model")
	kinds := m.transfers()
	v.is(len(kinds) <= 1, path, "has workers with different transfers of KV caches, %s: those of a model must have the same",
		strings.Join(kinds, " and "))
	v.is(m.Path != "" || len(m.Launch) > 0, path+".path", "is required with prefill and decode workers, to know which prompts they hold")
}
