"""Read bodies as engines in Python do: with json.loads over the bytes, as Starlette has it, and with the members that vLLM, SGLang and
TensorRT-LLM read from the result. For each line of base64 this prints the members of transfers that it finds, with Python's text of
their values."""

import base64
import json
import sys

NAMES = [
    "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
    "bootstrap_pair_key", "decode_tp_size", "routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank",
]  # fmt: skip


def find(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    found = {name: repr(value[name]) for name in NAMES if name in value}
    for path in (["vllm_xargs"], ["sampling_params", "extra_args"]):
        below = value
        for name in path:
            below = below.get(name) if isinstance(below, dict) else None
        if isinstance(below, dict):
            found.update({".".join([*path, name]): repr(below[name]) for name in NAMES if name in below})
    return found


for line in sys.stdin:
    try:
        print(json.dumps(find(json.loads(base64.b64decode(line)))), flush=True)
    except Exception:
        print("{}", flush=True)
