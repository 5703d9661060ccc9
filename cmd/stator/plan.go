package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/advise"
	"github.com/stator-project/stator/internal/advise/dynamograph"
	"github.com/stator-project/stator/internal/cli"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/propose"
)

const planAbout = `Proposes a fleet for a model on some GPUs: engines that do both, or separate ones for prompts and answers,
the size of each, their number and their options. Without --rate it is the fleet that serves the most
requests within the latency targets, and with --rate the one that needs the fewest GPUs.

The speed of engines comes from the profile that --profile names, else from the data sheet of the GPU and the
model's config.json, whose weights need not be there. The column IF SLOWER has the rate that the fleet serves if engines are slower
by as much as that estimate may be off. The proposal is then played in the simulator, with the arrivals of --trace or with random
ones. --out writes a configuration file for "stator up". --output prints the objects of Kubernetes that run the engines.
--from proposes nothing: it prints the fleet that a DynamoGraphDeployment of NVIDIA Dynamo describes, with a sentence for
each field that is not taken over.

  stator plan --model-dir /models/llama --gpus 8 --gpu-kind H200 --isl 3000 --osl 300 --ttft 500ms --itl 10ms --out stator.yaml`

func runPlan(ctx context.Context, env environment, args []string) error {
	f := cli.New(env.out, env.err, "plan", planAbout)
	p := addPlanFlags(f)
	if err := f.Read(args); err != nil {
		return err
	}
	p.CachedGiven = p.Cached > 0
	p.IsTraced = p.Trace != ""
	if err := p.Validate(); err != nil {
		return f.UsageError("%v", err)
	}
	if p.From != "" {
		return convertGraph(env, p)
	}

	bar := cli.NewProgressBar(env.err)
	p.Show = bar.Show
	a, err := p.Answer(ctx)
	bar.Clear()
	if err != nil {
		return err
	}
	if (p.Out != "" || p.Output != "") && !a.Best().Met {
		return fmt.Errorf("%s No configuration is written", a.Why())
	}
	if p.Out != "" {
		if err := writeConfig(p.Out, a.Deployment.Config(a.Question, a.Best())); err != nil {
			return err
		}
	}
	if p.Output != "" {
		manifests, err := a.Manifests(p)
		if err == nil {
			_, err = env.out.Write(manifests)
		}
		return err
	}
	if p.AsJSON {
		return printJSON(env.out, a.Summary())
	}
	a.Print(env.out, p)
	return nil
}

// writeConfig writes a configuration to a file.
func writeConfig(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // others may read it
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// convertGraph prints a fleet of Dynamo as a configuration, or as manifests.
func convertGraph(env environment, p *advise.Options) error {
	data, err := readInput(env.in, p.From, dynamograph.MaxBytes)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	c, err := p.Convert(data)
	if err != nil {
		return fmt.Errorf("%s: %w", p.From, err)
	}

	if p.Out != "" {
		if err := writeConfig(p.Out, c.Config); err != nil {
			return err
		}
	}
	text := c.Config
	if p.Output != "" {
		text = c.Manifests
	}
	_, err = env.out.Write(text)
	return err
}

// addPlanFlags adds the flags of stator plan.
func addPlanFlags(f *cli.Flags) *advise.Options {
	p := &advise.Options{}
	var gpus []string
	for _, g := range perfmodel.GPUs {
		gpus = append(gpus, g.Name)
	}
	f.Renamed("model", modelDir)
	f.Group("Model and GPUs", func() {
		f.StringVar(&p.Model, modelDir, "", "model `folder` with config.json, or hf:ORG/MODEL; or any name, with --profile or --engine sim")
		f.IntVar(&p.GPUs, "gpus", 1, "number of GPUs")
		f.StringVar(&p.GPUKind, "gpu-kind", "", strings.Join(gpus, ", "))
		f.StringVar(&p.Engine, "engine", engines.VLLM.Name, strings.Join(propose.Engines(), ", "))
		f.StringVar(&p.DType, "dtype", "auto",
			"type of the weights: auto is that of the model's files; "+strings.Join(advise.DTypes(), ", "))
		f.StringVar(&p.Profile, "profile", "", "`folder` with the measurements of Dynamo's profiler for this model and GPU")
		f.IntVar(&p.ProfileGPUs, "profile-gpus", 1, "GPUs of the engine that was measured")
	})

	f.Group("Targets; 0 is none", func() {
		f.DurationVar(&p.Targets.TTFT, "ttft", 500*time.Millisecond, "longest time to the first token")
		f.DurationVar(&p.Targets.ITL, "itl", 50*time.Millisecond, "longest mean time between the tokens of a request")
		f.DurationVar(&p.Targets.E2E, "e2e", 0, "longest time of a whole request")
		f.Float64Var(&p.Targets.Quantile, "quantile", 0.9, "share of requests that are to be within the targets")
	})

	f.Group("Requests", func() {
		f.Float64Var(&p.ISL, "isl", 3000, "mean tokens of a prompt")
		f.Float64Var(&p.OSL, "osl", 300, "mean tokens of an answer")
		f.Float64Var(&p.Spread, "spread", 0, "how far lengths may be from their mean, as a share of it")
		f.Float64Var(&p.Cached, "cached", 0, "share of prompts that is found in caches")
		f.Float64Var(&p.Rate, "rate", 0, "requests per second (default: as many as possible)")
		f.StringVar(&p.Trace, "trace", "", "trace `file` from which the lengths, the rate and the arrivals come: see `stator replay`")
		f.IntVar(&p.Rows, "rows", 100_000, "read only the first `n` rows of the trace")
	})

	f.StringVar(&p.From, "from", "", "print the fleet of the DynamoGraphDeployment in this `file` instead; - is the standard input")
	f.StringVar(&p.Out, "out", "", "write a configuration to this `file`")
	f.BoolVar(&p.Simulate, "simulate", true, "play the proposal in the simulator")
	f.BoolVar(&p.AsJSON, "json", false, "print JSON")
	f.StringVar(&p.Output, "output", "", "print manifests for Kubernetes of this `kind` instead: "+strings.Join(advise.Outputs(), ", "))
	f.StringVar(&p.Image, "image", "", "container `image` of the engines, for --output (default: with --from, the images of that file)")
	return p
}
