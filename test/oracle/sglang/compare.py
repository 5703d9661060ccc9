"""Compares chats as stator prepares them for SGLang with SGLang's own conversion: make oracle-sglang.

SGLang does not install without a GPU, so that functions.py imports the modules that convert, of one release, and leaves the rest out. The
tokenizer and the template's Jinja2 are Hugging Face's, as in SGLang. Ids that stator has must be SGLang's. Half of the chats have any form,
and half none that stator does not read. A chat that only stator refuses is a difference.
"""

import argparse
import collections
import json
import pathlib
import random
import secrets
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "vllm")]
from conversations import Requests  # noqa: E402
from functions import chat  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402


UNREAD = ("reasoning_effort", "documents", "add_generation_prompt", "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "tool_choice")


def plain(q):
    """Returns a chat without the forms that stator never reads for SGLang, so that the others are compared often."""
    q = {k: v for k, v in q.items() if k not in UNREAD and k != "continue_final_message"}
    messages = []
    for m in q["messages"]:
        m = {k: v for k, v in m.items() if k not in ("name", "task", "reasoning")}
        if isinstance(m.get("content"), list):
            texts = [p["text"] for p in m["content"] if isinstance(p, dict) and p["type"] == "text"]
            m["content"] = texts[0] if texts else "."
        if m["role"] == "system" and m["content"].startswith("x-anthropic"):
            m["content"] = "."
        messages.append(m)
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "Go on."})
    return {**q, "messages": messages}


def ours(program, command, folder, requests):
    lines = "".join(json.dumps(q) + "\n" for q in requests)
    done = subprocess.run([program, command, "--engine", "sglang", "--api", "chat", "--model-dir", str(folder)], input=lines.encode(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    if len(answers) != len(requests):
        raise SystemExit(f"stator {command}: {done.stderr.decode()[-2000:]}")
    return answers


def compare(args, name, folder, requests):
    """Returns the counts of one vocabulary and template."""
    render = chat(AutoTokenizer.from_pretrained(folder))
    counts = collections.Counter()
    for q, i, t in zip(requests, ours(args.stator, "tokenize", folder, requests), ours(args.stator, "render", folder, requests)):
        try:
            text, ids = render(json.loads(json.dumps(q)))
        except Exception as error:  # noqa: BLE001, whatever SGLang raises is a refusal
            text, ids = f"{type(error).__name__}: {error}", None
        error = i.get("error")
        if error and error["code"] == "unread":
            counts["not read"] += 1
        elif ids is None:
            counts["refused by both" if error else "refused by SGLang"] += 1
        elif not error and ids == i["ids"]:
            counts["equal"] += 1
        else:
            counts["different"] += 1
            if counts["different"] <= args.shown:
                got = error["message"] if error else t["prompt"]
                at = next((n for n, (a, b) in enumerate(zip(text, got)) if a != b), min(len(text), len(got)))
                print(f"DIFFERS {name}\n  sglang …{ascii(text[max(0, at - 60):at + 160])}\n  stator …{ascii(got[max(0, at - 60):at + 160])}")
                print("  request " + json.dumps(q)[:1500], flush=True)
    print(f"{name}: {dict(counts)}", flush=True)
    return counts


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--stator", required=True, help="our program")
    p.add_argument("--vocabularies", type=pathlib.Path, required=True, help="folder of NAME/tokenizer.json")
    p.add_argument("--names", default="qwen3,llama3_1", help="vocabularies to compare with")
    p.add_argument("--templates", default="own,parts,strict", help="templates of the oracle of vLLM, by name; own is the vocabulary's")
    p.add_argument("--requests", type=int, default=1000, help="for each vocabulary and template")
    p.add_argument("--seed", type=int, default=secrets.randbits(32))
    p.add_argument("--shown", type=int, default=5, help="differences to show, of each vocabulary and template")
    args = p.parse_args()
    print(f"seed {args.seed}", flush=True)
    maker = Requests(random.Random(args.seed))
    made = [maker.good() for _ in range(args.requests)]
    made = made[::2] + [plain(q) for q in made[1::2]]
    requests = [q for q in made if "100000000000000000000" not in json.dumps(q)]  # SGLang makes a float of it in a call's arguments

    total = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.names.split(","):
            for template in args.templates.split(","):
                folder = pathlib.Path(scratch) / f"{name}-{template}"
                folder.mkdir()
                for file in ("tokenizer.json", "tokenizer_config.json"):
                    shutil.copy(args.vocabularies / name / file, folder / file)
                if template != "own":
                    shutil.copy(HERE.parent / f"vllm/templates/{template}.jinja", folder / "chat_template.jinja")
                total += compare(args, f"{name} {template}", folder, requests)
    print(dict(total))
    sys.exit(1 if total["different"] or total["equal"] < total["not read"] / 2 else 0)


if __name__ == "__main__":
    main()
