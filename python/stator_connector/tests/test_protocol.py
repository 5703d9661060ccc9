"""What a session does with a store that answers wrongly, late, or not at all. The store is a thread of this process."""

import fcntl
import json
import os
import pathlib
import socket
import struct
import tempfile
import threading
import unittest

from stator_connector import protocol
from stator_connector.layout import Layout
from stator_connector.protocol import Arena, Ended, Session, StoreError

LAYOUT = Layout(model="m", layers=1, page_tokens=16, outer=2, inner=32, dtype="bfloat16")
KEY = bytes(16)
SEALS = 2 | 4 | 1  # shrink, grow, seal
F_ADD_SEALS = 1033


def memory(size: int, seals: int = SEALS) -> int:
    """Return a memfd, which the caller closes."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


class Store:
    """Accepts one connection, and answers hello. The test reads and writes the rest through frames."""

    def __init__(self, test: unittest.TestCase, welcome: bytes | None = None, kind: int = 1, slots: int = 4) -> None:
        self.path = os.path.join(test.enterContext(tempfile.TemporaryDirectory()), "kv.sock")
        self.slots = slots
        self._listener = test.enterContext(socket.socket(socket.AF_UNIX))
        self._listener.bind(self.path)
        self._listener.listen()
        self._welcome = welcome
        self._kind = kind
        self.accepted = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        test.addCleanup(self._close)

    def _accept(self) -> None:
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(20)
        _, number, body = self.receive()
        self.hello = json.loads(body)
        answer = self._welcome
        if answer is None:
            answer = json.dumps({"version": 1, "slots": self.slots, "slotBytes": LAYOUT.block_bytes}).encode()
        fd = memory(self.slots * 4096)
        socket.send_fds(self.connection, [struct.pack("<IBI", 5 + len(answer), self._kind, number) + answer], [fd])
        os.close(fd)
        self.accepted.set()

    def _close(self) -> None:
        self._thread.join()
        self.connection.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.connection.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self) -> tuple[int, int, bytes]:
        length, kind, number = struct.unpack("<IBI", self._read(9))
        return kind, number, self._read(length - 5)

    def send(self, kind: int, number: int, body: bytes) -> None:
        self.connection.sendall(struct.pack("<IBI", 5 + len(body), kind, number) + body)


class Sessions(unittest.TestCase):
    def begin(self, store: Store, changed=None) -> Session:
        session = Session(store.path, "test", LAYOUT, changed, timeout=20)
        self.addCleanup(session.close)
        store.accepted.wait(20)
        return session

    def test_hello(self):
        store = Store(self)
        session = self.begin(store)
        self.assertEqual(store.hello, {"version": 2, "engine": "test", "layout": LAYOUT.to_json()})
        self.assertEqual(session.arena.slots, 4)

    def test_wrong_welcome(self):
        for name, welcome, kind, want in (
            ("refused", b"layers is 2 here and 3 there", 127, "layers is 2 here"),
            ("no JSON", b"?", 1, "not of this protocol"),
            ("no object", b"[]", 1, "not of this protocol"),
            ("another kind", b'{"slots":4,"slotBytes":2048}', 2, "not of this protocol"),
            ("small slots", b'{"slots":4,"slotBytes":16}', 1, "a slot has 16 bytes"),
            ("other size", b'{"slots":5,"slotBytes":2048}', 1, "its slots need"),
            ("too many slots", b'{"slots":999999999999,"slotBytes":2048}', 1, "are possible"),
        ):
            with self.subTest(name), self.assertRaisesRegex(StoreError, want):
                Session(Store(self, welcome, kind).path, "test", LAYOUT, timeout=20)

    def test_no_store(self):
        with self.assertRaisesRegex(StoreError, "connect to the KV store"):
            Session("/nonexistent/kv.sock", "test", LAYOUT)

    def test_late_answers_are_given_back(self):
        store = Store(self)
        session = self.begin(store)
        with self.assertRaisesRegex(StoreError, "did not answer"):
            session.fetch([KEY], timeout=0.01)
        kind, number, _ = store.receive()
        store.send(kind, number, struct.pack("<III", 77, 1, 3))
        self.assertEqual(store.receive(), (4, 0, struct.pack("<IQ", 77, 0)))

        with self.assertRaisesRegex(StoreError, "did not answer"):
            session.reserve(2, timeout=0.01)
        kind, number, _ = store.receive()
        store.send(kind, number, struct.pack("<III", 2, 0, 1))
        self.assertEqual(store.receive(), (7, 0, struct.pack("<III", 2, 0, 1)))

    def test_wrong_answers_end_the_session(self):
        for name, answer in {
            "short": b"\1",
            "a slot that is not there": struct.pack("<III", 1, 1, 4),
            "more slots than keys": struct.pack("<IIII", 1, 2, 0, 1),
            "a count that does not fit": struct.pack("<II", 1, 9),
        }.items():
            with self.subTest(name):
                store = Store(self)
                session = self.begin(store)
                answering = threading.Thread(target=lambda: store.send(*store.receive()[:2], answer))
                answering.start()
                with self.assertRaisesRegex(StoreError, "does not fit"):
                    session.fetch([KEY], timeout=20)
                answering.join()
                with self.assertRaises(Ended):
                    session.find([KEY])

    def test_wrong_frames_end_the_session(self):
        for name, frame in {
            "too long": struct.pack("<IBI", 1 << 21, 2, 1),
            "too short": struct.pack("<IBI", 4, 2, 1),
            "an answer without request": struct.pack("<IBI", 5, 2, 9),
            "a short change": struct.pack("<IBIB", 6, 64, 0, 1),
            "an unknown tier": struct.pack("<IBIBBI", 11, 64, 0, 4, 1, 0),
            "failed": struct.pack("<IBI", 5, 127, 0),
        }.items():
            with self.subTest(name):
                store = Store(self)
                session = self.begin(store)
                store.connection.sendall(frame)
                self.assertTrue(session.wait(20))
                with self.assertRaises(Ended):
                    session.find([KEY])

    def test_the_reason_of_the_end_is_reported(self):
        store = Store(self)
        held = threading.Event()
        session = self.begin(store, lambda *change: held.wait(20))
        store.send(64, 0, struct.pack("<BBI", 1, 1, 1) + KEY)  # the session's thread is busy
        store.send(127, 0, b"the reason")
        store.connection.close()
        threading.Timer(0.05, held.set).start()
        with self.assertRaisesRegex(Ended, "the reason"):
            session.find([KEY])

    def test_changes(self):
        changes, two = [], threading.Event()

        def changed(*change):
            changes.append(change)
            if len(changes) == 2:
                two.set()

        store = Store(self)
        self.begin(store, changed)
        store.send(64, 0, struct.pack("<BBI", 1, 1, 1) + KEY)
        store.send(64, 0, struct.pack("<BBI", 2, 0, 0))
        self.assertTrue(two.wait(20))
        self.assertEqual(changes, [(1, True, [KEY]), (2, False, None)])

    def test_searches_do_not_wait(self):
        store = Store(self)
        session = self.begin(store)
        search = session.search([KEY], 16)
        self.assertFalse(search.done)
        with self.assertRaisesRegex(StoreError, "did not answer within 0 s"):
            search.result()
        kind, number, body = store.receive()
        self.assertEqual(body[:4], struct.pack("<I", 16))
        other = session.search([KEY])
        store.send(kind, number, struct.pack("<IIQ", 3, 2, 1))
        kind, number, _ = store.receive()
        store.send(kind, number, struct.pack("<IIQ", 5, 4, 1))
        self.assertEqual(other.result(20), protocol.Found(5, 4, 1))
        self.assertTrue(other.done)

    def test_waiting_requests_are_bounded(self):
        session = self.begin(Store(self))
        for _ in range(protocol.MAX_CALLS):
            session.name([KEY])
        with self.assertRaisesRegex(StoreError, "wait for the KV store"):
            session.find([KEY])

    def test_a_store_that_reads_nothing_loses_the_session(self):
        session = self.begin(Store(self))
        with self.assertRaises(Ended):
            for _ in range(protocol.MAX_CALLS):  # of half a MiB each, more than the socket has room for
                session.name([KEY] * protocol.MAX_KEYS)
        self.assertTrue(session.wait(20))

    def test_requests_are_bounded(self):
        session = self.begin(Store(self))
        with self.assertRaisesRegex(ValueError, "32769 keys"):
            session.find([KEY] * (protocol.MAX_KEYS + 1))
        with self.assertRaisesRegex(ValueError, "16 bytes"):
            session.fetch([b"short"])
        with self.assertRaisesRegex(ValueError, "2 slots for 1 keys"):
            session.commit([0, 1], [KEY])


class Memory(unittest.TestCase):
    def test_only_sealed_memory(self):
        with tempfile.TemporaryFile() as file, self.assertRaisesRegex(StoreError, "no memfd"):
            Arena(file.fileno(), 1, 4096)
        fd = memory(4096, seals=2)
        self.addCleanup(os.close, fd)
        with self.assertRaisesRegex(StoreError, "F_SEAL_GROW"):
            Arena(fd, 1, 4096)

    def test_slots(self):
        fd = memory(2 * 8192)
        self.addCleanup(os.close, fd)
        one, two = Arena(fd, 2, 5000), Arena(fd, 2, 5000)
        one.slot(1)[:] = b"x" * 5000
        self.assertEqual(bytes(two.slot(1)), b"x" * 5000)
        self.assertEqual(bytes(two.slot(0)), bytes(5000))
        self.assertEqual(one.identity, two.identity)
        for number in (-1, 2):
            with self.assertRaisesRegex(StoreError, "of 2"):
                one.slot(number)


if __name__ == "__main__":
    unittest.main()
