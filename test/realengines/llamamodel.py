"""Makes the GGUF file of a tiny model, which llama.cpp loads at once.

usage: llamamodel.py OUT.gguf --vocabulary FOLDER

FOLDER holds a real tokenizer.json and tokenizer_config.json, so prompts have real lengths and templates.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "oracle"))
import gguf_file  # noqa: E402


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--vocabulary", type=pathlib.Path, required=True)
    args = p.parse_args()
    model = json.loads((args.vocabulary / "tokenizer.json").read_text())
    template = json.loads((args.vocabulary / "tokenizer_config.json").read_text())["chat_template"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    gguf_file.write(args.out, model, "qwen2", context=16384, template=template)


if __name__ == "__main__":
    main()
