package plansettings

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/stator-project/stator/internal/config"
	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
)

// The doubts of the timing without a profile and without the kind of GPU: of simulated engines, whose timing it is, and of others.
const (
	SimulatedDoubt = 0.1
	unknownDoubt   = 0.5
)

// SimulatedBlocks is the KV cache of a simulated engine in blocks, without args.blocks.
const SimulatedBlocks = 16384

// Engine has the assumptions of a plan about the engines of a launch.
type Engine struct {
	capacity.Engine
	doubt float64
	watts float64 // of one engine; 0 is unknown
}

// NewEngine returns the known properties of a launch's engines: from the model's profile, else from the data sheet of the GPU and the
// size of the model, else from the timing of simulated engines.
func NewEngine(m *config.Model, l *config.Launch, gpus int) (Engine, error) {
	options, err := engineOptions(l)
	if err != nil {
		return Engine{}, err
	}
	e := Engine{Engine: capacity.Engine{MaxSeqs: options.seqs, MaxBatchedTokens: options.batched}}
	var gpu perfmodel.GPU
	if l.GPU != "" {
		gpu, err = perfmodel.FindGPU(l.GPU)
		if err != nil {
			return Engine{}, err
		}
		e.watts = float64(gpus) * gpu.Watts
	}

	switch {
	case m.Profile != "":
		profile, err := perfmodel.LoadProfile(os.DirFS(m.Profile))
		if err != nil {
			return Engine{}, err
		}
		e.Timing, e.doubt = profile, perfmodel.ProfileDoubt
		e.KVTokens = profile.KVTokens()
	case l.GPU != "" && l.Engine != engines.Sim.Name:
		roofline, err := rooflineOf(m.Path, gpu, gpus, options)
		if err != nil {
			return Engine{}, fmt.Errorf("gpu needs the size of the model: %w; set the model's profile, or remove gpu", err)
		}
		e.Timing, e.doubt = roofline, perfmodel.RooflineDoubt
		e.KVTokens = roofline.KVTokens()
	default:
		e.Timing, e.doubt = perfmodel.Polynomial{}, unknownDoubt
	}
	if l.Engine == engines.Sim.Name {
		e.simulate(m, options)
	}
	return e, nil
}

// simulate sets the known properties of a simulated engine.
func (e *Engine) simulate(m *config.Model, o launchOptions) {
	blocks := SimulatedBlocks
	if o.blocks > 0 {
		blocks = o.blocks
	}
	e.KVTokens = blocks * m.LaunchBlockSize()
	if m.Profile == "" {
		e.Timing = perfmodel.Scaled{Timing: perfmodel.Polynomial{Speedup: o.speedup}, Tokens: o.scale}
		e.doubt = SimulatedDoubt
	}
}

// rooflineOf returns the timing of a model on GPUs.
func rooflineOf(path string, gpu perfmodel.GPU, gpus int, o launchOptions) (perfmodel.Roofline, error) {
	// A planner starts and reloads without waiting for its end. A download is bounded, and comes once.
	data, err := ReadModelSize(context.Background(), path)
	if err != nil {
		return perfmodel.Roofline{}, err
	}
	w, err := perfmodel.ReadWeights(data)
	if err != nil {
		return perfmodel.Roofline{}, fmt.Errorf("%s: %w", path, err)
	}

	if strings.HasPrefix(o.quantization, "fp8") {
		w.Bytes = min(w.Bytes, 1)
	}
	if strings.HasPrefix(o.kvType, "fp8") {
		w.KVBytes /= 2
	}
	r := perfmodel.Roofline{Model: w, GPU: gpu, GPUs: gpus}
	if r.KVTokens() == 0 {
		return r, fmt.Errorf("%s: its weights need %.0f GB, which do not fit on %d %s", path, w.Parameters*w.Bytes/1e9, gpus, gpu.Name)
	}
	return r, nil
}

// launchOptions are the arguments of a launch that change what its engines can do. 0 and empty are the engine's defaults.
type launchOptions struct {
	seqs, batched, blocks, scale int
	speedup                      float64
	quantization, kvType         string
}

// The options that bound an engine, by their names in all kinds of engines.
var (
	batchedOptions      = engines.PlanOptions(func(p *engines.Plan) string { return p.Batched })
	quantizationOptions = engines.PlanOptions(func(p *engines.Plan) string { return p.Quantization })
	kvTypeOptions       = engines.PlanOptions(func(p *engines.Plan) string { return p.KVType })
)

// engineOptions reads the arguments of a launch. An error names the argument.
func engineOptions(l *config.Launch) (o launchOptions, err error) {
	text := func(names ...string) (key, value string) {
		for key, v := range l.Args {
			spelled := engines.OptionName(key)
			for _, name := range names {
				if spelled == name {
					return key, fmt.Sprint(v)
				}
			}
		}
		return "", ""
	}
	number := func(names ...string) int {
		key, value := text(names...)
		if value == "" || err != nil {
			return 0
		}
		n, wrong := strconv.Atoi(value)
		if wrong != nil || n > maxOption {
			err = fmt.Errorf("args.%s is %.40q: it must be a whole number up to %d", key, value, maxOption)
		}
		return max(n, 0)
	}

	o = launchOptions{seqs: number(engines.SeqsOptions...), batched: number(batchedOptions...)}
	o.blocks, o.scale = number("blocks"), number("tokenScale")
	_, o.quantization = text(quantizationOptions...)
	_, o.kvType = text(kvTypeOptions...)
	if key, value := text("engineSpeedup"); value != "" {
		speedup, wrong := strconv.ParseFloat(value, 64)
		if wrong != nil || !(speedup > 0 && speedup < maxOption) {
			return o, fmt.Errorf("args.%s is %.40q: it must be a positive number", key, value)
		}
		o.speedup = speedup
	}
	return o, err
}

// maxOption bounds numbers in arguments.
const maxOption = 1 << 30
