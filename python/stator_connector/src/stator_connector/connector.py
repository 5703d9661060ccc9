"""The class that vLLM loads: --kv-transfer-config with kv_connector StatorConnector and kv_connector_module_path of this module."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from .config import Unsupported, layout_of, packing_of, socket_path
from .layout import Layout
from .link import Link
from .pages import Pages, UnsupportedCache
from .scheduler import Plan, Scheduler
from .worker import Worker

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("stator_connector")

# The store's tiers as vLLM's events name them. Blocks in the engine's own memory are announced by vLLM.
_MEDIA = {1: "CPU", 2: "STORAGE", 3: "EXTERNAL"}


@dataclass
class StatorMetadata(KVConnectorMetadata):
    """What the scheduler sends to the worker for a step."""

    plan: Plan = field(default_factory=Plan)


class StatorConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads blocks from the node's store beside the engine's steps, and saves those that a step has completed.

    Without the store, or in an engine that it does not support, the engine computes everything.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Begin a session with the store in the background. Raise ValueError if no socket is configured."""
        super().__init__(vllm_config, role, kv_cache_config)
        self._path = socket_path(self._kv_transfer_config.kv_connector_extra_config or {})
        self._engine = f"vllm {self._kv_transfer_config.engine_id} {role.name.lower()}"
        self._cache_config = kv_cache_config
        self._layout = _layout(vllm_config, kv_cache_config)
        self._link: Link | None = None
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._invalid: set[int] = set()
        if role == KVConnectorRole.WORKER:
            self._worker = Worker()
        elif self._layout is not None:
            self._scheduler = self._start_scheduler(self._layout, vllm_config)

    def _start_scheduler(self, layout: Layout, vllm_config: Any) -> Scheduler:
        transfer = self._kv_transfer_config
        load = transfer.is_kv_consumer
        if load and transfer.kv_load_failure_policy != "recompute":
            logger.error('Blocks are only saved and never loaded: set "kv_load_failure_policy":"recompute" in --kv-transfer-config, '
                         "because otherwise vLLM fails requests whose blocks cannot be loaded")  # fmt: skip
            load = False
        scheduler = Scheduler(layout.space(), layout.page_tokens, load, transfer.is_kv_producer)
        events = vllm_config.kv_events_config
        wanted = events is not None and events.enable_kv_cache_events
        self._link = Link(self._path, self._engine, layout, scheduler.changed if wanted else None)
        scheduler.use(self._link)
        return scheduler

    @property
    def requires_kv_delivery(self) -> bool:
        """Blocks that are not saved are computed again, so no request waits for them."""
        return False

    def shutdown(self) -> None:
        """End the session."""
        if self._link is not None:
            self._link.close()
        if self._worker is not None:
            self._worker.close()

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Use these caches of the engine, by layer."""
        if self._worker is None or self._layout is None:
            return
        names = sorted(self._cache_config.kv_cache_groups[0].layer_names, key=_natural)
        try:
            tensors = [kv_caches[name] for name in names]
            pages = Pages(tensors, self._layout.layer_bytes, self._cache_config.num_blocks)
        except (KeyError, UnsupportedCache) as error:
            logger.error("The KV store is not used: %s", error)
            return
        if self._link is not None:
            self._link.close()  # vLLM may register new caches in the place of old ones
        self._link = Link(self._path, self._engine, self._layout)
        self._worker.use(self._link, pages)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the loads of a step. They end in the background, and get_finished reports them."""
        if self._worker is not None:
            self._worker.load(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No step uses blocks that are being loaded, so there is nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved with all their layers, in wait_for_save."""

    def wait_for_save(self) -> None:
        """Save the blocks that the step has completed."""
        if self._worker is not None:
            self._worker.save(self._plan())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the requests whose loads have ended. vLLM frees blocks of aborted ones, and caches those of others, only then."""
        if self._worker is None:
            return None, None
        ended, failed = self._worker.take_ended()
        self._invalid |= failed
        return None, ended or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that vLLM has to compute, because they could not be loaded, of the requests of get_finished."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def _plan(self) -> Plan:
        metadata = self._get_connector_metadata()
        return metadata.plan if isinstance(metadata, StatorMetadata) else Plan()

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens are worth loading, and that they are loaded beside steps. None means that vLLM asks again."""
        if self._scheduler is None:
            return 0, False
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note the blocks of a request."""
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return what the worker does in a step."""
        if self._scheduler is None:
            return StatorMetadata()
        return StatorMetadata(self._scheduler.plan(_steps(scheduler_output)))

    def update_connector_output(self, connector_output: Any) -> None:
        """Pause after loads that failed."""
        if self._scheduler is not None and getattr(connector_output, "invalid_block_ids", None):
            self._scheduler.pause()

    def reset_cache(self) -> bool:
        """Find nothing any more that was saved before, such as after a change of the weights in place."""
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Pin the blocks of a request, if it asks for it, and forget it. Saves have ended with their step; vLLM itself keeps the blocks of a load that has not ended."""
        if self._scheduler is not None:
            self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """Forget a request, as request_finished does."""
        return self.request_finished(request, [])

    def take_events(self) -> Iterable[Any]:
        """Return events of the store's tiers, by the hashes of the engine's own events."""
        if self._scheduler is None:
            return ()
        return [_event(change.tier, change.stored, change.hashes) for change in self._scheduler.take_changes()]


def _layout(vllm_config: Any, kv_cache_config: Any) -> Layout | None:
    """Return the layout of the engine's blocks, or None if the engine is not supported."""
    try:
        return layout_of(vllm_config, kv_cache_config, _packing(kv_cache_config))
    except Unsupported as error:
        logger.error("The KV store is not used: %s", error)
        return None


def _packing(kv_cache_config: Any) -> str:
    try:
        import vllm
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        return packing_of(_get_attn_isa(spec.dtype, spec.block_size, spec.head_size), vllm.__version__)
    except (ImportError, AttributeError, IndexError) as error:
        raise Unsupported(f"how vLLM arranges its blocks is not known: {error}") from error


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what to sort layers by, so that layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _steps(scheduler_output: Any) -> Iterable[tuple[str, list[int], int]]:
    """Yield each request of a step, its blocks, and how many of its tokens are computed after the step."""
    computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
    cached = scheduler_output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens))
    for name, before in computed.items():
        blocks = scheduler_output.kv_connector_block_state.get_block_ids(name)
        if blocks:
            yield name, blocks[0], before + scheduler_output.num_scheduled_tokens[name]


def _event(tier: int, stored: bool, hashes: list[bytes]) -> Any:
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    external = [maybe_convert_block_hash(content) for content in hashes]
    if not stored:
        return BlockRemoved(block_hashes=external, medium=_MEDIA[tier], group_idx=0)
    return BlockStored(
        block_hashes=external,
        parent_block_hash=None,
        token_ids=[],
        block_size=0,
        lora_id=None,
        medium=_MEDIA[tier],
        lora_name=None,
        group_idx=0,
    )
