package advise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/stator-project/stator/internal/engines"
	"github.com/stator-project/stator/internal/perfmodel"
	"github.com/stator-project/stator/internal/plan/capacity"
	"github.com/stator-project/stator/internal/plan/propose"
	"github.com/stator-project/stator/internal/plansettings"
)

// weightBytes are the bytes of a weight by the values of --dtype.
var weightBytes = map[string]float64{"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.53125, "fp4": 0.53125}

// DTypes returns the values of --dtype besides auto, sorted.
func DTypes() []string { return slices.Sorted(maps.Keys(weightBytes)) }

// planSeqs is the most requests at once of the engines that are compared, and planBatched the tokens of a pass.
const (
	planSeqs    = 512
	planBatched = 8192
)

// calibratedDoubt is the doubt of a roofline that a profile of another size of engine corrects.
const calibratedDoubt = 0.2

// model has the known properties of the model and the GPU.
type model struct {
	weights perfmodel.Weights // zero if they are unknown
	gpu     perfmodel.GPU     // zero if it is unknown
	profile *perfmodel.Profile
	// quantize is the option with which engines make the weights smaller; empty if they are as they are in the files.
	quantize string
}

// readPlanModel reads the files that the flags name.
func (p *Options) readPlanModel(ctx context.Context) (m model, err error) {
	if p.GPUKind != "" {
		m.gpu, err = perfmodel.FindGPU(p.GPUKind)
		if err != nil {
			return m, err
		}
	}
	if p.Profile != "" {
		m.profile, err = perfmodel.LoadProfile(os.DirFS(p.Profile))
		if err != nil {
			return m, err
		}
	}
	data, err := plansettings.ReadModelSize(ctx, p.Model)
	switch {
	case err != nil && (p.Engine == engines.Sim.Name || m.profile != nil):
		return m, nil // the speed is known without it
	case err != nil:
		return m, fmt.Errorf("%w; a folder with the model's config.json suffices, or name a profile with --profile", err)
	}
	m.weights, err = perfmodel.ReadWeights(data)
	if err != nil {
		return m, fmt.Errorf("%s: %w", p.Model, err)
	}

	bytes := weightBytes[p.DType]
	if bytes == 0 || bytes == m.weights.Bytes {
		return m, nil
	}
	online := p.DType == "fp8" && m.weights.Bytes == 2 && engines.Of(p.Engine).Plan.Quantization != ""
	if p.Out != "" && !online {
		return m, fmt.Errorf("the weights in %s have %v bytes each, and engine %s cannot load them as %s: name a folder with such "+
			"weights, or leave out --dtype or --out", p.Model, m.weights.Bytes, p.Engine, p.DType)
	}
	if online {
		m.quantize = "fp8"
	}
	m.weights.Bytes = bytes
	return m, nil
}

// engines returns the engines to compare.
func (p *Options) engines(m *model) ([]propose.Engine, error) {
	switch {
	case p.Engine == engines.Sim.Name:
		return []propose.Engine{{
			Engine: capacity.Engine{
				Timing: perfmodel.Polynomial{}, KVTokens: plansettings.SimulatedBlocks * 16, MaxBatchedTokens: planBatched,
			},
			GPUs: 1, Watts: m.gpu.Watts, Doubt: plansettings.SimulatedDoubt,
		}}, nil
	case m.profile == nil && m.gpu.Name == "":
		return nil, errors.New("the speed of engines is unknown: name the GPU with --gpu-kind, or a profile with --profile")
	}

	var out []propose.Engine
	if m.profile != nil {
		out = append(out, propose.Engine{
			Engine: capacity.Engine{
				Timing: m.profile, KVTokens: m.profile.KVTokens(), MaxSeqs: planSeqs, MaxBatchedTokens: planBatched,
			},
			GPUs: p.ProfileGPUs, Watts: float64(p.ProfileGPUs) * m.gpu.Watts, Doubt: perfmodel.ProfileDoubt,
		})
	}
	if m.gpu.Name != "" && m.weights.Parameters > 0 {
		out = append(out, p.rooflines(m)...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the model does not fit: its weights need %.0f GB, and %d %s have %.0f GB",
			m.weights.Parameters*m.weights.Bytes/1e9, p.GPUs, m.gpu.Name, float64(p.GPUs)*m.gpu.Memory/1e9)
	}
	return out, nil
}

// rooflines returns the engines whose speed is computed: all sizes that fit, with both types of the KV cache. A profile corrects them.
func (p *Options) rooflines(m *model) (out []propose.Engine) {
	for _, gpus := range []int{1, 2, 4, 8} {
		for _, small := range []bool{false, true} {
			if gpus > p.GPUs || m.weights.Heads%gpus != 0 || small && m.gpu.FLOPS8 <= m.gpu.FLOPS16 {
				continue
			}
			if m.profile != nil && (gpus == p.ProfileGPUs || small) {
				continue // that size was measured, with its type of the KV cache
			}
			r := perfmodel.Roofline{Model: m.weights, GPU: m.gpu, GPUs: gpus}
			if small {
				r.Model.KVBytes /= 2
			}
			e := propose.Engine{
				Engine: capacity.Engine{Timing: r, KVTokens: r.KVTokens(), MaxSeqs: planSeqs, MaxBatchedTokens: planBatched},
				GPUs:   gpus, Watts: float64(gpus) * m.gpu.Watts, Doubt: perfmodel.RooflineDoubt, SmallKV: small,
			}
			if float64(e.KVTokens) < p.ISL+p.OSL {
				continue
			}
			if m.profile != nil {
				e.Timing, e.Doubt = p.calibrated(m, r), calibratedDoubt
			}
			out = append(out, e)
		}
	}
	return out
}

// calibrated corrects a roofline by the ratio between the profile and the roofline of the size that was measured, at the lengths of the
// question.
func (p *Options) calibrated(m *model, r perfmodel.Roofline) perfmodel.Timing {
	measured := r
	measured.GPUs = p.ProfileGPUs
	prompt := perfmodel.Prefill{Requests: 1, Input: int(max(1, p.ISL))}
	const requests = 32
	step := perfmodel.Decode{Requests: requests, Context: int(requests * (p.ISL + p.OSL/2)), Capacity: m.profile.KVTokens()}
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	return perfmodel.Corrected{
		Timing: r, PrefillBy: ratio(m.profile.Prefill(prompt), measured.Prefill(prompt)),
		DecodeBy: ratio(m.profile.Decode(step), measured.Decode(step)),
	}
}
