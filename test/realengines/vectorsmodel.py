"""Makes the folder of a tiny embedding model of BERT's kind with seeded random weights, which vLLM serves with --runner pooling.

usage: vectorsmodel.py OUT [--seed N]

Its vocabulary is WordPiece, as that of many embedding models: each character is a token.
"""

import argparse
import json
import pathlib
import string

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, CONTEXT = 128, 2, 4, 2048
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer():
    """The content of tokenizer.json."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    tokens = SPECIAL + list(characters) + ["##" + c for c in characters]
    ids = {t: i for i, t in enumerate(tokens)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}

    def around(*texts):
        parts = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]
        for i, text in enumerate(texts):
            parts += [{"Sequence": {"id": text, "type_id": i}}, {"SpecialToken": {"id": "[SEP]", "type_id": i}}]
        return parts

    return {
        "version": "1.0",
        "added_tokens": [{"id": ids[t], "content": t, **flags} for t in SPECIAL],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": around("A"), "pair": around("A", "B"),
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": ids},
    }


def weights(vocabulary, seed):
    """The tensors of a model of the kind BERT."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}

    def layer_norm(name):
        tensors[name + ".weight"] = torch.ones(HIDDEN)
        tensors[name + ".bias"] = torch.zeros(HIDDEN)

    for name, rows in (("word", vocabulary), ("position", CONTEXT), ("token_type", 2)):
        tensors[f"embeddings.{name}_embeddings.weight"] = torch.randn(rows, HIDDEN, generator=g) * 0.3
    layer_norm("embeddings.LayerNorm")
    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        for name, rows, columns in (
            ("attention.self.query", HIDDEN, HIDDEN), ("attention.self.key", HIDDEN, HIDDEN), ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN), ("intermediate.dense", 2 * HIDDEN, HIDDEN), ("output.dense", HIDDEN, 2 * HIDDEN)):
            tensors[p + name + ".weight"] = torch.randn(rows, columns, generator=g) * 0.3
            tensors[p + name + ".bias"] = torch.randn(rows, generator=g) * 0.3
        layer_norm(p + "attention.output.LayerNorm")
        layer_norm(p + "output.LayerNorm")
    return tensors


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()

    def write(name, content):
        path = args.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1))

    vocabulary = tokenizer()
    size = len(vocabulary["model"]["vocab"])
    write("tokenizer.json", vocabulary)
    write("tokenizer_config.json", {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": CONTEXT, "pad_token": "[PAD]", "unk_token": "[UNK]",
        "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"})
    write("config.json", {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_act": "gelu", "max_position_embeddings": CONTEXT,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "vocab_size": size, "pad_token_id": 0, "torch_dtype": "float32"})
    # The mean of the tokens' vectors, with a length of 1, in the format of sentence-transformers.
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    write("modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind} for i, (kind, path) in enumerate(kinds)])
    write("1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True})
    save_file(weights(size, args.seed), args.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
