"""Encodes events with SGLang's own message classes; prints one JSON object per message.

    python sglang.py path/to/sglang/srt/disaggregation/kv_events.py > sglang-maps.jsonl

The classes are taken out of the file, so that nothing of SGLang but msgspec is needed. Only
what is in the events is ours.
"""
import ast, base64, enum, json, sys
from typing import Any, Optional, Union

import msgspec

WANTED = {"EventBatch", "KVCacheEvent", "StorageMedium", "BlockStored", "BlockRemoved", "AllBlocksCleared", "KVEventBatch"}
tree = ast.parse(open(sys.argv[1]).read())
tree.body = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in WANTED]
scope = {"msgspec": msgspec, "enum": enum, "Any": Any, "Optional": Optional, "Union": Union}
exec(compile(tree, sys.argv[1], "exec"), scope)
Batch, Stored, Removed, Cleared = (scope[n] for n in ("KVEventBatch", "BlockStored", "BlockRemoved", "AllBlocksCleared"))
fields = Stored.__struct_fields__
old = "medium" not in fields

def stored(hashes, parent, tokens, **more):
    more = {k: v for k, v in more.items() if k in fields}
    return Stored(block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=4, lora_id=None, **more)

def removed(hashes, medium):
    return Removed(block_hashes=hashes) if old else Removed(block_hashes=hashes, medium=medium)

messages = [
    [stored([-5, 1 << 62], None, list(range(8)), medium="GPU")],
    [stored([77], 1 << 62, [100, 151643, 70000, 3], medium="GPU", session_id="s-1")],
    [stored([-9], None, [1, 2, 3, 4], medium="GPU", cache_salt="tenant"),
     stored([-10], -9, [5, 6, 7, 8], medium="GPU", cache_salt="tenant")],
    [stored([31], None, [1, 2, 3, 4], medium="GPU", lora_name="adapter")],
    [stored([-5], None, [0, 1, 2, 3], medium="CPU_PINNED"), removed([-5], "GPU")],
    [stored([-9], None, [1, 2, 3, 4], medium="DISK", cache_salt="tenant"), removed([-9, -10], "GPU")],
    [stored([41], None, [(1, 2), (2, 3), (3, 4), (4, 5)], medium="EXTERNAL")],
    [removed([41, 77], "EXTERNAL"), Cleared()],
]
encoder = msgspec.msgpack.Encoder()
for seq, events in enumerate(messages):
    batch = Batch(ts=1763740800.5 + seq, events=events, **({"attn_dp_rank": 2} if "attn_dp_rank" in Batch.__struct_fields__ else {}))
    payload = encoder.encode(batch)
    said = msgspec.to_builtins(batch)
    print(json.dumps({"seq": seq, "payload_b64": base64.b64encode(payload).decode(), "said": said}))
