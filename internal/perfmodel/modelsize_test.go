package perfmodel

import (
	"os"
	"strings"
	"testing"
)

// The configurations in testdata/models have the values of the published config.json of each model, written by hand. The numbers of
// parameters are from the models' cards and reports; the numbers of active ones include the table of input embeddings.
func TestReadWeights(t *testing.T) {
	for name, want := range map[string]struct{ parameters, active, table, kvBytes, bytes float64 }{
		"llama-3.1-8b":  {8.03e9, 8.03e9, 128256 * 4096, 131072, 2},
		"llama-3.1-70b": {70.6e9, 70.6e9, 128256 * 8192, 327680, 2},
		"qwen2.5-7b":    {7.62e9, 7.62e9, 152064 * 3584, 57344, 2},
		"qwen3-30b-a3b": {30.5e9, 3.3e9, 151936 * 2048, 98304, 2},
		"mixtral-8x7b":  {46.7e9, 12.9e9, 32000 * 4096, 131072, 2},
		"deepseek-v3":   {671e9, 37e9, 129280 * 7168, 70272, 1},
		"gemma-2-9b":    {9.24e9, 9.24e9, 0, 344064, 2},
	} {
		data, err := os.ReadFile("testdata/models/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		w, err := ReadWeights(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		near := func(what string, got, want float64) {
			if got < 0.95*want || got > 1.05*want {
				t.Errorf("%s has %.4g %s, want %.4g", name, got, what, want)
			}
		}
		near("parameters", w.Parameters, want.parameters)
		near("active parameters", w.Active+want.table, want.active)
		if w.KVBytes != want.kvBytes || w.Bytes != want.bytes {
			t.Errorf("%s: %v bytes of KV cache and %v of a weight, want %v and %v", name, w.KVBytes, w.Bytes, want.kvBytes, want.bytes)
		}
	}
}

const smallModel = `"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100`

// The bytes of quantized weights, and the part for text of a model with images.
func TestReadWeightsOfOtherForms(t *testing.T) {
	for text, bytes := range map[string]float64{
		`{` + smallModel + `}`:                                                                                                                      2,
		`{"text_config": {` + smallModel + `}}`:                                                                                                     2,
		`{"dtype": "float32", ` + smallModel + `}`:                                                                                                  2,
		`{"quantization_config": {"quant_method": "fp8"}, ` + smallModel + `}`:                                                                      1,
		`{"quantization_config": {"quant_method": "awq", "bits": 4}, ` + smallModel + `}`:                                                           0.53125,
		`{"quantization_config": {"quant_method": "gptq", "bits": 8}, ` + smallModel + `}`:                                                          1,
		`{"quantization_config": {"quant_method": "mxfp4"}, ` + smallModel + `}`:                                                                    0.53125,
		`{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}, ` + smallModel + `}`:                                          0.53125,
		`{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}, ` + smallModel + `}`:                                       0.53125,
		`{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8}}}}, ` + smallModel + `}`: 1,
	} {
		w, err := ReadWeights([]byte(text))
		if err != nil || w.Bytes != bytes || w.Layers != 2 || w.KVHeads != 4 {
			t.Errorf("%s: %+v, %v", text, w, err)
		}
	}
}

func TestReadWeightsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "unexpected end",
		`{"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}`: "hidden_size or n_embd or d_model is missing",
		`{"num_experts": 8, ` + smallModel + `}`:                                                          "num_experts_per_tok",
		`{"kv_lora_rank": 8, ` + smallModel + `}`:                                                         "qk_rope_head_dim",
		`{"layer_types": ["linear_attention"], ` + smallModel + `}`:                                       "linear attention",
		`{"quantization_config": {"quant_method": "new"}, ` + smallModel + `}`:                            `quant_method is "new"`,
		`{"head_dim": -1, ` + smallModel + `}`:                                                            "head_dim is -1",
		`{"head_dim": "wide", ` + smallModel + `}`:                                                        `head_dim is "wide"`,
		`{"a": "` + strings.Repeat("x", maxConfigBytes) + `", ` + smallModel + `}`:                        "at most 1048576 are read",
		`{"max_position_embeddings": 1e300, ` + smallModel + `}`:                                          "max_position_embeddings",
	} {
		if _, err := ReadWeights([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", text, err, want)
		}
	}
}

// Whatever is read, sizes are within the bounds of Validate, or there is an error.
func FuzzReadWeights(f *testing.F) {
	f.Add([]byte(`{` + smallModel + `}`))
	f.Add([]byte(`{"num_experts": 8, "num_experts_per_tok": 2, "quantization_config": {"bits": 1e300}, ` + smallModel + `}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := ReadWeights(data)
		if err != nil {
			return
		}
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
		r := Roofline{Model: w, GPU: GPUs[0], GPUs: 8}
		if r.KVTokens() < 0 || r.Prefill(Prefill{Requests: 1, Input: 100}) <= 0 {
			t.Errorf("%+v", w)
		}
	})
}
