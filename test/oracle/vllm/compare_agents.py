"""Compares requests of the Messages and the Responses API as stator prepares them with those of a running vLLM.

It works as compare.py does, with vLLM's /v1/messages/render and /v1/responses/render. These take no template, so that vLLM is started
for each vocabulary and template. A request that stator does not read must be rare, and is counted; ids that stator has must be vLLM's.
"""

import collections
import concurrent.futures
import gzip
import json
import pathlib
import random
import sys
import tempfile
import unicodedata

from agents import Agents
from compare import HERE, Comparison, VLLM, common_arguments, model, ours

APIS = ("messages", "responses")
PATHS = {"messages": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
RECORDED = HERE.parent.parent.parent / "internal/prompt/testdata/clients.jsonl.gz"


def recorded(api):
    """Returns the requests of this API that agents were recorded to send, with a bound of answers that the model's context has room for."""
    with gzip.open(RECORDED, "rt") as lines:
        samples = [json.loads(line) for line in lines]
    bound = {"responses": "max_output_tokens"}.get(api, "max_tokens")
    return [{**s["body"], "model": "m", bound: 1000} for s in samples if s["path"].partition("?")[0] == PATHS[api]]


class Agreement(Comparison):
    def __init__(self, args):
        super().__init__(args)
        self.counts = collections.Counter()

    def compare(self, server, name, folder, api, requests, composed):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            theirs = list(pool.map(lambda q: server.render(q, None, PATHS[api] + "/render"), requests))
        ids, texts = (ours(self.args.stator, c, folder, requests, api) for c in ("tokenize", "render"))
        counts = collections.Counter()
        for q, (want, text, why), i, t in zip(requests, theirs, ids, texts):
            error = i.get("error")
            unread = error and error["code"] == "unread"
            if want is None:
                counts["refused by vLLM"] += 1
                counts[f"refused by vLLM, {'not read' if unread else 'refused' if error else 'read'}"] += 1
                if self.args.refusals:
                    print(f"REFUSED {name} {api}: {why[:300]}\n  request {str(q)[: self.args.width]}")
            elif unread:
                counts["not read"] += 1
                if self.args.refusals:
                    print(f"NOT READ {name} {api}: {error['message']}\n  request {str(q)[: self.args.width]}")
            elif error:
                self.differ(f"{name} {api}", q, f"only stator refuses: {error['message']}", "", "")
            else:
                got = t["prompt"]
                if composed:
                    text, got = unicodedata.normalize("NFC", text), unicodedata.normalize("NFC", got)
                counts["equal" if want == i["ids"] else "different"] += 1
                if want != i["ids"]:
                    self.differ(f"{name} {api}", q, "ids", text if text != got else want, got if text != got else i["ids"])
        print(f"{name} {api}: {dict(counts)}", flush=True)
        self.counts += counts


def main():
    p = common_arguments()
    p.add_argument("--templates", default="own,everything,parts,macro", help="templates, by name; own is the vocabulary's")
    p.add_argument("--requests", type=int, default=300, help="of each API, for each vocabulary and template")
    p.add_argument("--refusals", action="store_true", help="show requests that are refused or not read")
    args = p.parse_args()
    print(f"seed {args.seed}", flush=True)
    agreement = Agreement(args)
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.names.split(","):
            for template in args.templates.split(","):
                folder = pathlib.Path(scratch) / f"{name}-{template}"
                own, composed = model(folder, args.vocabularies / name)
                if template != "own":
                    (folder / "chat_template.jinja").write_text((HERE / "templates" / f"{template}.jinja").read_text())
                elif not own:
                    continue
                server = VLLM(args.vllm, folder, pathlib.Path(scratch) / f"{name}-{template}.log")
                try:
                    server.wait(args.start)
                    maker = Agents(random.Random(args.seed))
                    for api in PATHS:
                        agreement.compare(server, f"{name} {template}, recorded", folder, api, recorded(api), composed)
                    for api in APIS:
                        agreement.compare(server, f"{name} {template}", folder, api, [maker.request(api) for _ in range(args.requests)], composed)
                finally:
                    server.stop()
    print(f"{dict(agreement.counts)}, {agreement.failed} differ")
    sys.exit(1 if agreement.failed or not agreement.counts["equal"] else 0)


if __name__ == "__main__":
    main()
