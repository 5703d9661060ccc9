"""Compares internal/kv/kvindex with NVIDIA Dynamo's RadixTree: make oracle-index.

Both are told what the workers of a fleet say while they serve a trace: every worker keeps the
blocks that it used last, and says what it stores and evicts. Before each request both are asked
how much of its prompt every worker holds, and every answer is compared. Then the same prompt is
stored by four workers whose engines hash differently: Dynamo's index refuses what hangs on a
parent that another worker named otherwise. Last, both apply events on one core, by CPU time;
Dynamo's takes JSON, so its figure includes reading that, and ours is decoded.

The exit status is 1 if an overlap differs, or if ours does not find all four workers.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("DYN_LOG", "off")
from dynamo._core import RadixTree  # noqa: E402

MASK = (1 << 64) - 1


def mix(x):
    """64 bits that differ in all places for neighbouring numbers (splitmix64)."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def content(block):
    return mix(block)


def engine(block, worker=0):
    """An engine's own hash; 0 is the seed that all share."""
    return mix(block ^ 0x5555 ^ worker << 50)


class Worker:
    """A worker's cache: it keeps what it used last and evicts from the end of prompts."""

    def __init__(self, number, capacity):
        self.number, self.capacity = number, capacity
        self.blocks = collections.OrderedDict()  # least recently used first

    def serve(self, prompt):
        """The operations that the request makes."""
        held = 0
        while held < len(prompt) and prompt[held] in self.blocks:
            held += 1
        new = prompt[held:]
        for b in reversed(prompt):  # the end of the prompt goes before its beginning
            self.blocks[b] = None
            self.blocks.move_to_end(b)
        gone = []
        while len(self.blocks) > self.capacity:
            gone.append(self.blocks.popitem(last=False)[0])
        if gone:
            yield {"op": "remove", "rank": self.number, "hashes": [engine(b) for b in gone if b not in new]}
            new = new[: len(new) - sum(b in gone for b in new)]
        if new:
            parent = engine(prompt[held - 1]) if held else None
            yield {"op": "store", "rank": self.number, "parent": parent,
                   "hashes": [engine(b) for b in new], "blocks": [content(b) for b in new]}


def traced(args):
    """The operations of a fleet that serves the trace, with a query before each request."""
    rng = random.Random(args.seed)
    workers = [Worker(i, args.capacity) for i in range(args.workers)]
    with open(args.trace) as f:
        for n, line in enumerate(f):
            if n == args.requests:
                return
            prompt = [(h << 8) + i for h in json.loads(line)["hash_ids"] for i in range(args.split)]
            yield {"op": "query", "blocks": [content(b) for b in prompt]}
            # Where most of it is, or anywhere: both rules make prefixes and evictions differ.
            best = max(workers, key=lambda w: sum(b in w.blocks for b in prompt))
            yield from (best if rng.random() < 0.5 else rng.choice(workers)).serve(prompt)


def large(args):
    """Chains of 16 events of 64 blocks until 8 workers hold a million."""
    rng = random.Random(args.seed)
    for chain in range(args.blocks // 1024):
        first = rng.getrandbits(50) << 10
        blocks = [first + i for i in range(1024)]
        for at in range(0, 1024, 64):
            part = blocks[at:at + 64]
            yield {"op": "store", "rank": chain % 8, "parent": engine(blocks[at - 1]) if at else None,
                   "hashes": [engine(b) for b in part], "blocks": [content(b) for b in part]}


def differing(_):
    """One prompt of 6,250 blocks, stored by four workers whose engines hash differently."""
    prompt = [1 << 60 | i for i in range(6250)]
    for worker in range(4):
        for at in range(0, len(prompt), 64):
            part = prompt[at:at + 64]
            yield {"op": "store", "rank": worker, "parent": engine(prompt[at - 1], worker + 1) if at else None,
                   "hashes": [engine(b, worker + 1) for b in part], "blocks": [content(b) for b in part]}
    yield {"op": "query", "blocks": [content(b) for b in prompt]}


def dynamo_event(number, op):
    if op["op"] == "store":
        data = {"stored": {"parent_hash": op["parent"], "blocks": [
            {"block_hash": h, "tokens_hash": b} for h, b in zip(op["hashes"], op["blocks"])]}}
    else:
        data = {"removed": {"block_hashes": op["hashes"]}}
    return json.dumps({"event_id": number, "dp_rank": 0, "data": data}).encode()


def worker_of(key):
    return key[0] if isinstance(key, tuple) else key


def dynamo(operations):
    """Dynamo's answers, the events it refused, and its block operations and CPU seconds."""
    tree, answers, refused = RadixTree(), [], 0
    for n, op in enumerate(operations):
        if op["op"] == "query":
            scores = tree.find_matches(op["blocks"]).scores
            answers.append({worker_of(k): v for k, v in scores.items() if v})
            continue
        try:
            tree.apply_event(op["rank"], dynamo_event(n, op))
        except Exception:
            refused += 1
    events = [(op["rank"], dynamo_event(n, op)) for n, op in enumerate(operations) if op["op"] != "query"]
    blocks, seconds = 0, 0.0
    each = sum(len(op["hashes"]) for op in operations if op["op"] != "query")
    while seconds < 1:
        tree = RadixTree()
        start = time.process_time()
        for rank, event in events:
            try:
                tree.apply_event(rank, event)
            except Exception:
                pass
        tree.find_matches([1])  # the tree has a thread of its own: wait for it
        seconds += time.process_time() - start
        blocks += each
    return answers, refused, blocks, seconds


def ours(program, operations):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for op in operations:
            f.write(json.dumps(op) + "\n")
        f.flush()
        done = subprocess.run([program, f.name], stdout=subprocess.PIPE, check=True, env=os.environ | {"GOMAXPROCS": "1"})
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [{int(k): v for k, v in a.items()} for a in lines[:-1]], lines[-1]


def compare(theirs, mine, workers):
    """How many (worker, query) pairs there are, how many have an overlap, and which differ."""
    pairs = overlapping = 0
    different = []
    for n, (a, b) in enumerate(zip(theirs, mine, strict=True)):
        for w in range(workers):
            pairs += 1
            overlapping += a.get(w, 0) > 0
            if a.get(w, 0) != b.get(w, 0):
                different.append((n, w, a.get(w, 0), b.get(w, 0)))
    return pairs, overlapping, different


def speed(blocks, seconds):
    return f"{blocks / seconds / 1e6:6.2f} M/s ({seconds / blocks * 1e9:4.0f} ns)"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--program", required=True, help="test/oracle/index, built")
    p.add_argument("--trace", default="../shared/traces/mooncake/conversation_trace.jsonl", help="in Mooncake's form")
    p.add_argument("--requests", type=int, default=-1, help="of the trace; all where it is not given")
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--capacity", type=int, default=12_000, help="blocks that a worker keeps")
    p.add_argument("--split", type=int, default=4, help="blocks that stand for each block of the trace")
    p.add_argument("--blocks", type=int, default=1 << 20, help="of the speed test")
    p.add_argument("--seed", type=int, default=random.getrandbits(32))
    args = p.parse_args()
    if not pathlib.Path(args.trace).exists():
        sys.exit(f"no trace at {args.trace}: give one with --trace")
    print(f"seed {args.seed}")
    failed = False

    operations = list(traced(args))
    theirs, refused, blocks, seconds = dynamo(operations)
    mine, measured = ours(args.program, operations)
    pairs, overlapping, different = compare(theirs, mine, args.workers)
    applied = sum(len(op["hashes"]) for op in operations if op["op"] != "query")
    print(f"\ntrace: {len(mine)} queries of {args.workers} workers, {applied} block operations; Dynamo refused {refused} events")
    print(f"  equal overlaps    {pairs - len(different)} of {pairs} = {100 * (pairs - len(different)) / pairs:.3f} %; {overlapping} are not 0")
    print(f"  apply, Dynamo     {speed(blocks, seconds)} with JSON")
    print(f"  apply, ours       {speed(measured['blocks'], measured['cpu_seconds'])} decoded")
    for n, w, a, b in different[:10]:
        print(f"  query {n}, worker {w}: Dynamo {a}, ours {b}")
    failed |= bool(different) or not overlapping

    operations = list(differing(args))
    theirs, refused, _, _ = dynamo(operations)
    mine, _ = ours(args.program, operations)
    found = [[sum(n == 6250 for n in answer.values()) for answer in side][0] for side in (theirs, mine)]
    print(f"\nfour workers hold a prompt of 6250 blocks, each under hashes of its own; Dynamo refused {refused} events")
    print(f"  Dynamo finds      {found[0]} of 4: {sorted(theirs[0].items())}")
    print(f"  ours finds        {found[1]} of 4: {sorted(mine[0].items())}")
    failed |= found[1] != 4

    operations = list(large(args))
    _, _, blocks, seconds = dynamo(operations)
    _, measured = ours(args.program, operations)
    print(f"\n{args.blocks} blocks stored by 8 workers, 64 to an event")
    print(f"  apply, Dynamo     {speed(blocks, seconds)} with JSON")
    print(f"  apply, ours       {speed(measured['blocks'], measured['cpu_seconds'])} decoded; {measured['bytes'] / measured['pairs']:.1f} bytes a pair")
    sys.exit(failed)


if __name__ == "__main__":
    main()
