"""The scheduler's side: which blocks are loaded and saved in a step, and which events of the store the engine publishes."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .layout import Space
from .link import Link
from .protocol import MAX_KEYS, MAX_PIN, TIERS, Search, Session, StoreError
from .weights import Adapters

logger = logging.getLogger("stator_connector")

FIND_TIMEOUT = 0.5  # seconds that a request waits for the answer of the store, while steps go on
FOUND_FOR = 2.0  # seconds for which an answer counts
MAX_SEARCHES = 32  # requests to the store that wait for their answers
MAX_STEP_BLOCKS = 256  # blocks saved in a step, which are copied before its tokens are returned
MAX_NAMES = 1 << 18  # blocks whose engine hash is remembered
MAX_EVENTS = 1 << 16  # changes that wait for take_events


class Request(Protocol):
    """What is used of vLLM's request."""

    request_id: str
    num_tokens: int
    block_hashes: list[bytes]
    lora_request: Any
    kv_transfer_params: dict[str, Any] | None


def _pin_of(request: Request) -> int:
    """Return for how many seconds the router asks to pin the blocks of a request; 0 for none."""
    params = request.kv_transfer_params
    seconds = params.get("stator_pin_seconds") if isinstance(params, dict) else None
    return seconds if type(seconds) is int and 1 <= seconds <= MAX_PIN else 0


@dataclass(frozen=True)
class Transfer:
    """Blocks of a request to load or save: block i of the engine has key i."""

    request_id: str
    keys: list[bytes]
    blocks: list[int]


@dataclass
class Plan:
    """What the worker does in a step: loads that it begins, and saves that it completes."""

    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)


@dataclass(frozen=True)
class _Asked:
    """A search for the blocks of a request from one of them on."""

    start: int
    search: Search
    since: float  # when it began, by time.monotonic


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
        self._asked: dict[str, _Asked] = {}  # by request
        self._open: list[_Asked] = []  # searches that had no answer, the oldest one first
        self._spaces: dict[str, Space] = {}  # of blocks, by request
        self._loads: dict[str, Transfer] = {}  # of the next step
        self._saved: dict[str, int] = {}  # how many of its first blocks have been planned to be saved, by request
        self._adapters = Adapters()
        self._lock = threading.Lock()
        self._names: OrderedDict[bytes, bytes] = OrderedDict()  # guarded by _lock; engine hashes by key
        self._there: list[dict[bytes, bytes]] = [{} for _ in range(TIERS)]  # guarded by _lock; announced blocks
        self._changes: deque[Change] = deque()  # guarded by _lock

    def use(self, link: Link) -> None:
        """Set the link to the store."""
        self._link = link

    def pause(self) -> None:
        """Do not ask the store for a while, because it did not answer in time or a load failed."""
        if self._link is not None:
            self._link.pause()

    def reset(self) -> None:
        """Find nothing any more that was saved before, and save nothing of requests that have begun before."""
        self._space = self._space.within(os.urandom(16))
        for memory in (self._requests, self._asked, self._spaces):
            memory.clear()

    def _space_of(self, request: Request) -> Space | None:
        """Return the space of a request's blocks, or None while the weights of its adapter are not known."""
        space = self._spaces.get(request.request_id)
        if space is None:
            space = self._space
            if request.lora_request is not None:
                adapter = self._adapters.fingerprint_of(request.lora_request)
                space = space.within(b"adapter " + adapter.encode()) if adapter is not None else None
            if space is not None:
                self._spaces[request.request_id] = space
        return space

    def _session(self) -> Session | None:
        return self._link.ready_session if self._link is not None else None

    def matched_tokens(self, request: Request, computed: int) -> int | None:
        """Return how many tokens after the computed ones are worth loading, or None while the store has not answered.

        The last token of a request is always computed.
        """
        size = self._block_tokens
        start, end = computed // size, (request.num_tokens - 1) // size
        hashes = request.block_hashes[start : min(end, start + MAX_KEYS)]
        self._starts[request.request_id] = start
        session, space = self._session(), self._space_of(request)
        if not self._load or session is None or space is None or computed % size != 0 or not hashes:
            self._asked.pop(request.request_id, None)
            return 0
        try:
            found = self._found(session, request.request_id, start, lambda: self._keys(space, hashes))
        except StoreError as error:
            logger.warning("find blocks: %s; the engine computes them", error)
            self._asked.pop(request.request_id, None)
            self.pause()
            return 0
        return None if found is None else min(found, len(hashes)) * size

    def _found(self, session: Session, name: str, start: int, keys: Callable[[], list[bytes]]) -> int | None:
        """Return how many blocks of a request are worth loading, or None while the store has not answered. It does not wait."""
        now = time.monotonic()
        self._open = [asked for asked in self._open if not asked.search.done]
        if self._open and now - self._open[0].since >= FIND_TIMEOUT:
            raise StoreError(f"the KV store did not answer within {FIND_TIMEOUT} s")

        asked = self._asked.get(name)
        if asked is not None and asked.start == start and now - asked.since < FOUND_FOR:
            return asked.search.result().load if asked.search.done else None
        if len(self._open) < MAX_SEARCHES:
            asked = _Asked(start, session.search(keys(), start * self._block_tokens), now)
            self._open.append(asked)
            self._asked[name] = asked
        return None

    def allocated(self, request: Request, blocks: Sequence[int], external_tokens: int) -> None:
        """Note that a request has these blocks, of which it loads as many as external_tokens need."""
        name = request.request_id
        self._requests[name] = request
        self._asked.pop(name, None)
        start, count = self._starts.pop(name, 0), external_tokens // self._block_tokens
        if count > 0:
            keys = self._keys(self._spaces[name], request.block_hashes[start : start + count])  # matched_tokens has set the space
            self._loads[name] = Transfer(name, keys, list(blocks[start : start + count]))

    def plan(self, steps: Iterable[tuple[str, Sequence[int], int]]) -> Plan:
        """Return the plan of a step: of each request its blocks and how many tokens are computed at the end of the step.

        Every load of the requests that were allocated is in it, because vLLM waits for the end of each.
        """
        plan = Plan(loads=list(self._loads.values()))
        self._loads.clear()
        room = MAX_STEP_BLOCKS
        for name, blocks, computed in steps:
            request = self._requests.get(name)
            space = self._space_of(request) if request is not None and self._save else None
            if request is None or space is None:
                continue
            start = self._saved.get(name, 0)
            # Hashes exist of blocks whose tokens are final.
            end = min(computed // self._block_tokens, len(request.block_hashes), len(blocks), start + room)
            if end > start:
                plan.saves.append(Transfer(name, self._keys(space, request.block_hashes[start:end]), list(blocks[start:end])))
                self._saved[name] = end
                room -= end - start
        self._name(plan.saves)
        return plan

    def finished(self, request: Request) -> None:
        """Pin the saved blocks of a request that asks for it, and forget the request."""
        name = request.request_id
        session, space, seconds = self._session(), self._spaces.get(name), _pin_of(request)
        hashes = request.block_hashes[: min(self._saved.get(name, 0), MAX_KEYS)]
        if session is not None and space is not None and seconds and hashes:
            try:
                session.pin(self._keys(space, hashes), seconds)
            except StoreError as error:
                logger.debug("pin blocks: %s", error)
        for memory in (self._requests, self._starts, self._asked, self._saved, self._spaces):
            memory.pop(name, None)

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

    def _keys(self, space: Space, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the keys of engine hashes, which are remembered for events."""
        keys = [space.key(bytes(content)) for content in hashes]
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
