"""Two engines with fakes of vLLM's classes share blocks through a real store. The Go test TestPythonWithStore starts it."""

import json
import os
import pathlib
import pickle
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import fakes
from stator_connector import scheduler, worker
from stator_connector.link import Link
from test_layout import layout_of

fakes.install()
from stator_connector.connector import StatorConnector  # noqa: E402

LAYOUT = layout_of(json.loads(os.environ["STATOR_TEST_LAYOUT"]))
SOCKET = os.environ["STATOR_TEST_SOCKET"]
NAMES = ("layers.9.attn", "layers.10.attn")


def eventually(test: unittest.TestCase, what: str, ok) -> None:
    deadline = time.monotonic() + 20
    while not ok():
        if time.monotonic() > deadline:
            test.fail(f"not in time: {what}")
        time.sleep(0.005)


# A busy machine may take longer for an answer than an engine waits.
scheduler.FIND_TIMEOUT = scheduler.FOUND_FOR = worker.LOAD_TIMEOUT = worker.SAVE_WAIT = 20.0


class Engine:
    """The two connectors of an engine, and its cache."""

    def __init__(self, test: unittest.TestCase) -> None:
        self.test = test
        config = fakes.vllm_config(kv_transfer_config__kv_connector_extra_config={"socket": SOCKET})
        with mock.patch("stator_connector.connector.layout_of", return_value=LAYOUT):
            self.scheduler = StatorConnector(config, fakes.Role.SCHEDULER, fakes.cache_config())
            self.worker = StatorConnector(config, fakes.Role.WORKER, fakes.cache_config())
        self.tensors = {name: fakes.Tensor(8, 2, 16, 32) for name in NAMES}
        self.worker.register_kv_caches(self.tensors)
        for connector in (self.scheduler, self.worker):
            test.addCleanup(connector.shutdown)
            eventually(test, "a session", lambda: connector._link.session is not None)

    def matched(self, request) -> int:
        """Return how many tokens are worth loading, once the store has answered."""
        while True:
            tokens, later = self.scheduler.get_num_new_matched_tokens(request, 0)
            if tokens is not None:
                self.test.assertEqual(later, tokens > 0)
                return tokens
            time.sleep(0.001)

    def step(self, metadata) -> None:
        """Begin a step of the worker: what the scheduler sends, and the loads."""
        self.worker.bind_connector_metadata(pickle.loads(pickle.dumps(metadata)))
        self.worker.start_load_kv(None)

    def load(self, request, blocks: list[int], tokens: int) -> set[int]:
        """Load the tokens of a request, and return the blocks that could not be loaded."""
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (blocks,)), tokens)
        self.step(self.scheduler.build_connector_meta(fakes.step()))
        while self.worker.get_finished(set())[1] is None:
            time.sleep(0.001)
        return self.worker.get_block_ids_with_load_errors()

    def run(self, request, blocks: list[int], content=None) -> int:
        """Run the steps of a request, and return how many of its tokens were loaded. content fills a block."""
        loaded = self.matched(request)
        if loaded > 0:
            self.test.assertEqual(self.load(request, blocks, loaded), set())
        self.scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (blocks,)), 0)
        self.step(self.scheduler.build_connector_meta(fakes.step((request.request_id, blocks, loaded, request.num_tokens - loaded))))
        for number, block in enumerate(blocks[loaded // 16 :]):
            for layer, name in enumerate(NAMES):
                self.tensors[name].fill(block, content(number, layer) if content else b"")
        self.worker.wait_for_save()
        return loaded

    def block(self, block: int) -> list[bytes]:
        return [self.tensors[name].block(block, LAYOUT.layer_bytes) for name in NAMES]


def pattern(number: int, layer: int) -> bytes:
    return bytes([16 * number + layer + 1]) * LAYOUT.layer_bytes


class Engines(unittest.TestCase):
    def test_one_engine_loads_what_another_computed(self):
        one, two = Engine(self), Engine(self)
        self.assertEqual(one.run(fakes.request("a", 50, first_hash=7000), [4, 2, 6, 1], pattern), 0)
        self.assertEqual(two.run(fakes.request("b", 50, first_hash=7000), [0, 5, 3, 7]), 48)
        for number, block in enumerate((0, 5, 3)):
            self.assertEqual(two.block(block), [pattern(number, layer) for layer in range(2)])
        events = []

        def all_stored():
            events.extend(one.scheduler.take_events())
            return sum(len(event.block_hashes) for event in events) >= 3

        eventually(self, "three blocks are announced", all_stored)
        self.assertEqual({type(event).__name__ for event in events}, {"BlockStored"})
        self.assertEqual({event.medium for event in events}, {"CPU"})
        self.assertEqual(sorted(number for event in events for number in event.block_hashes), [7000, 7001, 7002])

    def test_a_store_that_comes_later(self):
        path = pathlib.Path(self.enterContext(__import__("tempfile").TemporaryDirectory())) / "kv.sock"
        link = Link(str(path), "late", LAYOUT, retry_after=0.01)
        self.addCleanup(link.close)
        time.sleep(0.05)
        self.assertIsNone(link.session)
        path.symlink_to(SOCKET)
        eventually(self, "a session", lambda: link.session is not None)
        link.pause()
        self.assertIsNone(link.ready_session)
        link.session.close()
        eventually(self, "another session", lambda: link.session is not None and not link.session.wait(0))


if __name__ == "__main__":
    unittest.main()
