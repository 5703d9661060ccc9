"""The worker's side: copies blocks from the store before a step, and to the store after it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from .link import Link
from .pages import Pages
from .protocol import Session, StoreError
from .scheduler import Plan, Transfer

logger = logging.getLogger("stator_connector")

LOAD_TIMEOUT = 10.0  # seconds that a step waits for blocks
SAVE_TIMEOUT = 1.0  # seconds that a step waits for each answer while it saves
BATCH = 64  # blocks of one reservation

# Steps of vLLM overlap: when a load fails, this many steps may already be planned that take the blocks as loaded.
TAINTED_STEPS = 3


class Worker:
    """Carries out plans. It is used by one thread.

    A step whose load failed computes wrong values, which vLLM discards and computes again. They must not get into the store, so nothing
    is saved of the requests of that step and of the next ones.
    """

    def __init__(self) -> None:
        self._link: Link | None = None
        self._pages: Pages | None = None
        self._failed: set[int] = set()  # blocks of the engine
        self._tainted: set[str] = set()  # requests, until they end
        self._tainted_steps = 0

    def use(self, link: Link, pages: Pages) -> None:
        """Set the link to the store, and the engine's cache."""
        self._link = link
        self._pages = pages

    def load(self, plan: Plan) -> None:
        """Load all blocks of a plan. Blocks that could not be loaded are in take_failed."""
        for transfer in plan.loads:
            session = self._link.session if self._link is not None else None
            try:
                loaded = self._load(session, transfer)
            except Exception as error:  # the engine can compute the blocks in any case
                logger.warning("load %d blocks: %s; the engine computes them", len(transfer.blocks), error)
                loaded = 0
            if loaded < len(transfer.blocks):
                self._failed.update(transfer.blocks[loaded:])
                self._tainted_steps = TAINTED_STEPS
        if self._tainted_steps > 0:
            self._tainted_steps -= 1
            self._tainted.update(plan.requests)

    def _load(self, session: Session | None, transfer: Transfer) -> int:
        """Load the blocks of a request, and return how many of the first ones are there."""
        if session is None or self._pages is None:
            raise StoreError("there is no session with the KV store")
        lease = session.fetch(transfer.keys, LOAD_TIMEOUT)
        started = time.monotonic()
        for slot, block in zip(lease.slots, transfer.blocks):
            self._pages.write(block, session.arena.slot(slot)[: self._pages.block_bytes])
        took = time.monotonic() - started
        # The store may have ended the session, and used the slots for other blocks, while they were copied.
        session.check(LOAD_TIMEOUT)
        lease.release(max(1, int(took * 1e6)))
        return len(lease.slots)

    def save(self, plan: Plan) -> None:
        """Save the blocks of a plan that the store does not have. What fails is not saved."""
        for transfer in plan.saves:
            if self._link is None or self._pages is None:
                return
            session = self._link.ready_session
            if session is None:
                return
            if transfer.request_id in self._tainted:
                continue
            try:
                self._save(session, self._pages, transfer)
            except Exception as error:  # the blocks are only missing in the store
                logger.warning("save %d blocks: %s", len(transfer.blocks), error)
                self._link.pause()

    def _save(self, session: Session, pages: Pages, transfer: Transfer) -> None:
        there = session.find(transfer.keys, 0, SAVE_TIMEOUT).blocks
        for start in range(there, len(transfer.keys), BATCH):
            keys, blocks = transfer.keys[start : start + BATCH], transfer.blocks[start : start + BATCH]
            slots = session.reserve(len(keys), SAVE_TIMEOUT)
            if not slots:
                return  # the store has no room
            try:
                for slot, block in zip(slots, blocks):
                    pages.read(block, session.arena.slot(slot))
            except Exception:
                session.drop(slots)
                raise
            session.commit(slots, keys, timeout=SAVE_TIMEOUT)

    def finished(self, requests: Iterable[str]) -> None:
        """Forget requests."""
        self._tainted.difference_update(requests)

    def take_failed(self) -> set[int]:
        """Return the engine's blocks that could not be loaded since the last call."""
        failed, self._failed = self._failed, set()
        return failed
