package advise

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
)

// Options are a question for a fleet. The flag of `stator plan` that sets a field has the same name.
type Options struct {
	// Model is a folder with config.json, or any name if the speed does not depend on it.
	Model string
	// GPUs is the number of GPUs, of GPUKind, which is one of perfmodel.GPUs.
	GPUs    int
	GPUKind string
	// Engine is one of propose.Engines, and DType the type of the weights: auto is the type in the model's files.
	Engine, DType string
	// Profile is a folder with measurements of an engine with ProfileGPUs GPUs.
	Profile     string
	ProfileGPUs int

	Targets capacity.Targets
	// ISL and OSL are the mean tokens of a prompt and of an answer. Spread is the largest distance of lengths from them, as a share.
	ISL, OSL, Spread float64
	// Cached is the share of prompts that is found in caches. CachedGiven means that it counts although a trace has another.
	Cached      float64
	CachedGiven bool
	// Rate is in requests per second; 0 asks for as many as possible.
	Rate float64
	// Trace is a file from which the lengths, the rate and the arrivals come, if IsTraced, and Rows bounds the rows that are read.
	Trace    string
	IsTraced bool
	Rows     int

	// Out is the file that the configuration is written to, AsJSON prints JSON, and Simulate plays the proposal.
	Out              string
	AsJSON, Simulate bool
	// Output is one of Outputs, for manifests in place of the tables, and empty for the tables. Image is the image of the engines.
	Output, Image string

	// From is a file with a fleet of Dynamo, which [Options.Convert] reads in place of a question. It is read from the standard input if
	// it is "-".
	From string

	// Show is called with the share of a simulation that is done; one simulation follows another. Nil is not called.
	Show func(share float64)

	requests int // of the trace
}

// The bounds of the question.
const (
	maxGPUs   = 4096
	maxTokens = 1 << 22
	maxRows   = 1_000_000
)

// Validate refuses flags for which there is no proposal. It names the flag.
func (p *Options) Validate() error {
	if err := p.validateOutput(); err != nil {
		return err
	}

	t := &p.Targets
	switch {
	case p.From != "" && (p.Model != "" || p.IsTraced || p.AsJSON):
		return fmt.Errorf("--from has the model and the fleet: leave out --model-dir, --trace and --json")
	case p.From != "":
		return nil
	case p.Model == "":
		return fmt.Errorf("name the model's folder with --model-dir")
	case p.GPUs < 1 || p.GPUs > maxGPUs:
		return fmt.Errorf("--gpus is %d: it must lie between 1 and %d", p.GPUs, maxGPUs)
	case p.ProfileGPUs < 1 || p.ProfileGPUs > maxGPUs:
		return fmt.Errorf("--profile-gpus is %d: it must lie between 1 and %d", p.ProfileGPUs, maxGPUs)
	case !slices.Contains(propose.Engines(), p.Engine):
		return fmt.Errorf("--engine is %.40q: use %s", p.Engine, strings.Join(propose.Engines(), ", "))
	case p.Output != "" && p.Image == "":
		return fmt.Errorf("--output needs the container image of the engines: name it with --image")
	case p.DType != "auto" && weightBytes[p.DType] == 0:
		return fmt.Errorf("--dtype is %.40q: use auto, %s", p.DType, strings.Join(DTypes(), ", "))
	case t.TTFT < 0 || t.ITL < 0 || t.E2E < 0 || !(t.Quantile > 0 && t.Quantile < 1):
		return fmt.Errorf("--ttft, --itl and --e2e must not be negative, and --quantile must lie between 0 and 1")
	case !(p.ISL >= 1 && p.ISL <= maxTokens && p.OSL >= 1 && p.OSL <= maxTokens):
		return fmt.Errorf("--isl and --osl must lie between 1 and %d", maxTokens)
	case !(p.Spread >= 0 && p.Spread <= 1 && p.Cached >= 0 && p.Cached <= 1):
		return fmt.Errorf("--spread and --cached must lie between 0 and 1")
	case !(p.Rate >= 0 && p.Rate < 1e6):
		return fmt.Errorf("--rate is %v: it must lie between 0 and 1000000", p.Rate)
	case p.Rows < 1 || p.Rows > maxRows:
		return fmt.Errorf("--rows is %d: it must lie between 1 and %d", p.Rows, maxRows)
	}
	return nil
}

// validateOutput refuses what cannot be printed.
func (p *Options) validateOutput() error {
	switch {
	case p.Output != "" && !slices.Contains(Outputs(), p.Output):
		return fmt.Errorf("--output is %.40q: use %s", p.Output, strings.Join(Outputs(), ", "))
	case p.Output == "" && p.Image != "", p.Output != "" && p.AsJSON:
		return fmt.Errorf("--image is for --output, which prints YAML: leave out --image or --json")
	}
	return nil
}
