"""Makes the folder of a tiny model with seeded random weights, which a real engine loads in a moment.

usage: model.py OUT --vocabulary FOLDER [--seed N] [--adapter NAME ...] [--deep]

FOLDER holds a real tokenizer.json and tokenizer_config.json, so prompts have real lengths and templates. Equal seeds
make equal weights, so several engines compute equal answers. Each adapter becomes a LoRA adapter in OUT-NAME. A deep model
has more and wider layers, so that prompts take some time.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, CONTEXT = 128, 2, 4, 2, 32768
INNER = 2 * HIDDEN
HEAD = HIDDEN // HEADS
DEEP = 256, 16, 8, 2048  # hidden, layers, heads and inner of a deep model, with heads of the same size
RANK = 8


def weights(vocabulary, seed):
    """The tensors of a model of the kind Qwen2."""
    g = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return (torch.randn(*shape, generator=g) * 0.08).to(torch.bfloat16)

    def ones():
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    tensors = {"model.embed_tokens.weight": noise(vocabulary, HIDDEN), "model.norm.weight": ones()}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        tensors[p + "input_layernorm.weight"] = ones()
        tensors[p + "post_attention_layernorm.weight"] = ones()
        for name, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            tensors[p + f"self_attn.{name}_proj.weight"] = noise(rows, HIDDEN)
            tensors[p + f"self_attn.{name}_proj.bias"] = noise(rows)
        tensors[p + "self_attn.o_proj.weight"] = noise(HIDDEN, HEADS * HEAD)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            tensors[p + f"mlp.{name}_proj.weight"] = noise(*shape)
    return tensors


def adapter(folder, base, seed):
    """Writes a LoRA adapter of the attention's projections."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for i in range(LAYERS):
        for name, rows in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            p = f"base_model.model.model.layers.{i}.self_attn.{name}."
            tensors[p + "lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=g) * 0.3
            tensors[p + "lora_B.weight"] = torch.randn(rows, RANK, generator=g) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": RANK, "lora_alpha": 16,
        "lora_dropout": 0.0, "bias": "none", "target_modules": ["q_proj", "v_proj"]}))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--vocabulary", type=pathlib.Path, required=True)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--adapter", action="append", default=[])
    p.add_argument("--deep", action="store_true")
    args = p.parse_args()
    if args.deep:
        global HIDDEN, LAYERS, HEADS, INNER
        HIDDEN, LAYERS, HEADS, INNER = DEEP

    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(args.vocabulary / name, args.out / name)
    t = json.loads((args.out / "tokenizer.json").read_text())
    ids = {a["content"]: a["id"] for a in t["added_tokens"]}
    size = 1 + max([*t["model"]["vocab"].values(), *ids.values()])
    size = (size + 63) // 64 * 64
    end = ids.get("<|im_end|>", 1)

    (args.out / "config.json").write_text(json.dumps({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "vocab_size": size, "bos_token_id": 0, "eos_token_id": end, "torch_dtype": "bfloat16"}, indent=1))
    (args.out / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    save_file(weights(size, args.seed), args.out / "model.safetensors", metadata={"format": "pt"})
    for i, name in enumerate(args.adapter):
        adapter(args.out.with_name(f"{args.out.name}-{name}"), args.out, args.seed + 1 + i)


if __name__ == "__main__":
    main()
