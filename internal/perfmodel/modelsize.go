package perfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxConfigBytes bounds a model's config.json.
const maxConfigBytes = 1 << 20

// ReadWeights computes the size of a model from its config.json as Hugging Face has it, without reading the weights. The KV cache has
// 16 bits for each number. Small tensors such as norms and biases are not counted. An error names the key that is missing or wrong.
//
//	attention   with as many heads for keys as for queries, or fewer; compressed as DeepSeek's (kv_lora_rank)
//	layers      dense, or mixtures of experts with shared experts and some dense layers
//	weights     of 16 bits, or as quantization_config has them: fp8, compressed-tensors, awq, gptq, modelopt, mxfp4, bitsandbytes
//
// Of a model with images or sound, only the part of the text counts. Models with other kinds of layers are refused.
func ReadWeights(configJSON []byte) (Weights, error) {
	if len(configJSON) > maxConfigBytes {
		return Weights{}, fmt.Errorf("read model configuration: it has %d bytes: at most %d are read", len(configJSON), maxConfigBytes)
	}
	r := &sizeReader{}
	if err := json.Unmarshal(configJSON, &r.keys); err != nil {
		return Weights{}, fmt.Errorf("read model configuration: %w", err)
	}
	r.nest()

	w := r.weights()
	if err := errors.Join(r.errs...); err != nil {
		return Weights{}, fmt.Errorf("read model configuration: %w", err)
	}
	if err := w.Validate(); err != nil {
		return Weights{}, fmt.Errorf("read model configuration: %w", err)
	}
	return w, nil
}

// sizeReader reads the keys of a config.json, and collects the mistakes.
type sizeReader struct {
	keys map[string]json.RawMessage
	errs []error
}

// nest puts the keys of the part for text over the keys of the whole.
func (r *sizeReader) nest() {
	for _, name := range []string{"text_config", "llm_config", "language_config"} {
		var inner map[string]json.RawMessage
		if json.Unmarshal(r.keys[name], &inner) != nil || inner == nil {
			continue
		}
		for key, value := range inner {
			r.keys[key] = value
		}
		return
	}
}

// mostOfKey bounds the numbers of a configuration.
const mostOfKey = 1e8

// optional returns the first key of several names that is there; otherwise a default.
func (r *sizeReader) optional(otherwise float64, names ...string) float64 {
	for _, name := range names {
		raw, ok := r.keys[name]
		if !ok || string(raw) == "null" {
			continue
		}
		var v float64
		if err := json.Unmarshal(raw, &v); err != nil || !(v >= 0 && v <= mostOfKey) {
			r.errs = append(r.errs, fmt.Errorf("%s is %.40s: it must be a number up to %.0f", name, raw, float64(mostOfKey)))
			return otherwise
		}
		return v
	}
	return otherwise
}

// required returns the first key of several names that is there, which must be positive.
func (r *sizeReader) required(names ...string) float64 {
	v := r.optional(-1, names...)
	if v <= 0 {
		r.errs = append(r.errs, fmt.Errorf("%s is missing or 0", strings.Join(names, " or ")))
		return 1
	}
	return v
}

// text returns a key that is a text.
func (r *sizeReader) text(name string) (s string) {
	_ = json.Unmarshal(r.keys[name], &s) // another type counts as absent
	return s
}

// flag returns a key that is true or false.
func (r *sizeReader) flag(name string, otherwise bool) bool {
	out := otherwise
	if json.Unmarshal(r.keys[name], &out) != nil {
		return otherwise
	}
	return out
}

// texts returns a key that is a list of texts.
func (r *sizeReader) texts(name string) (out []string) {
	_ = json.Unmarshal(r.keys[name], &out)
	return out
}

// twoMatrices are the kinds of models whose dense layers have two matrices, while others have three.
var twoMatrices = []string{"phi", "gpt_neox", "starcoder2", "opt", "falcon", "gptj", "bloom", "mpt", "gpt2", "nemotron", "persimmon"}

// weights returns the size of the model.
func (r *sizeReader) weights() Weights {
	r.refuseOtherLayers()
	hidden := r.required("hidden_size", "n_embd", "d_model")
	layers := r.required("num_hidden_layers", "n_layer", "num_layers")
	heads := r.required("num_attention_heads", "n_head")
	w := Weights{Layers: int(layers), Hidden: int(hidden), Heads: int(heads), Bytes: r.weightBytes()}
	w.Context = int(r.optional(0, "max_position_embeddings", "n_positions", "max_sequence_length"))

	attention := r.attention(&w, hidden, heads)
	all, active := r.feedForward(hidden, layers)
	embeddings := r.required("vocab_size") * hidden
	w.Parameters = layers*attention + all + embeddings
	// One token uses one row of the embeddings, and all of the output's.
	w.Active = layers*attention + active + embeddings
	if !r.flag("tie_word_embeddings", strings.HasPrefix(r.text("model_type"), "gemma")) {
		w.Parameters += embeddings
	}
	return w
}

// refuseOtherLayers refuses models whose layers keep a state that is no KV cache.
func (r *sizeReader) refuseOtherLayers() {
	if slices.Contains(r.texts("layer_types"), "linear_attention") || r.keys["ssm_cfg"] != nil || r.keys["mamba_d_state"] != nil {
		r.errs = append(r.errs, errors.New("the model has layers of linear attention or state spaces, whose size is not computed"))
	}
}

// attention returns the number of parameters of one layer's attention, and sets the figures that depend on its heads.
func (r *sizeReader) attention(w *Weights, hidden, heads float64) float64 {
	const bytes = 2 // of a number in the KV cache
	layers := float64(w.Layers)
	if _, compressed := r.keys["kv_lora_rank"]; compressed {
		rank := r.required("kv_lora_rank")
		rope := r.required("qk_rope_head_dim")
		key := r.required("qk_nope_head_dim") + rope
		value := r.required("v_head_dim")
		w.Attention, w.KVHeads = int(heads*key), 1
		w.KVBytes = layers * (rank + rope) * bytes

		query := hidden * heads * key
		if q := r.optional(0, "q_lora_rank"); q > 0 {
			query = hidden*q + q*heads*key
		}
		return query + hidden*(rank+rope) + rank*heads*(key-rope+value) + heads*value*hidden
	}

	kv := r.optional(heads, "num_key_value_heads", "num_kv_heads", "n_head_kv")
	width := r.optional(hidden/heads, "head_dim")
	w.Attention, w.KVHeads = int(heads*width), int(kv)
	w.KVBytes = layers * 2 * kv * width * bytes
	return 2*hidden*heads*width + 2*hidden*kv*width
}

// feedForward returns the number of parameters of all layers after the attention, and the number that one token uses.
func (r *sizeReader) feedForward(hidden, layers float64) (all, active float64) {
	matrices := 3.0
	if slices.Contains(twoMatrices, r.text("model_type")) {
		matrices = 2
	}
	size := func(width float64) float64 { return matrices * hidden * width }
	experts := r.optional(0, "num_experts", "num_local_experts", "n_routed_experts")
	if experts <= 1 {
		each := layers * size(r.required("intermediate_size", "n_inner", "ffn_hidden_size"))
		return each, each
	}

	chosen := min(r.required("num_experts_per_tok", "experts_per_token", "moe_topk"), experts)
	width := r.optional(0, "moe_intermediate_size")
	if width == 0 {
		width = r.required("intermediate_size")
	}
	shared := r.optional(0, "shared_expert_intermediate_size")
	if shared == 0 {
		shared = r.optional(0, "n_shared_experts", "num_shared_experts") * width
	}
	sparse := r.sparseLayers(layers)
	dense := 0.0
	if sparse < layers {
		dense = (layers - sparse) * size(r.required("intermediate_size_mlp", "intermediate_size"))
	}
	router := hidden * experts
	all = dense + sparse*(experts*size(width)+size(shared)+router)
	active = dense + sparse*(chosen*size(width)+size(shared)+router)
	return all, active
}

// sparseLayers returns the number of layers that are mixtures of experts.
func (r *sizeReader) sparseLayers(layers float64) float64 {
	dense := r.optional(0, "first_k_dense_replace")
	if step := r.optional(1, "decoder_sparse_step", "interleave_moe_layer_step"); step > 1 {
		dense = layers - float64(int(layers/step))
	}
	var only []int
	if json.Unmarshal(r.keys["mlp_only_layers"], &only) == nil && len(only) > 0 {
		dense += float64(len(only))
	}
	return max(0, layers-dense)
}

// quantization is the part of a configuration that describes smaller weights.
type quantization struct {
	Method string  `json:"quant_method"`
	Algo   string  `json:"quant_algo"`
	Bits   float64 `json:"bits"`
	In4    bool    `json:"load_in_4bit"`
	Groups map[string]struct {
		Weights struct {
			Bits float64 `json:"num_bits"`
		} `json:"weights"`
	} `json:"config_groups"`
}

// scaleBits is the number of bits for each weight that groups of quantized weights need for their scales.
const scaleBits = 0.25

// weightBytes returns the bytes of a weight. Engines convert weights of 32 bits to 16.
func (r *sizeReader) weightBytes() float64 {
	raw, ok := r.keys["quantization_config"]
	if !ok || string(raw) == "null" {
		return 2
	}
	var q quantization
	if err := json.Unmarshal(raw, &q); err != nil {
		r.errs = append(r.errs, fmt.Errorf("quantization_config: %w", err))
		return 2
	}

	bits := q.Bits
	switch q.Method {
	case "fp8", "fbgemm_fp8":
		return 1
	case "mxfp4":
		bits = 4
	case "bitsandbytes":
		bits = 8
		if q.In4 {
			bits = 4
		}
	case "compressed-tensors":
		for _, g := range q.Groups {
			bits = max(bits, g.Weights.Bits)
		}
	case "modelopt":
		bits = map[string]float64{"FP8": 8, "NVFP4": 4, "W4A8_AWQ": 4}[strings.ToUpper(q.Algo)]
	}
	switch {
	case bits >= 8 && bits <= 16:
		return bits / 8
	case bits >= 1 && bits < 8:
		return (bits + scaleBits) / 8
	}
	r.errs = append(r.errs, fmt.Errorf("quantization_config.quant_method is %.40q: the size of its weights is unknown", q.Method))
	return 2
}
