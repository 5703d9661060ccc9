"""A link keeps a session with the store, and begins a new one after the end of the last."""

from __future__ import annotations

import logging
import threading
import time

from .layout import Layout
from .protocol import TIERS, Changed, Session, StoreError

logger = logging.getLogger("stator_connector")

_RETRY_AFTER = 1.0  # seconds, doubled with each failure
_MOST_RETRY_AFTER = 30.0  # seconds
_PAUSE = 5.0  # seconds


class Link:
    """Keeps a session on its own thread until close. Without the store it goes on trying."""

    def __init__(self, path: str, engine: str, layout: Layout, changed: Changed | None = None, retry_after: float = _RETRY_AFTER) -> None:
        """changed is called as by a session, and at the end of one with None for the keys of each tier."""
        layout.validate()
        self._path = path
        self._engine = engine
        self._layout = layout
        self._changed = changed
        self._retry_after = retry_after
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._session: Session | None = None  # guarded by _lock
        self._resume = 0.0  # guarded by _lock; the time until which the store is not asked
        self._thread = threading.Thread(target=self._run, name="stator-kv-link", daemon=True)
        self._thread.start()

    @property
    def session(self) -> Session | None:
        """The current session, or None while there is none."""
        with self._lock:
            return self._session

    @property
    def ready_session(self) -> Session | None:
        """The current session, or None while there is none or the store is not asked because of pause."""
        with self._lock:
            return self._session if time.monotonic() >= self._resume else None

    def pause(self) -> None:
        """Do not ask the store for 5 s, because it did not answer in time or an answer could not be used."""
        with self._lock:
            self._resume = time.monotonic() + _PAUSE

    def close(self) -> None:
        """End the session and the thread."""
        self._stop.set()
        session = self.session
        if session is not None:
            session.close()
        self._thread.join()

    def _run(self) -> None:
        reported = ""
        pause = self._retry_after
        while not self._stop.is_set():
            try:
                session = Session(self._path, self._engine, self._layout, self._changed)
            except StoreError as error:
                if str(error) != reported:
                    reported = str(error)
                    logger.warning("%s; the engine computes without it, and tries again at least every %s s", error, _MOST_RETRY_AFTER)
                self._stop.wait(pause)
                pause = min(2 * pause, _MOST_RETRY_AFTER)
                continue
            reported = ""
            pause = self._retry_after
            logger.info("the engine uses the KV store at %s", self._path)
            self._use(session)
            self._stop.wait(self._retry_after)

    def _use(self, session: Session) -> None:
        """Offer a session until it has ended."""
        with self._lock:
            self._session = session
        if self._stop.is_set():
            session.close()
        session.wait()
        with self._lock:
            self._session = None
        if self._changed is not None:
            for tier in range(1, TIERS):
                self._changed(tier, False, None)
