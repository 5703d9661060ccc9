"""Compares chat requests as stator prepares them with those of a running vLLM: make oracle-vllm.

For each vocabulary one instance of vLLM's renderer is started (`vllm launch render`: the same
code that serves /v1/chat/completions, without an engine behind it). Every request goes to its
/v1/chat/completions/render with every template, and to `stator tokenize` and `stator render`
with the same template. The ids must be equal, and the text must be the one of the ids; what one
side refuses the other must refuse. Differences are shown, and make the exit status 1.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unicodedata

from conversations import Requests

HERE = pathlib.Path(__file__).parent
CONTEXT = 8192
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "WARNING"}


def model(folder, vocabulary):
    """A folder with a real vocabulary and the description of a tiny model: there are no weights."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(vocabulary / name, folder / name)
    t = json.loads((folder / "tokenizer.json").read_text())
    size = 1 + max([*t["model"]["vocab"].values()] + [a["id"] for a in t["added_tokens"]])
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "vocab_size": (size + 63) // 64 * 64, "torch_dtype": "bfloat16"}))
    own = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    normalizer = t.get("normalizer") or {}
    return own if isinstance(own, str) else None, "NFC" in json.dumps(normalizer)


class VLLM:
    """One instance of the renderer."""

    def __init__(self, program, folder, log):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                [program, "launch", "render", str(folder), "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(self.port),
                 "--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--disable-uvicorn-access-log"],
                env={**os.environ, **SETTINGS}, stdout=out, stderr=out, start_new_session=True)

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.5)
        raise SystemExit(f"vLLM did not start:\n{self.log.read_text()[-3000:]}")

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = c.getresponse()
            raw = answer.read()
            return answer.status, json.loads(raw) if raw.startswith((b"{", b"[")) else raw.decode()
        finally:
            c.close()

    def render(self, request, template, path="/v1/chat/completions/render"):
        """Ids and text, or the words with which the request is refused."""
        if template is not None:
            request = {**request, "chat_template": template}
        status, answer = self.ask("POST", path, request)
        if status != 200:
            return None, None, f"{status} {answer['error']['message'] if isinstance(answer, dict) and 'error' in answer else answer}"
        ids = answer["token_ids"]
        _, text = self.ask("POST", "/detokenize", {"model": "m", "tokens": ids})
        return ids, text["prompt"], ""

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def ours(program, command, folder, requests, api="chat"):
    lines = "".join(json.dumps(q) + "\n" for q in requests)
    done = subprocess.run([program, command, "--api", api, "--model-dir", str(folder)], input=lines.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n") if line]
    if len(answers) != len(requests):
        raise SystemExit(f"stator {command}: {done.stderr.decode()[-2000:]}")
    return answers


class Comparison:
    def __init__(self, args):
        self.args, self.failed, self.compared, self.refused = args, 0, 0, 0

    def differ(self, name, request, what, want, got):
        self.failed += 1
        if self.failed > self.args.shown:
            return
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        print(f"DIFFERS {name}: {what}\n  vllm   …{ascii(want[max(0, at - 60):at + 160])}\n  stator …{ascii(got[max(0, at - 60):at + 160])}")
        print("  request " + json.dumps(request)[: self.args.width], flush=True)

    def template(self, server, name, folder, source, requests, composed):
        """Compares all requests with one template."""
        if source is not None:
            (folder / "chat_template.jinja").write_text(source)
        elif (folder / "chat_template.jinja").exists():
            (folder / "chat_template.jinja").unlink()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            theirs = list(pool.map(lambda q: server.render(q, source), requests))
        ids, texts = (ours(self.args.stator, c, folder, requests) for c in ("tokenize", "render"))
        before, refused = self.failed, 0
        for q, (want, text, why), i, t in zip(requests, theirs, ids, texts):
            self.compared += 1
            error = i.get("error")
            if want is None or error:
                refused += 1
                if why.startswith("5"):
                    self.failed += not error
                if want is not None:
                    self.differ(name, q, f"only stator refuses: {error['message']}", "", "")
                elif not error:
                    self.differ(name, q, f"only vLLM refuses: {why}", "", "")
                continue
            got = t["prompt"]
            if composed:
                text, got = unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", got)
            if want != i["ids"]:
                same = "the texts are equal" if text == got else "the texts differ"
                self.differ(name, q, f"ids, {same}", text if text != got else want, got if text != got else i["ids"])
            elif text != got and "truncate_prompt_tokens" not in q and "add_special_tokens" not in q:
                self.differ(name, q, "text", text, got)
        self.refused += refused
        print(f"{name}: {len(requests)} requests, {refused} refused, {self.failed - before} differ", flush=True)


def common_arguments():
    """Returns a parser of the arguments that all comparisons have."""
    p = argparse.ArgumentParser()
    p.add_argument("--vllm", required=True, help="vLLM's program")
    p.add_argument("--stator", required=True, help="our program")
    p.add_argument("--vocabularies", type=pathlib.Path, required=True, help="folder of NAME/tokenizer.json")
    p.add_argument("--names", default="qwen3,llama3_1", help="vocabularies to compare with")
    p.add_argument("--seed", type=int, default=secrets.randbits(32))
    p.add_argument("--shown", type=int, default=20, help="differences to show")
    p.add_argument("--width", type=int, default=1500, help="characters of a request to show")
    p.add_argument("--start", type=int, default=600, help="seconds that vLLM may take to start")
    return p


def main():
    p = common_arguments()
    p.add_argument("--templates", type=pathlib.Path, help="folder of further templates")
    p.add_argument("--requests", type=int, default=300)
    p.add_argument("--bad", type=int, default=100, help="requests with something wrong, besides")
    args = p.parse_args()
    print(f"seed {args.seed}", flush=True)
    maker = Requests(random.Random(args.seed))
    requests = [maker.good() for _ in range(args.requests)] + [maker.bad() for _ in range(args.bad)]
    templates = {f.stem: f.read_text() for d in (HERE / "templates", args.templates) if d for f in sorted(d.glob("*.jinja"))}
    comparison = Comparison(args)
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.names.split(","):
            folder = pathlib.Path(scratch) / name
            own, composed = model(folder, args.vocabularies / name)
            server = VLLM(args.vllm, folder, pathlib.Path(scratch) / f"{name}.log")
            try:
                server.wait(args.start)
                for t, source in {**({"its own": None} if own else {}), **templates}.items():
                    comparison.template(server, f"{name} {t}", folder, source, requests, composed)
            finally:
                server.stop()
    print(f"{comparison.compared} renders compared, {comparison.refused} refused, {comparison.failed} differ")
    sys.exit(1 if comparison.failed or not comparison.compared else 0)


if __name__ == "__main__":
    main()
