"""A session with the store of KV blocks. The Go package kvbm/session describes the frames."""

from __future__ import annotations

import array
import fcntl
import itertools
import json
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .layout import KEY_BYTES, Layout

VERSION = 2
MAX_FRAME = 1 << 20  # bytes of a frame without its length
MAX_KEYS = 1 << 15  # keys or slots of a frame
MAX_PIN = 3600  # seconds
MAX_CALLS = 64  # requests without an answer, per session
TIERS = 4  # device, host, disk, external

_HELLO, _FIND, _FETCH, _RELEASE, _RESERVE, _COMMIT, _DROP, _PIN = range(1, 9)
_CHANGED, _FAILED = 64, 127

_HEAD = struct.Struct("<IBI")
_AFTER_LENGTH = _HEAD.size - 4
_SEND_TIMEOUT = 0.05  # seconds that a frame may wait while the store reads nothing and the socket is full; the session ends then

_SLOT_ALIGN = 4096
_HUGE_BYTES = 2 << 20
_MAX_SLOTS = 1 << 28
_MAX_SLOT_BYTES = 1 << 30

# Python before 3.14 has F_GET_SEALS only where it was built with a C library that has it.
_F_GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)
_FIXED_SIZE = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4)

# Changed receives changes of blocks that the session has named: tier, whether they were stored there or removed, and their keys.
# Keys of None are all blocks of the tier.
Changed = Callable[[int, bool, "list[bytes] | None"], None]


class StoreError(Exception):
    """The store cannot be used, or not for this request."""


class Ended(StoreError):
    """The session with the store has ended."""


class Arena:
    """The store's memory in slots, mapped into this process.

    identity is equal in two processes exactly if they have mapped the same memory.
    """

    def __init__(self, fd: int, slots: int, slot_bytes: int) -> None:
        """Map a descriptor, which stays the caller's. Raise StoreError if its size is not fixed or not that of the slots."""
        if not (1 <= slots <= _MAX_SLOTS and 1 <= slot_bytes <= _MAX_SLOT_BYTES):
            raise StoreError(f"{slots} slots of {slot_bytes} bytes: at most {_MAX_SLOTS} slots of {_MAX_SLOT_BYTES} bytes are possible")
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
        except OSError as error:
            raise StoreError(f"the store's memory is no memfd: {error}") from error
        if seals & _FIXED_SIZE != _FIXED_SIZE:
            raise StoreError(f"the store's memory has the seals {seals:#x}, and needs F_SEAL_SHRINK and F_SEAL_GROW")

        self.slots = slots
        self.slot_bytes = slot_bytes
        self._stride = _round_up(slot_bytes, _SLOT_ALIGN)
        stat = os.fstat(fd)
        want = slots * self._stride
        if stat.st_blksize == _HUGE_BYTES:
            want = _round_up(want, _HUGE_BYTES)
        if stat.st_size != want:
            raise StoreError(f"the store's memory has {stat.st_size} bytes, and its slots need {want}")
        self.identity = (stat.st_dev, stat.st_ino)
        # The pages are unmapped when neither the arena nor a slot is referenced any more.
        self._memory = memoryview(mmap.mmap(fd, want))

    def slot(self, number: int) -> memoryview:
        """Return the writable bytes of a slot. Raise StoreError if there is no such slot."""
        if not 0 <= number < self.slots:
            raise StoreError(f"slot {number} of {self.slots}")
        start = number * self._stride
        return self._memory[start : start + self.slot_bytes]


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True)
class Found:
    """How many of the first blocks the store has, how many of these are worth loading, and in how many microseconds."""

    blocks: int
    load: int
    microseconds: int


@dataclass
class _Call:
    kind: int
    done: threading.Event = field(default_factory=threading.Event)
    body: bytes = b""
    error: StoreError | None = None
    abandoned: bool = False  # the caller has left


class Lease:
    """Blocks that the store holds in their slots until release. There may be fewer than were wanted."""

    def __init__(self, session: Session, number: int, slots: list[int]) -> None:
        self._session = session
        self._number = number
        self.slots = slots

    def release(self, microseconds: int = 0) -> None:
        """Give the blocks back, and report how long the copy to the engine took, or 0."""
        self._session._send(_RELEASE, 0, struct.pack("<IQ", self._number, microseconds))


class Search:
    """A request for what the store has, whose answer may not have come yet."""

    def __init__(self, session: Session, call: _Call) -> None:
        self._session = session
        self._call = call

    @property
    def done(self) -> bool:
        """Whether result returns or raises at once."""
        return self._call.done.is_set()

    def result(self, timeout: float = 0.0) -> Found:
        """Return the answer. Raise StoreError if it has not come within timeout, in seconds."""
        body = self._session._wait(self._call, timeout)
        if len(body) != 16:
            raise self._session._broken()
        return Found(*struct.unpack("<IIQ", body))


class Session:
    """An engine's side of a session. Its methods may be called from any thread, and raise StoreError."""

    def __init__(self, path: str, engine: str, layout: Layout, changed: Changed | None = None, timeout: float = 10.0) -> None:
        """Begin a session with the store at a path. timeout in seconds bounds each step of the beginning.

        changed is called on the session's own thread, and must not block.
        """
        layout.validate()
        self.layout = layout
        self._changed = changed
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._calls: dict[int, _Call] = {}  # guarded by _lock
        self._error: StoreError | None = None  # guarded by _lock; why the session has ended
        self._numbers = itertools.count(1)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
            self.arena = self._greet(engine)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, int(_SEND_TIMEOUT * 1e6)))
        except OSError as error:
            self._socket.close()
            raise StoreError(f"connect to the KV store at {path}: {error}") from error
        except Exception:
            self._socket.close()
            raise
        self._reader = threading.Thread(target=self._read, name="stator-kv-session", daemon=True)
        self._reader.start()

    def _greet(self, engine: str) -> Arena:
        """Exchange the first frames, and map the arena."""
        hello = {"version": VERSION, "engine": engine, "layout": self.layout.to_json()}
        self._send(_HELLO, 0, json.dumps(hello).encode())
        first, descriptors = self._receive_descriptors()
        try:
            kind, _, body = self._receive_frame(first)
            if kind == _FAILED:
                raise StoreError(f"the KV store refused the session: {body.decode(errors='replace')}")
            try:
                welcome = json.loads(body)
                slots, slot_bytes = int(welcome["slots"]), int(welcome["slotBytes"])
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError("the store's first answer is not of this protocol") from error
            if kind != _HELLO or len(descriptors) != 1:
                raise StoreError("the store's first answer is not of this protocol")
            if slot_bytes < self.layout.block_bytes:
                raise StoreError(f"a slot has {slot_bytes} bytes, and a block needs {self.layout.block_bytes}")
            return Arena(descriptors[0], slots, slot_bytes)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive_descriptors(self) -> tuple[bytes, list[int]]:
        """Receive one byte, with the descriptors that come with it."""
        numbers = array.array("i")
        first, ancillary, _, _ = self._socket.recvmsg(1, socket.CMSG_SPACE(4 * numbers.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        return first, list(numbers)

    def close(self) -> None:
        """End the session, with its leases, and wait for its thread. Slots must not be used any more."""
        self._end(Ended("the session was closed"))
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the session has ended, and return whether it has. timeout is in seconds."""
        self._reader.join(timeout)
        return not self._reader.is_alive()

    def find(self, keys: Sequence[bytes], prefix: int = 0, timeout: float = 5.0) -> Found:
        """Return how many of the first blocks the store has. prefix is the number of tokens before them."""
        return self.search(keys, prefix).result(timeout)

    def search(self, keys: Sequence[bytes], prefix: int = 0) -> Search:
        """Begin a find, whose answer the caller takes later."""
        return Search(self, self._begin(_FIND, struct.pack("<I", prefix) + _pack_keys(keys)))

    def name(self, keys: Sequence[bytes]) -> None:
        """Name blocks, of whose changes the session is informed from then on. It does not wait for the store."""
        self._begin(_FIND, struct.pack("<I", 0) + _pack_keys(keys), abandoned=True)

    def check(self, timeout: float = 5.0) -> None:
        """Raise Ended if the session has ended at the store. Otherwise leases of this session were held until now."""
        self.find((), 0, timeout)

    def fetch(self, keys: Sequence[bytes], timeout: float = 10.0) -> Lease:
        """Have the store bring blocks into host memory, and hold them until Lease.release."""
        body = self._call(_FETCH, _pack_keys(keys), timeout)
        number, slots = _parse_lease(body)
        if slots is None or len(slots) > len(keys) or any(slot >= self.arena.slots for slot in slots):
            raise self._broken()
        return Lease(self, number, slots)

    def reserve(self, count: int, timeout: float = 5.0) -> list[int]:
        """Return slots for so many blocks, or none if there is no room."""
        slots = _parse_slots(self._call(_RESERVE, struct.pack("<I", count), timeout))
        if slots is None or len(slots) not in (0, count) or any(slot >= self.arena.slots for slot in slots):
            raise self._broken()
        return slots

    def commit(self, slots: Sequence[int], keys: Sequence[bytes], priority: int = 0, timeout: float = 5.0) -> None:
        """Give reserved slots, which are written, to the store under the keys of their blocks."""
        _check_keys(keys)
        if len(slots) != len(keys):
            raise ValueError(f"{len(slots)} slots for {len(keys)} keys")
        parts = [struct.pack("<BI", priority, len(slots))]
        parts += [struct.pack("<I", slot) + key for slot, key in zip(slots, keys)]
        self._call(_COMMIT, b"".join(parts), timeout)

    def drop(self, slots: Sequence[int]) -> None:
        """Give reserved slots back, to which no write is going on."""
        self._send(_DROP, 0, struct.pack(f"<I{len(slots)}I", len(slots), *slots))

    def pin(self, keys: Sequence[bytes], seconds: int) -> None:
        """Keep the first of these blocks for so many seconds, from 1 to MAX_PIN. It does not wait for the store."""
        self._send(_PIN, 0, struct.pack("<I", seconds) + _pack_keys(keys))

    def _call(self, kind: int, body: bytes, timeout: float) -> bytes:
        """Send a request and wait for its answer."""
        return self._wait(self._begin(kind, body), timeout)

    def _wait(self, call: _Call, timeout: float) -> bytes:
        """Wait for an answer. What a late answer has in it is given back."""
        if not call.done.wait(timeout):
            with self._lock:
                call.abandoned = not call.done.is_set()
            if call.abandoned:
                raise StoreError(f"the KV store did not answer within {timeout:.3g} s")
        if call.error is not None:
            raise call.error
        return call.body

    def _begin(self, kind: int, body: bytes, abandoned: bool = False) -> _Call:
        call = _Call(kind, abandoned=abandoned)
        with self._lock:
            if self._error is not None:
                raise self._error
            if len(self._calls) >= MAX_CALLS:
                raise StoreError(f"{MAX_CALLS} requests wait for the KV store")
            number = next(self._numbers) & 0xFFFFFFFF
            self._calls[number] = call
        self._send(kind, number, body)
        return call

    def _send(self, kind: int, number: int, body: bytes) -> None:
        if len(body) + _AFTER_LENGTH > MAX_FRAME:
            raise ValueError(f"a frame of {len(body)} bytes: at most {MAX_FRAME} are possible")
        with self._writing:
            try:
                self._socket.sendall(_HEAD.pack(_AFTER_LENGTH + len(body), kind, number) + body)
                return
            except OSError as error:
                failed = error
        raise self._end_after(failed)

    def _end_after(self, failed: OSError) -> StoreError:
        """End the session after a frame could not be sent, and return why it has ended.

        A store that has closed the connection may have sent the reason, which the session's thread then reads.
        """
        closed = isinstance(failed, (BrokenPipeError, ConnectionResetError))
        reader = getattr(self, "_reader", None)  # there is none before the first answer
        if closed and reader is not None and threading.current_thread() is not reader:
            reader.join(1)
        self._end(Ended(f"the session with the KV store has ended: {failed}"))
        with self._lock:
            return self._error or Ended(str(failed))

    def _receive(self, size: int, start: bytes = b"") -> bytes:
        """Receive bytes of which the first ones are there."""
        data = bytearray(start)
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise Ended("the KV store has ended the session")
            data += part
        return bytes(data)

    def _receive_frame(self, start: bytes = b"") -> tuple[int, int, bytes]:
        length, kind, number = _HEAD.unpack(self._receive(_HEAD.size, start))
        if not _AFTER_LENGTH <= length <= MAX_FRAME:
            raise Ended(f"the KV store sent a frame of {length} bytes: at most {MAX_FRAME} are possible")
        return kind, number, self._receive(length - _AFTER_LENGTH)

    def _read(self) -> None:
        """Pass answers and changes on until the session ends."""
        try:
            while True:
                kind, number, body = self._receive_frame()
                if kind == _FAILED:
                    raise Ended(f"the KV store has ended the session: {body.decode(errors='replace')}")
                if kind == _CHANGED:
                    self._pass_change(body)
                else:
                    self._answer(kind, number, body)
        except Ended as error:
            self._end(error)
        except OSError as error:
            self._end(Ended(f"the session with the KV store has ended: {error}"))
        finally:
            self._socket.close()

    def _answer(self, kind: int, number: int, body: bytes) -> None:
        with self._lock:
            call = self._calls.pop(number, None)
            if call is None or call.kind != kind:
                raise Ended("the KV store answered a request that was not sent")
            abandoned = call.abandoned
            call.body = body
            call.done.set()
        if not abandoned:
            return
        if kind == _FETCH:
            lease, slots = _parse_lease(body)
            if slots is not None:
                Lease(self, lease, slots).release()
        elif kind == _RESERVE:
            slots = _parse_slots(body)
            if slots:
                self.drop(slots)

    def _pass_change(self, body: bytes) -> None:
        if len(body) < 6:
            raise Ended("the KV store sent a short change")
        tier, stored, count = struct.unpack_from("<BBI", body)
        if tier >= TIERS or count > MAX_KEYS or len(body) != 6 + count * KEY_BYTES:
            raise Ended("the KV store sent a change that is not of this protocol")
        keys = [body[at : at + KEY_BYTES] for at in range(6, len(body), KEY_BYTES)]
        if self._changed is not None:
            self._changed(tier, stored == 1, keys or None)

    def _broken(self) -> StoreError:
        """End the session after an answer that does not fit its request, and return the error."""
        error = Ended("the KV store's answer does not fit the request")
        self._end(error)
        return error

    def _end(self, error: StoreError) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.error = error
                call.done.set()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # the reader closes it
        except OSError:
            pass  # the other side has left


def _check_keys(keys: Sequence[bytes]) -> None:
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{len(keys)} keys: at most {MAX_KEYS} are possible")
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"a key has {KEY_BYTES} bytes")


def _pack_keys(keys: Sequence[bytes]) -> bytes:
    _check_keys(keys)
    return struct.pack("<I", len(keys)) + b"".join(keys)


def _parse_slots(body: bytes) -> list[int] | None:
    """Return the slots of a body, or None if its length does not fit."""
    if len(body) < 4:
        return None
    (count,) = struct.unpack_from("<I", body)
    if count > MAX_KEYS or len(body) != 4 + 4 * count:
        return None
    return list(struct.unpack_from(f"<{count}I", body, 4))


def _parse_lease(body: bytes) -> tuple[int, list[int] | None]:
    """Return the number of a lease and its slots, or None for these if the length does not fit."""
    if len(body) < 4:
        return 0, None
    return struct.unpack_from("<I", body)[0], _parse_slots(body[4:])
