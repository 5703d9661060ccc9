"""The layout of an engine's blocks, from vLLM's configuration."""

from __future__ import annotations

import os
from typing import Any

from . import weights
from .layout import Layout

SOCKET_VARIABLE = "STATOR_KV_SOCKET"
MODEL_VARIABLE = "STATOR_KV_MODEL"

_DTYPES = ("float32", "float16", "bfloat16")


class Unsupported(Exception):
    """The engine is configured in a way that the connector does not support."""


def socket_path(extra: dict[str, Any]) -> str:
    """Return the path of the store's socket, from kv_connector_extra_config or the environment. Raise ValueError without one."""
    path = extra.get("socket") or os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise ValueError(f'set {SOCKET_VARIABLE}, or "socket" in kv_connector_extra_config, to the path of the KV store\'s socket')
    return str(path)


def layout_of(vllm_config: Any, kv_cache_config: Any, packing: str) -> Layout:
    """Return the layout of the engine's blocks. Raise Unsupported, which names what to change.

    packing distinguishes how engines arrange the numbers in a block of a layer, see packing_of.
    """
    _check_engine(vllm_config)
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Unsupported(f"the model has {len(groups)} groups of KV caches: only models with one kind of attention are supported")
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec":
        raise Unsupported(f"the model's attention is {type(spec).__name__}: only FullAttentionSpec is supported")
    if getattr(spec, "head_size_v", None) not in (None, spec.head_size):
        raise Unsupported("keys and values of different sizes are not supported")
    if kv_cache_config.hash_block_size not in (None, spec.block_size):
        raise Unsupported(f"hashes are of {kv_cache_config.hash_block_size} tokens, and blocks of {spec.block_size}: both must be equal")
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise Unsupported(f"the KV cache has the type {dtype}: use one of {', '.join(_DTYPES)} (--kv-cache-dtype auto)")

    try:
        of_weights = weights.of_model(vllm_config)
    except weights.WeightsError as error:
        raise Unsupported(f"blocks of other weights could be loaded: {error}") from error
    layout = Layout(
        model=os.environ.get(MODEL_VARIABLE) or str(vllm_config.model_config.model),
        weights=of_weights,
        layers=len(groups[0].layer_names),
        page_tokens=spec.block_size,
        outer=2,
        inner=spec.num_kv_heads * spec.head_size,
        dtype=dtype,
        hashing=f"vllm {_hashing_of(vllm_config.cache_config)}; {packing}",
    )
    try:
        layout.validate()
    except ValueError as error:
        raise Unsupported(str(error)) from error
    return layout


def packing_of(isa: str, version: str) -> str:
    """Return what distinguishes the arrangement of numbers in a block of vLLM's CPU attention.

    The kernels arrange keys for the instructions that they use, so the bytes of engines with other instructions cannot be exchanged. A
    version of vLLM may change the arrangement too.
    """
    return f"CPU_ATTN {isa} {version}"


def _check_engine(vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise Unsupported(f"{name} is {getattr(parallel, name)}: only 1 is supported")
    if vllm_config.device_config.device_type != "cpu":
        raise Unsupported(f"the engine runs on {vllm_config.device_config.device_type}: only the CPU attention of vLLM is supported")
    if getattr(vllm_config, "speculative_config", None) is not None:
        raise Unsupported("speculative decoding is not supported: blocks may have tokens that are rejected")
    if not vllm_config.cache_config.enable_prefix_caching:
        raise Unsupported("prefix caching is off: set --enable-prefix-caching, because blocks are named by its hashes")


def _hashing_of(cache_config: Any) -> str:
    """Return the algorithm and seed of block hashes. Without a seed, algorithms for speed have a random one in each process."""
    algorithm = str(cache_config.prefix_caching_hash_algo)
    seed = os.environ.get("PYTHONHASHSEED")
    if algorithm.startswith("xxhash") and seed is None:
        raise Unsupported(f"--prefix-caching-hash-algo {algorithm} needs the environment variable PYTHONHASHSEED, equal on all engines")
    return algorithm if seed is None else f"{algorithm} seed {seed}"
