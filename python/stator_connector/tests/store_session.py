"""A session with a real store, which the Go test TestPythonWithStore starts. It has written blocks 0 to 3, and reads 100 to 105."""

import contextlib
import dataclasses
import json
import os
import struct
import threading
import time
import unittest

from stator_connector.protocol import Ended, Session, StoreError
from test_layout import layout_of

LAYOUT = layout_of(json.loads(os.environ["STATOR_TEST_LAYOUT"]))
SOCKET = os.environ["STATOR_TEST_SOCKET"]


def keys(first: int, count: int) -> list[bytes]:
    """Return the keys that the Go test computes for the same numbers."""
    return [LAYOUT.space().key(struct.pack("<Q", number)) for number in range(first, first + count)]


def content(key: bytes) -> bytes:
    return key * (LAYOUT.block_bytes // len(key))


def put(session: Session, wanted: list[bytes]) -> None:
    slots = session.reserve(len(wanted))
    for slot, key in zip(slots, wanted, strict=True):
        session.arena.slot(slot)[: LAYOUT.block_bytes] = content(key)
    session.commit(slots, wanted)


class RealStore(unittest.TestCase):
    def begin(self, path: str = SOCKET, changed=None) -> Session:
        session = Session(path, "python", LAYOUT, changed)
        self.addCleanup(session.close)
        return session

    def test_reads_what_go_wrote(self):
        session = self.begin()
        found = session.find(keys(0, 6))
        self.assertEqual((found.blocks, found.load), (4, 4))
        lease = session.fetch(keys(0, 4))
        self.assertEqual(len(lease.slots), 4)
        for slot, key in zip(lease.slots, keys(0, 4)):
            self.assertEqual(bytes(session.arena.slot(slot)[: LAYOUT.block_bytes]), content(key))
        session.check()
        lease.release(100)

    def test_writes_what_go_reads(self):
        put(self.begin(), keys(100, 6))
        self.assertEqual(self.begin().find(keys(100, 7)).blocks, 6)

    def test_pins(self):
        session = self.begin()
        put(session, keys(200, 2))
        session.pin(keys(200, 2), 60)
        session.check()

    def test_missing_blocks(self):
        session = self.begin()
        self.assertEqual(session.find(keys(900, 2)).blocks, 0)
        self.assertEqual(session.fetch(keys(900, 2)).slots, [])

    def test_changes_of_named_blocks(self):
        changes, stored = [], threading.Event()

        def changed(tier, there, names):
            changes.append((tier, there, names))
            stored.set()

        session = self.begin(changed=changed)
        session.name(keys(300, 1))
        session.check()
        put(self.begin(), keys(300, 1))
        self.assertTrue(stored.wait(20))
        self.assertEqual(changes[0], (1, True, keys(300, 1)))

    def test_another_layout_is_refused(self):
        other = dataclasses.replace(LAYOUT, layers=LAYOUT.layers + 1)
        with self.assertRaisesRegex(StoreError, "layers is 2 here and 3 there"):
            Session(SOCKET, "python", other)

    def test_share_of_a_session(self):
        session = self.begin()
        self.assertEqual(session.reserve(17), [])
        slots = session.reserve(2)
        self.assertEqual(len(slots), 2)
        session.drop(slots)
        session.check()

    def test_broken_rules_end_the_session(self):
        session = self.begin()
        for _ in range(2):
            session.fetch(keys(0, 1))
        with self.assertRaisesRegex(Ended, "2 leases: release some"):
            session.fetch(keys(0, 1))
        session = self.begin()
        session.drop([3])
        with self.assertRaisesRegex(Ended, "slot 3 is not reserved"):
            session.check()

    def test_a_store_that_ends(self):
        session = self.begin(os.environ["STATOR_TEST_ENDING_SOCKET"])
        with contextlib.suppress(Ended):
            put(session, keys(0, 1))  # the store ends once it has the block, perhaps before it answers
        self.assertTrue(session.wait(20))
        started = time.monotonic()
        with self.assertRaises(Ended):
            session.find(keys(0, 1))
        self.assertLess(time.monotonic() - started, 1)
        session.arena.slot(0)[:1] = b"x"  # the memory is still mapped


if __name__ == "__main__":
    unittest.main()
