"""Makes a GGUF file of a byte-level tokenizer.json, with weights too small to matter."""

import gguf
import numpy as np

WIDTH = 32
KINDS = gguf.TokenType


def write(path, model, pre, name="oracle", context=4096, template=None):
    """A model of one layer, whose vocabulary is model's, to be cut as llama.cpp's pre does."""
    vocabulary = model["model"]["vocab"]
    added = {a["id"]: a for a in model["added_tokens"]}
    size = max(max(vocabulary.values()), *added) + 1
    tokens, kinds = [f"[UNUSED{i}]" for i in range(size)], [KINDS.UNUSED] * size
    for token, i in vocabulary.items():
        tokens[i], kinds[i] = token, KINDS.NORMAL
    for i, a in added.items():
        tokens[i], kinds[i] = a["content"], KINDS.CONTROL if a["special"] else KINDS.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]

    w = gguf.GGUFWriter(path, "llama")
    w.add_name(name)
    w.add_context_length(context)
    w.add_embedding_length(WIDTH)
    w.add_block_count(1)
    w.add_feed_forward_length(WIDTH)
    w.add_head_count(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(WIDTH)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    square = np.zeros((WIDTH, WIDTH), np.float32)
    line = np.ones(WIDTH, np.float32)
    if template:
        w.add_chat_template(template)
    w.add_tensor("token_embd.weight", np.zeros((size, WIDTH), np.float16))
    w.add_tensor("output_norm.weight", line)
    for part in ("attn_norm", "ffn_norm"):
        w.add_tensor(f"blk.0.{part}.weight", line)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        w.add_tensor(f"blk.0.{part}.weight", square)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
