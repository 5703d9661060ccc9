"""The parts of vLLM and torch that the connector uses, because neither is installed where the tests run."""

import ctypes
import enum
import sys
import types
from types import SimpleNamespace


class FakeBase:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._connector_metadata = None

    def bind_connector_metadata(self, metadata):
        self._connector_metadata = metadata

    def _get_connector_metadata(self):
        assert self._connector_metadata is not None
        return self._connector_metadata


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class FullAttentionSpec(SimpleNamespace):
    pass


class BlockStored(SimpleNamespace):
    pass


class BlockRemoved(SimpleNamespace):
    pass


def install() -> None:
    """Make `import vllm...` find the fakes."""
    modules = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.distributed": {},
        "vllm.distributed.kv_events": {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved},
        "vllm.distributed.kv_transfer": {},
        "vllm.distributed.kv_transfer.kv_connector": {},
        "vllm.distributed.kv_transfer.kv_connector.v1": {},
        "vllm.distributed.kv_transfer.kv_connector.v1.base": {
            "KVConnectorBase_V1": FakeBase,
            "KVConnectorMetadata": type("KVConnectorMetadata", (), {}),
            "KVConnectorRole": Role,
            "SupportsHMA": type("SupportsHMA", (), {}),
        },
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.kv_cache_utils": {"maybe_convert_block_hash": lambda content: int.from_bytes(content[-8:], "big")},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.cpu_attn": {"_get_attn_isa": lambda dtype, block, head: "vec"},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module


class Tensor:
    """A contiguous tensor of two-byte numbers in host memory. strides are in numbers."""

    def __init__(self, *shape: int, strides: tuple[int, ...] | None = None, device: str = "cpu") -> None:
        self.shape = shape
        dense, size = [], 1
        for length in reversed(shape):
            dense.insert(0, size)
            size *= length
        self._strides = strides or tuple(dense)
        self.device = SimpleNamespace(type=device)
        self.memory = (ctypes.c_char * (2 * max(size, self._strides[0] * shape[0])))()

    def stride(self):
        return self._strides

    def element_size(self):
        return 2

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def fill(self, block: int, data: bytes) -> None:
        at = block * self._strides[0] * 2
        self.memory[at : at + len(data)] = data

    def block(self, block: int, size: int) -> bytes:
        at = block * self._strides[0] * 2
        return self.memory[at : at + size]


def vllm_config(**changes) -> SimpleNamespace:
    """Return a configuration that is supported. changes are of members, with dots as __."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        device_config=SimpleNamespace(device_type="cpu"),
        speculative_config=None,
        cache_config=SimpleNamespace(enable_prefix_caching=True, prefix_caching_hash_algo="sha256"),
        model_config=SimpleNamespace(model="m", revision="r"),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
        kv_transfer_config=SimpleNamespace(
            engine_id="e",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"socket": "/nonexistent/kv.sock"},
            is_kv_producer=True,
            is_kv_consumer=True,
        ),
    )
    return _changed(config, changes)


def cache_config(**changes) -> SimpleNamespace:
    """Return the caches of a model with two layers, whose blocks have 16 tokens of 32 numbers."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=16, head_size_v=16, dtype="torch.bfloat16")
    group = SimpleNamespace(layer_names=["layers.10.attn", "layers.9.attn"], kv_cache_spec=spec)
    config = SimpleNamespace(num_blocks=8, kv_cache_groups=[group], hash_block_size=None)
    return _changed(config, changes, spec=spec)


def _changed(config, changes, **roots):
    for path, value in changes.items():
        *parents, name = path.split("__")
        at = config
        for parent in parents:
            at = roots.get(parent) or getattr(at, parent)
        setattr(at, name, value)
    return config


def request(name: str, tokens: int, first_hash: int = 0) -> SimpleNamespace:
    """Return a request without adapter, with the hashes of its full blocks."""
    hashes = [(first_hash + number).to_bytes(32, "big") for number in range(tokens // 16)]
    return SimpleNamespace(request_id=name, num_tokens=tokens, block_hashes=hashes, lora_request=None, kv_transfer_params=None)


def step(*requests: tuple[str, list[int], int, int], new: bool = True) -> SimpleNamespace:
    """Return a scheduler output of requests: name, blocks, tokens computed before the step, tokens of the step."""
    blocks = {name: (ids,) for name, ids, _, _ in requests}
    news = [SimpleNamespace(req_id=name, num_computed_tokens=before) for name, _, before, _ in requests] if new else []
    cached = [] if new else requests
    return SimpleNamespace(
        scheduled_new_reqs=news,
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _, _, _ in cached], num_computed_tokens=[before for _, _, before, _ in cached]
        ),
        num_scheduled_tokens={name: count for name, _, _, count in requests},
        kv_connector_block_state=SimpleNamespace(get_block_ids=blocks.get),
    )
