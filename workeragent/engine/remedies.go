package engine

import (
	"regexp"
	"strings"

	"github.com/stator-project/stator/internal/engines"
)

// remedy is advice on what to change when an engine prints a line.
type remedy struct {
	line *regexp.Regexp
	text string
}

// remedies are for common mistakes, and are tried in this order. testdata/logs has lines of each.
var remedies = []remedy{
	{regexp.MustCompile(`No module named '?(` + strings.Join(modules(), "|") + ")"),
		"the engine is not installed for this interpreter: install it there, or name another with launch[].python"},
	{regexp.MustCompile(`No module named '?stator_connector`),
		"the KV store of the node needs the package stator-connector: make wheel, and install the wheel for this interpreter with pip"},
	{regexp.MustCompile(`exec: "[^"]*python[^"]*": executable file not found|fork/exec [^ ]*python[^ ]*: no such file`),
		"there is no such interpreter: set launch[].python to that of the engine's virtual environment"},
	{regexp.MustCompile(`error: unrecognized arguments:|error: argument -|error: ambiguous option`),
		"correct launch[].args: this version of the engine has no such option, or not with that value"},
	{regexp.MustCompile(`NVIDIA driver on your system is too old|CUDA driver version is insufficient`),
		"update NVIDIA's driver, or install an engine that is built for the CUDA version of this driver"},
	{regexp.MustCompile(`No CUDA GPUs are available|Failed to infer device type|no CUDA-capable device is detected`),
		"the engine sees no GPU: check launch[].gpus, the driver (nvidia-smi), and that the container was given devices"},
	{regexp.MustCompile(`Free memory on device .* is less than desired GPU memory utilization`),
		"another process uses memory of this GPU: stop it, choose other devices with launch[].gpus, or lower args.gpu-memory-utilization"},
	{regexp.MustCompile(`No available memory for the cache blocks`),
		"the weights leave no memory for the KV cache: raise args.gpu-memory-utilization, or use more GPUs by args.tensor-parallel-size"},
	{regexp.MustCompile(`max seq len .* KV cache is needed, which is larger than the available`),
		"a request of the greatest length does not fit into the KV cache: lower args.max-model-len, or raise args.gpu-memory-utilization"},
	{regexp.MustCompile(`CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory`),
		"the GPU's memory is too small: lower args.max-num-seqs or args.max-model-len, use more GPUs by args.tensor-parallel-size, " +
			"and check that no other process uses this GPU"},
	{regexp.MustCompile(`Cannot access gated repo|access a gated repo|is a gated repository|401 Client Error`),
		"the model needs an accepted licence and a token: download it, and set models[].path to its folder"},
	{regexp.MustCompile(`LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to 'https://huggingface\.co'|Repo id must be in the form`),
		"the model is not on this host, and engines download nothing: set models[].path to its folder, or launch[].env: " +
			`{HF_HUB_OFFLINE: "0"} where the network is allowed`},
	{regexp.MustCompile(`\[Errno 98\]|[Aa]ddress already in use`),
		"another program has the engine's port: the next start takes another one; if it goes on, change --engine-ports"},
}

// modules returns the Python packages that have an engine.
func modules() (all []string) {
	for _, k := range engines.All() {
		if k.RunsInPython() {
			all = append(all, k.Launch.Module)
		}
	}
	return all
}

// RemedyFor returns what to change when an engine has printed the line, or when its start has failed with that error; empty
// if the line shows no common mistake.
func RemedyFor(line string) string {
	for _, r := range remedies {
		if r.line.MatchString(line) {
			return r.text
		}
	}
	return ""
}
