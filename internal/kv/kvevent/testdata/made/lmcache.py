"""Prints messages as LMCache's coordinator publishes them (LMCache pull request 4768, in no release up to 0.5.6), one JSON object each.
Written after its description: three chunks of one prompt, a copy of the first in slower storage, a removal, and the end of a server.

    python -m venv v && v/bin/pip install msgspec
    v/bin/python lmcache.py > lmcache.jsonl
"""
import base64, hashlib, json, msgspec

CHUNK = 8


def chunk_hash(parent, tokens):
    return hashlib.sha256((parent or b"") + repr(tokens).encode()).digest()


def message(topic, seconds, events):
    payload = msgspec.msgpack.encode([seconds, events, None])
    print(json.dumps({"topic": topic, "payload_b64": base64.b64encode(payload).decode()}))


def stored(tokens, medium, count=None):
    events, parent = [], None
    for at in range(0, len(tokens), CHUNK):
        part = tokens[at:at + CHUNK]
        this = chunk_hash(parent, part)
        events.append(["BlockStored", [this], parent, part, len(part), None, medium])
        parent = this
    return events[:count]


prompt = list(range(100, 124))
host, pool = "kv@node:n1@m", "kv@pool:fs@m"
message(host, 1.5, stored(prompt, "lmcache-l1"))
message(pool, 2.5, stored(prompt, "lmcache-l2-fs", 1))
last = stored(prompt, "lmcache-l1")[2][1]
message(host, 3.5, [["BlockRemoved", last, "lmcache-l1"]])
message(host, 4.5, [["AllBlocksCleared"]])
