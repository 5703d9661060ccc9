"""The worker's side: copies blocks from the store beside the engine's steps, and to the store after a step."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .link import Link
from .pages import Pages
from .protocol import Session, StoreError
from .scheduler import Plan, Transfer

logger = logging.getLogger("stator_connector")

LOAD_TIMEOUT = 5.0  # seconds from the step that begins a load to its end
LOADERS = 4  # loads that run at once; others wait, and their time counts
SAVE_WAIT = 0.05  # seconds that a step may wait for the store altogether, besides copying
BATCH = 64  # blocks of one reservation

_Answer = TypeVar("_Answer")


class _Wait:
    """The time that a step may still wait for the store."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def of(self, ask: Callable[[float], _Answer]) -> _Answer:
        """Return the answer of ask, which gets the time that is left."""
        began = time.monotonic()
        try:
            return ask(max(0.0, self._left))
        finally:
            self._left -= time.monotonic() - began


class Worker:
    """Carries out plans. It is used by one thread, which never waits for a load.

    vLLM schedules a request, and caches its blocks, only after the end of its load is reported. Until then it keeps the blocks, also of
    a request that was aborted. So a load is reported exactly once, and after its last write.
    """

    def __init__(self) -> None:
        self._link: Link | None = None
        self._pages: Pages | None = None
        self._loaders = ThreadPoolExecutor(LOADERS, thread_name_prefix="stator-kv-load")
        self._lock = threading.Lock()
        self._ended: set[str] = set()  # guarded by _lock; requests whose loads have ended since the last report
        self._failed: set[int] = set()  # guarded by _lock; the engine's blocks that these could not load

    def use(self, link: Link, pages: Pages) -> None:
        """Set the link to the store, and the engine's cache."""
        self._link = link
        self._pages = pages

    def close(self) -> None:
        """Begin no further load. Running ones end with their session."""
        self._loaders.shutdown(wait=False, cancel_futures=True)

    def load(self, plan: Plan) -> None:
        """Begin the loads of a plan. Their ends are in take_ended."""
        deadline = time.monotonic() + LOAD_TIMEOUT
        for transfer in plan.loads:
            self._loaders.submit(self._load, self._link, self._pages, transfer, deadline)

    def _load(self, link: Link | None, pages: Pages | None, transfer: Transfer, deadline: float) -> None:
        """Load the blocks of a request, and report the end."""
        loaded = 0
        try:
            session = link.ready_session if link is not None else None
            if session is None or pages is None:
                raise StoreError("the KV store is not used at present")
            loaded = self._fetch(session, pages, transfer, deadline)
            if loaded < len(transfer.blocks):
                logger.warning("load %d blocks: the store has the first %d; the engine computes the rest", len(transfer.blocks), loaded)
        except Exception as error:  # the engine can compute the blocks in any case
            logger.warning("load %d blocks: %s; the engine computes them", len(transfer.blocks), error)
            if link is not None:
                link.pause()  # loads that wait end at once
        finally:
            with self._lock:
                self._failed.update(transfer.blocks[loaded:])
                self._ended.add(transfer.request_id)

    def _fetch(self, session: Session, pages: Pages, transfer: Transfer, deadline: float) -> int:
        """Copy the blocks of a request into the engine's cache, and return how many of the first ones are there."""
        lease = session.fetch(transfer.keys, _left(deadline))
        started = time.monotonic()
        for slot, block in zip(lease.slots, transfer.blocks):
            pages.write(block, session.arena.slot(slot)[: pages.block_bytes])
        took = time.monotonic() - started
        # The store may have ended the session, and used the slots for other blocks, while they were copied.
        session.check(_left(deadline))
        lease.release(max(1, int(took * 1e6)))
        return len(lease.slots)

    def take_ended(self) -> tuple[set[str], set[int]]:
        """Return the requests whose loads have ended since the last call, and the blocks that these loads do not have."""
        with self._lock:
            ended, failed = self._ended, self._failed
            self._ended, self._failed = set(), set()
        return ended, failed

    def save(self, plan: Plan) -> None:
        """Save the blocks of a plan that the store does not have. What fails is not saved."""
        wait = _Wait(SAVE_WAIT)
        for transfer in plan.saves:
            if self._link is None or self._pages is None:
                return
            session = self._link.ready_session
            if session is None:
                return
            try:
                self._save(session, self._pages, transfer, wait)
            except Exception as error:  # the blocks are only missing in the store
                logger.warning("save %d blocks: %s", len(transfer.blocks), error)
                self._link.pause()

    def _save(self, session: Session, pages: Pages, transfer: Transfer, wait: _Wait) -> None:
        there = wait.of(lambda left: session.find(transfer.keys, 0, left)).blocks
        for start in range(there, len(transfer.keys), BATCH):
            self._save_batch(session, pages, transfer.keys[start : start + BATCH], transfer.blocks[start : start + BATCH], wait)

    def _save_batch(self, session: Session, pages: Pages, keys: list[bytes], blocks: list[int], wait: _Wait) -> None:
        slots = wait.of(lambda left: session.reserve(len(keys), left))
        if not slots:
            return  # the store has no room
        try:
            for slot, block in zip(slots, blocks):
                pages.read(block, session.arena.slot(slot))
        except Exception:
            session.drop(slots)
            raise
        wait.of(lambda left: session.commit(slots, keys, timeout=left))


def _left(deadline: float) -> float:
    """Return the seconds until a deadline. Raise StoreError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise StoreError(f"the blocks were not there within {LOAD_TIMEOUT} s")
    return left
