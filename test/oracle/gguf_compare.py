"""Compares the token ids of GGUF vocabularies with llama.cpp's own: make oracle-gguf.

A GGUF file is made of each real byte-level vocabulary and each kind of pre-tokenizer, and served
by llama.cpp; every text is encoded by its /tokenize and by ours. The texts are those of the other
comparison, and one for every 100 code points there are. The seed is printed and can be given
again. The exit status is 1 if anything differs.
"""

import argparse
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import corpus
import gguf_file

# Each pre-tokenizer, with a vocabulary that was made for it or comes near.
PAIRS = [("llama-bpe", "llama3_1"), ("dbrx", "llama3_1"), ("qwen2", "qwen3"), ("qwen35", "qwen3"), ("gpt-4o", "gptoss"), ("tekken", "gptoss"),
         ("deepseek-v3", "deepseek_v3"), ("gpt-2", "qwen3"), ("smollm", "deepseek_v3"), ("glm4", "llama3_1")]
SERVE = """
import os, sys, threading
from xllamacpp import CommonParams, Server
p = CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.verbosity, p.port, p.hostnames = sys.argv[1], 512, 1, 0, int(sys.argv[2]), ["127.0.0.1"]
p.warmup = False
server = Server(p)
sys.stdin.read()
os._exit(0)
"""


class Llama:
    """llama.cpp's HTTP server with one file, until it is closed."""

    def __init__(self, path, port):
        self.process = subprocess.Popen([sys.executable, "-c", SERVE, str(path), str(port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.port, self.connection = port, None
        for _ in range(600):
            try:
                self.ids("a")
                return
            except (OSError, http.client.HTTPException, KeyError):
                if self.process.poll() is not None:
                    break
                self.connection = None
                time.sleep(0.1)
        raise SystemExit(f"llama.cpp does not serve {path}")

    def ids(self, text):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.connection.request("POST", "/tokenize", json.dumps({"content": text, "add_special": False, "parse_special": True}),
                                {"Content-Type": "application/json"})
        return json.loads(self.connection.getresponse().read())["tokens"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def everything():
    """Every code point, between letters, behind a space, and beside an apostrophe."""
    for block in range(0, 0x110000, 100):
        points = [chr(c) for c in range(block, min(block + 100, 0x110000)) if not 0xD800 <= c < 0xE000]
        if points:
            yield "".join(f"a{c}b {c}1'{c}\n" for c in points)


def ours(stator, path, texts):
    with tempfile.TemporaryFile("w+") as questions:
        for t in texts:
            questions.write(json.dumps({"text": t}) + "\n")
        questions.seek(0)
        done = subprocess.run([stator, "tokenize", "--model-dir", str(path)], stdin=questions, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"stator tokenize --model-dir {path}: {done.stderr.decode()[-500:]}")
    return [json.loads(line).get("ids") for line in done.stdout.decode().split("\n") if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stator", required=True, help="our side")
    parser.add_argument("--vocabularies", type=pathlib.Path, required=True, help="folder of NAME/tokenizer.json")
    parser.add_argument("--texts", type=int, default=4000, help="texts for each pre-tokenizer")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--pre", nargs="*", help="pre-tokenizers to compare; all")
    parser.add_argument("--port", type=int, default=21877)
    parser.add_argument("--show", type=int, default=10, help="differences to show of each")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    texts, failed = corpus.Texts(args.seed), 0
    for pre, name in PAIRS:
        if args.pre and pre not in args.pre:
            continue
        model = json.loads((args.vocabularies / name / "tokenizer.json").read_text())
        questions = texts.make(args.texts, model) + list(everything())
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.gguf"
            gguf_file.write(path, model, pre)
            answers = ours(args.stator, path, questions)
            llama = Llama(path, args.port)
            try:
                bad = 0
                for text, got in zip(questions, answers, strict=True):
                    if (want := llama.ids(text)) != got:
                        bad += 1
                        if bad <= args.show:
                            print(f"  DIFFERS {pre}: {ascii(text)[:300]}\n    want {want[:40]}\n    got  {got[:40] if got else got}")
            finally:
                llama.close()
        failed += bad
        print(f"{pre} ({name}): {len(questions)} texts, {bad} differ", flush=True)
    print(f"{failed} failures, seed {args.seed}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
