"""The scheduler's side: which blocks are loaded and saved in a step, and which events of the store the engine publishes."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .layout import Space
from .link import Link
from .protocol import MAX_KEYS, TIERS, Session, StoreError

logger = logging.getLogger("stator_connector")

FIND_TIMEOUT = 0.5  # seconds that a decision about a request may wait for the store
MAX_STEP_BLOCKS = 256  # blocks saved in a step, which are copied before its tokens are returned
MAX_NAMES = 1 << 18  # blocks whose engine hash is remembered
FAILED_FOR = 300.0  # seconds in which vLLM has computed again what could not be loaded
MAX_EVENTS = 1 << 16  # changes that wait for take_events


class Request(Protocol):
    """What is used of vLLM's request."""

    request_id: str
    num_tokens: int
    block_hashes: list[bytes]


@dataclass(frozen=True)
class Transfer:
    """Blocks of a request to load or save: block i of the engine has key i."""

    request_id: str
    keys: list[bytes]
    blocks: list[int]


@dataclass
class Plan:
    """What the worker does in a step. requests are all that the step computes."""

    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """Blocks that were stored in a tier or removed from it, by the engine's hashes."""

    tier: int
    stored: bool
    hashes: list[bytes]


class Scheduler:
    """Plans loads and saves. It is used by one thread, apart from changed."""

    def __init__(self, space: Space, block_tokens: int, load: bool = True, save: bool = True) -> None:
        """load is whether requests may use the store's blocks, and save whether they are written there. Call use with the link."""
        self._space = space
        self._block_tokens = block_tokens
        self._load = load
        self._save = save
        self._link: Link | None = None
        self._requests: dict[str, Request] = {}
        self._starts: dict[str, int] = {}  # the first block that a load would have, by request
        self._loads: dict[str, Transfer] = {}  # of the next step
        self._saved: dict[str, int] = {}  # how many of its first blocks have been planned to be saved, by request
        self._failed: dict[int, float] = {}  # until when a block of the engine may have wrong values
        self._tainted: set[str] = set()  # requests that had such a block
        self._lock = threading.Lock()
        self._names: OrderedDict[bytes, bytes] = OrderedDict()  # guarded by _lock; engine hashes by key
        self._there: list[dict[bytes, bytes]] = [{} for _ in range(TIERS)]  # guarded by _lock; announced blocks
        self._changes: deque[Change] = deque()  # guarded by _lock

    def use(self, link: Link) -> None:
        """Set the link to the store."""
        self._link = link

    def failed(self, blocks: Iterable[int]) -> None:
        """Note that blocks of the engine could not be loaded, and do not ask the store for a while.

        vLLM computes them again, but keeps them in its prefix cache until then. So other requests may compute with wrong values, and
        nothing is saved of requests that have these blocks.
        """
        until = time.monotonic() + FAILED_FOR
        self._failed.update((block, until) for block in blocks)
        self._pause()

    def _pause(self) -> None:
        if self._link is not None:
            self._link.pause()

    def _is_tainted(self, name: str, blocks: Sequence[int]) -> bool:
        """Return whether a request has had blocks with wrong values."""
        if self._failed:
            now = time.monotonic()
            self._failed = {block: until for block, until in self._failed.items() if until > now}
            if not self._failed.keys().isdisjoint(blocks):
                self._tainted.add(name)
        return name in self._tainted

    def _session(self) -> Session | None:
        return self._link.ready_session if self._link is not None else None

    def matched_tokens(self, request: Request, computed: int) -> int:
        """Return how many tokens after the computed ones are worth loading. The last token of a request is always computed."""
        size = self._block_tokens
        start, end = computed // size, (request.num_tokens - 1) // size
        hashes = request.block_hashes[start : min(end, start + MAX_KEYS)]
        self._starts[request.request_id] = start
        session = self._session()
        if not self._load or session is None or computed % size != 0 or not hashes:
            return 0
        try:
            found = session.find(self._keys(hashes), computed, FIND_TIMEOUT)
        except StoreError as error:
            logger.warning("find blocks: %s; the engine computes them", error)
            self._pause()
            return 0
        return min(found.load, len(hashes)) * size

    def allocated(self, request: Request, blocks: Sequence[int], external_tokens: int) -> None:
        """Note that a request has these blocks, of which it loads as many as external_tokens need."""
        name = request.request_id
        self._requests[name] = request
        start, count = self._starts.pop(name, 0), external_tokens // self._block_tokens
        self._loads.pop(name, None)
        if count > 0:
            keys = self._keys(request.block_hashes[start : start + count])
            self._loads[name] = Transfer(name, keys, list(blocks[start : start + count]))

    def plan(self, steps: Iterable[tuple[str, Sequence[int], int]]) -> Plan:
        """Return the plan of a step: of each request its blocks and how many tokens are computed at the end of the step."""
        plan = Plan()
        room = MAX_STEP_BLOCKS
        for name, blocks, computed in steps:
            plan.requests.append(name)
            load = self._loads.pop(name, None)
            if load is not None:
                plan.loads.append(load)
            request = self._requests.get(name)
            if request is None or not self._save or self._is_tainted(name, blocks):
                continue
            start = self._saved.get(name, 0)
            # Hashes exist of blocks whose tokens are final.
            end = min(computed // self._block_tokens, len(request.block_hashes), len(blocks), start + room)
            if end > start:
                plan.saves.append(Transfer(name, self._keys(request.block_hashes[start:end]), list(blocks[start:end])))
                self._saved[name] = end
                room -= end - start
        self._name(plan.saves)
        return plan

    def finished(self, name: str) -> None:
        """Forget a request."""
        for memory in (self._requests, self._starts, self._loads, self._saved):
            memory.pop(name, None)
        self._tainted.discard(name)

    def changed(self, tier: int, stored: bool, keys: list[bytes] | None) -> None:
        """Queue a change of the store as an event. It is called by the session's thread."""
        with self._lock:
            there = self._there[tier]
            if keys is None:
                hashes = list(there.values())
                there.clear()
            elif stored:
                new = {key: self._names[key] for key in keys if key in self._names and key not in there}
                there.update(new)
                hashes = list(new.values())
            else:
                hashes = [there.pop(key) for key in keys if key in there]
            if hashes:
                self._changes.append(Change(tier, stored, hashes))
            if len(self._changes) > MAX_EVENTS:
                self._forget_changes()

    def _forget_changes(self) -> None:
        """Replace changes that were not taken by removals of all that was announced. Call it with _lock."""
        logger.warning("%s changes of the KV store were not taken: the engine announces that its blocks are gone", MAX_EVENTS)
        gone: list[set[bytes]] = [set(there.values()) for there in self._there]
        for change in self._changes:
            gone[change.tier].update(change.hashes)
        self._changes.clear()
        for tier, hashes in enumerate(gone):
            self._there[tier].clear()
            if hashes:
                self._changes.append(Change(tier, False, list(hashes)))

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call."""
        with self._lock:
            changes = list(self._changes)
            self._changes.clear()
            return changes

    def _keys(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the keys of engine hashes, which are remembered for events."""
        keys = [self._space.key(bytes(content)) for content in hashes]
        with self._lock:
            for key, content in zip(keys, hashes):
                self._names[key] = bytes(content)
                self._names.move_to_end(key)
            while len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)
        return keys

    def _name(self, saves: list[Transfer]) -> None:
        """Name blocks before the worker saves them, so that this session is informed when they are stored."""
        session = self._session()
        if session is None:
            return
        keys = [key for save in saves for key in save.keys]
        try:
            if keys:
                session.name(keys)
        except StoreError as error:
            logger.debug("name blocks: %s", error)
