"""Plans of the scheduler, copies and failures of the worker, without a store. store_connector.py runs them with one."""

import logging
import threading
import time
import unittest
from types import SimpleNamespace
from unittest import mock

import fakes
from stator_connector.layout import Layout
from stator_connector.pages import Pages, UnsupportedCache
from stator_connector.protocol import Found, StoreError
from stator_connector.scheduler import FIND_TIMEOUT, MAX_SEARCHES, MAX_STEP_BLOCKS, Change, Plan, Scheduler, Transfer
from stator_connector.worker import Worker

fakes.install()
from stator_connector.connector import StatorConnector, _natural  # noqa: E402

LAYOUT = Layout(model="m", layers=2, page_tokens=16, outer=2, inner=32, dtype="bfloat16")
PAGE = LAYOUT.layer_bytes


def setUpModule():
    logging.disable(logging.CRITICAL)


def tearDownModule():
    logging.disable(logging.NOTSET)


def link_with(session):
    return mock.Mock(session=session, ready_session=session)


class Clock:
    """The time of time.monotonic, which a test moves."""

    def __init__(self, test: unittest.TestCase, module: str) -> None:
        self.now = 1000.0
        test.enterContext(mock.patch(f"stator_connector.{module}.time.monotonic", lambda: self.now))


class Schedules(unittest.TestCase):
    def setUp(self):
        self.clock = Clock(self, "scheduler")
        self.session = mock.Mock()
        self.answered = True
        self.session.search.side_effect = lambda keys, prefix: self.search(len(keys), len(keys))
        self.link = link_with(self.session)
        self.scheduler = Scheduler(LAYOUT.space(), 16)
        self.scheduler.use(self.link)

    def search(self, blocks, load):
        return SimpleNamespace(done=self.answered, result=lambda: Found(blocks, load, 1))

    def matched(self, request, computed):
        """Return what the second step gets, because the store has not answered in the first one."""
        first = self.scheduler.matched_tokens(request, computed)
        return first if first is not None else self.scheduler.matched_tokens(request, computed)

    def test_the_last_token_is_computed(self):
        for tokens, computed, want in ((64, 0, 48), (65, 0, 64), (65, 32, 32), (16, 0, 0), (64, 48, 0), (64, 8, 0)):
            with self.subTest(tokens=tokens, computed=computed):
                self.assertEqual(self.matched(fakes.request(f"{tokens} {computed}", tokens), computed), want)

    def test_only_what_is_worth_loading(self):
        self.session.search.side_effect = lambda keys, prefix: self.search(4, 2)
        self.assertEqual(self.matched(fakes.request("a", 160), 32), 32)
        self.assertEqual(self.session.search.call_args.args[1], 32)

    def test_vllm_asks_again_until_the_store_answers(self):
        self.answered = False
        request = fakes.request("a", 64)
        for _ in range(3):
            self.assertIsNone(self.scheduler.matched_tokens(request, 0))
        self.session.search.assert_called_once()
        self.assertIsNone(self.scheduler.matched_tokens(request, 16))  # vLLM has more blocks in the meantime
        self.assertEqual(self.session.search.call_count, 2)
        self.clock.now += FIND_TIMEOUT
        self.assertEqual(self.scheduler.matched_tokens(request, 16), 0)
        self.link.pause.assert_called_once()

    def test_answers_get_old(self):
        request = fakes.request("a", 64)
        self.assertEqual(self.matched(request, 0), 48)
        self.assertEqual(self.matched(request, 0), 48)
        self.session.search.assert_called_once()
        self.clock.now += 60
        self.assertEqual(self.matched(request, 0), 48)
        self.assertEqual(self.session.search.call_count, 2)

    def test_waiting_searches_are_bounded(self):
        """A store that does not answer pauses the link, also when all requests that had asked have left."""
        self.answered = False
        for number in range(MAX_SEARCHES + 5):
            self.assertIsNone(self.scheduler.matched_tokens(fakes.request(f"r{number}", 64), 0))
            self.scheduler.finished(fakes.request(f"r{number}", 64))
        self.assertEqual(self.session.search.call_count, MAX_SEARCHES)
        self.clock.now += FIND_TIMEOUT
        self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", 64), 0), 0)
        self.link.pause.assert_called_once()

    def test_failures_find_nothing(self):
        self.session.search.side_effect = StoreError("ended")
        self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", 64), 0), 0)
        self.link.pause.assert_called_once()
        self.link.ready_session = None
        self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", 64), 0), 0)

    def test_loads_and_saves(self):
        request = fakes.request("a", 70)
        space = LAYOUT.space()
        keys = [space.key(content) for content in request.block_hashes]
        self.assertEqual(self.matched(request, 16), 48)
        self.scheduler.allocated(request, [3, 4, 5, 6, 7], 32)  # vLLM may take less
        self.assertEqual(self.scheduler.plan([]), Plan(loads=[Transfer("a", keys[1:3], [4, 5])]))
        self.scheduler.allocated(request, [3, 4, 5, 6, 7], 0)  # after the load
        self.assertEqual(self.scheduler.plan([("a", [3, 4, 5, 6, 7], 70)]), Plan(saves=[Transfer("a", keys, [3, 4, 5, 6])]))
        self.session.name.assert_called_once_with(keys)
        self.assertEqual(self.scheduler.plan([("a", [3, 4, 5, 6, 7], 71)]), Plan())

        request.block_hashes.append(b"x" * 32)
        plan = self.scheduler.plan([("a", [3, 4, 5, 6, 7], 80)])
        self.assertEqual(plan.saves, [Transfer("a", [space.key(b"x" * 32)], [7])])

    def test_saved_blocks_are_pinned(self):
        """Blocks that were saved are pinned at the end of a request whose parameters are a number of seconds up to an hour."""
        for number, (params, saved, want) in enumerate((
            ({"stator_pin_seconds": 300}, 70, 4),
            ({"stator_pin_seconds": 300}, 40, 2),
            ({"stator_pin_seconds": 300}, 0, 0),
            ({"stator_pin_seconds": 3601}, 70, 0),
            ({"stator_pin_seconds": 0}, 70, 0),
            ({"stator_pin_seconds": "300"}, 70, 0),
            ({"stator_pin_seconds": True}, 70, 0),
            (None, 70, 0),
            ("300", 70, 0),
        )):
            with self.subTest(params=params, saved=saved):
                self.session.reset_mock()
                request = fakes.request(f"p{number}", 70)
                request.kv_transfer_params = params
                self.matched(request, 0)
                self.scheduler.allocated(request, [3, 4, 5, 6, 7], 0)
                self.scheduler.plan([(request.request_id, [3, 4, 5, 6, 7], saved)])
                self.scheduler.finished(request)
                keys = [LAYOUT.space().key(content) for content in request.block_hashes[:want]]
                self.assertEqual(self.session.pin.call_args_list, [mock.call(keys, 300)] if want else [])

        self.session.pin.side_effect = StoreError("ended")
        request = fakes.request("a", 70)
        request.kv_transfer_params = {"stator_pin_seconds": 300}
        self.matched(request, 0)
        self.scheduler.allocated(request, [3, 4, 5, 6, 7], 0)
        self.scheduler.plan([("a", [3, 4, 5, 6, 7], 70)])
        self.scheduler.finished(request)  # the session ends later

    def test_adapters_have_blocks_of_their_own(self):
        keys = {}
        for name, adapter in (("base", None), ("old", "f1"), ("new", "f2"), ("not known", None)):
            request = fakes.request(name, 64)
            request.lora_request = None if name == "base" else SimpleNamespace(lora_name="poet")
            with mock.patch.object(self.scheduler._adapters, "fingerprint_of", lambda _: adapter):
                tokens = self.matched(request, 0)
                self.scheduler.allocated(request, [0, 1, 2, 3], tokens)
                plan = self.scheduler.plan([(name, [0, 1, 2, 3], 64)])
            if name == "not known":
                self.assertEqual((tokens, plan), (0, Plan()))
                continue
            self.assertEqual(plan.loads[0].keys, plan.saves[0].keys[:3])
            keys[name] = frozenset(plan.saves[0].keys)
        self.assertEqual(len(frozenset.union(*keys.values())), 3 * 4)

    def test_nothing_of_before_a_reset_is_found_or_saved(self):
        old = fakes.request("old", 64)
        self.scheduler.allocated(old, [0, 1, 2, 3], 0)
        self.scheduler.reset()
        self.assertEqual(self.scheduler.plan([("old", [0, 1, 2, 3], 64)]), Plan())
        self.assertEqual(self.matched(fakes.request("new", 64), 0), 48)
        before = {LAYOUT.space().key(content) for content in old.block_hashes}
        self.assertTrue(before.isdisjoint(self.session.search.call_args.args[0]))

    def test_blocks_without_hash_are_not_saved(self):
        request = fakes.request("a", 32)
        self.scheduler.allocated(request, [5, 6, 7], 0)
        self.assertEqual(self.scheduler.plan([("a", [5, 6, 7], 48)]).saves[0].blocks, [5, 6])
        request.block_hashes.append(b"x" * 32)
        self.assertEqual(self.scheduler.plan([("a", [5, 6, 7], 49)]).saves[0].blocks, [7])

    def test_saves_of_a_step_are_bounded(self):
        count = MAX_STEP_BLOCKS + 10
        blocks = list(range(count))
        self.scheduler.allocated(fakes.request("a", count * 16), blocks, 0)
        self.scheduler.allocated(fakes.request("b", 16), [0], 0)
        plan = self.scheduler.plan([("a", blocks, count * 16), ("b", [0], 16)])
        self.assertEqual([len(save.keys) for save in plan.saves], [MAX_STEP_BLOCKS])
        plan = self.scheduler.plan([("a", blocks, count * 16), ("b", [0], 16)])
        self.assertEqual([len(save.keys) for save in plan.saves], [10, 1])

    def test_a_load_is_sent_though_its_request_has_finished(self):
        """vLLM keeps the blocks until the end of the load is reported."""
        request = fakes.request("a", 64)
        self.scheduler.allocated(request, [0, 1, 2, 3], self.matched(request, 0))
        self.scheduler.finished(request)
        self.assertEqual([load.blocks for load in self.scheduler.plan([("a", [0, 1, 2, 3], 64)]).loads], [[0, 1, 2]])
        self.assertEqual(self.scheduler.plan([("a", [0, 1, 2, 3], 64)]), Plan())

    def test_roles(self):
        scheduler = Scheduler(LAYOUT.space(), 16, load=False, save=False)
        scheduler.use(self.link)
        request = fakes.request("a", 64)
        self.assertEqual(scheduler.matched_tokens(request, 0), 0)
        scheduler.allocated(request, [0, 1, 2, 3], 0)
        self.assertEqual(scheduler.plan([("a", [0, 1, 2, 3], 64)]), Plan())

    def test_changes(self):
        request = fakes.request("a", 33)
        one, two = request.block_hashes
        keys = [LAYOUT.space().key(content) for content in (one, two)]
        self.scheduler.matched_tokens(request, 0)
        self.scheduler.changed(1, True, [*keys, b"unknown key 16 b"])
        self.scheduler.changed(1, True, keys[:1])  # is known
        self.scheduler.changed(2, True, keys[:1])
        self.scheduler.changed(1, False, keys[:1])
        self.scheduler.changed(1, False, None)
        self.assertEqual(
            self.scheduler.take_changes(),
            [Change(1, True, [one, two]), Change(2, True, [one]), Change(1, False, [one]), Change(1, False, [two])],
        )
        self.assertEqual(self.scheduler.take_changes(), [])

    def test_changes_are_bounded(self):
        request = fakes.request("a", 33)
        self.scheduler.matched_tokens(request, 0)
        keys = [LAYOUT.space().key(content) for content in request.block_hashes]
        self.scheduler.changed(2, True, keys[1:])
        with mock.patch("stator_connector.scheduler.MAX_EVENTS", 4):
            for stored in (True, False, True, False):
                self.scheduler.changed(1, stored, keys[:1])
        self.assertEqual(
            self.scheduler.take_changes(),
            [Change(1, False, request.block_hashes[:1]), Change(2, False, request.block_hashes[1:])],
        )


class Copies(unittest.TestCase):
    def test_blocks_are_layers(self):
        tensors = [fakes.Tensor(8, 2, 16, 32) for _ in range(2)]
        pages = Pages(tensors, PAGE, 8)
        self.assertEqual(pages.block_bytes, LAYOUT.block_bytes)
        tensors[0].fill(3, b"a" * PAGE)
        tensors[1].fill(3, b"b" * PAGE)
        slot = memoryview(bytearray(pages.block_bytes))
        pages.read(3, slot)
        self.assertEqual(bytes(slot), b"a" * PAGE + b"b" * PAGE)
        pages.write(7, slot)
        self.assertEqual([tensor.block(7, PAGE) for tensor in tensors], [b"a" * PAGE, b"b" * PAGE])
        self.assertEqual(tensors[0].block(6, PAGE), bytes(PAGE))
        for block in (-1, 8):
            with self.assertRaises(IndexError):
                pages.read(block, slot)

    def test_distant_blocks(self):
        tensor = fakes.Tensor(4, 2, 16, 32, strides=(2048, 512, 32, 1))
        pages = Pages([tensor], PAGE, 4)
        pages.write(3, memoryview(bytearray(b"x" * PAGE)))
        self.assertEqual((tensor.block(3, PAGE), tensor.block(2, PAGE)), (b"x" * PAGE, bytes(PAGE)))
        with self.assertRaisesRegex(ValueError, "a slot of"):
            pages.write(3, memoryview(bytearray(PAGE - 1)))

    def test_unsupported(self):
        for want, tensor in {
            "only caches in host memory": fakes.Tensor(8, 2, 16, 32, device="cuda"),
            "8 blocks are expected": fakes.Tensor(7, 2, 16, 32),
            "have gaps": fakes.Tensor(8, 2, 16, 32, strides=(2048, 1024, 32, 1)),
            "overlap": fakes.Tensor(8, 2, 16, 32, strides=(512, 512, 32, 1)),
            "a block of a layer has 1024 bytes": fakes.Tensor(8, 1, 16, 32),
        }.items():
            with self.subTest(want), self.assertRaisesRegex(UnsupportedCache, want):
                Pages([tensor], PAGE, 8)


class Works(unittest.TestCase):
    def setUp(self):
        self.clock = Clock(self, "worker")
        self.memory = {number: memoryview(bytearray(2 * PAGE)) for number in range(4)}
        self.session = mock.Mock()
        self.session.arena.slot.side_effect = self.memory.__getitem__
        self.session.find.return_value = Found(0, 0, 0)
        self.session.reserve.side_effect = lambda count, timeout: list(range(count))
        self.tensors = [fakes.Tensor(8, 2, 16, 32) for _ in range(2)]
        self.link = link_with(self.session)
        self.worker = Worker()
        self.addCleanup(self.worker.close)
        self.worker.use(self.link, Pages(self.tensors, PAGE, 8))

    def begin(self, *names):
        """Begin loads of two blocks each: 0 and 1 of the first request, and so on."""
        self.worker.load(Plan(loads=[Transfer(name, [b"k", b"l"], [2 * i, 2 * i + 1]) for i, name in enumerate(names)]))

    def end(self, *names):
        """Wait for the ends of loads, and return the blocks that they do not have."""
        ended, failed = set(), set()
        while ended != set(names):
            some, blocks = self.worker.take_ended()
            self.assertTrue(ended.isdisjoint(some))
            ended |= some
            failed |= blocks
            time.sleep(0.001)
        return failed

    def fetched(self, *slots):
        return SimpleNamespace(slots=list(slots), release=mock.Mock())

    def test_load(self):
        self.memory[1][:] = b"x" * (2 * PAGE)
        lease = self.session.fetch.return_value = self.fetched(0, 1)
        self.begin("a")
        self.assertEqual(self.end("a"), set())
        self.assertEqual(self.tensors[1].block(1, PAGE), b"x" * PAGE)
        lease.release.assert_called_once()
        self.assertEqual(self.worker.take_ended(), (set(), set()))

    def test_failed_loads_are_reported_once(self):
        for name, slots, want in (
            ("fewer blocks", (0,), {1}),
            ("none", (), {0, 1}),
            ("the session ended while blocks were copied", (0, 1), {0, 1}),
            ("no session", (0, 1), {0, 1}),
        ):
            with self.subTest(name):
                self.session.fetch.return_value = self.fetched(*slots)
                self.session.check.side_effect = StoreError("gone") if "ended" in name else None
                self.link.ready_session = None if name == "no session" else self.session
                self.begin("a")
                self.assertEqual(self.end("a"), want)
                self.assertEqual(self.worker.take_ended(), (set(), set()))

    def test_a_step_does_not_wait_for_loads(self):
        """A store hangs while four requests load. All steps go on, and the loads that wait end when the first one has failed."""
        hanging, gone = threading.Event(), threading.Event()
        self.link.pause.side_effect = lambda: setattr(self.link, "ready_session", None)

        def fetch(keys, timeout):
            hanging.set()
            gone.wait(20)
            raise StoreError("the KV store did not answer")

        self.session.fetch.side_effect = fetch
        names = [f"r{number}" for number in range(4)]
        self.begin(*names)
        self.assertTrue(hanging.wait(20))
        for _ in range(5):  # steps of other requests
            self.begin()
            self.assertEqual(self.worker.take_ended(), (set(), set()))
        gone.set()
        self.assertEqual(self.end(*names), set(range(8)))
        self.assertLessEqual(self.session.fetch.call_count, 4)

    def test_the_time_of_all_loads_of_a_step_is_bounded(self):

        def fetch(keys, timeout):
            self.clock.now += timeout
            raise StoreError("the KV store did not answer")

        self.session.fetch.side_effect = fetch
        with mock.patch.object(self.worker._loaders, "submit", lambda run, *args: run(*args)):
            self.begin("a", "b", "c")
        self.session.fetch.assert_called_once()  # the others had no time left
        self.assertEqual(self.end("a", "b", "c"), {0, 1, 2, 3, 4, 5})

    def test_the_time_of_all_saves_of_a_step_is_bounded(self):
        waited = []

        def find(keys, prefix, timeout):
            waited.append(timeout)
            self.clock.now += min(timeout, 0.03)
            if timeout < 0.03:
                raise StoreError("the KV store did not answer")
            return Found(len(keys), 0, 0)

        self.session.find.side_effect = find
        self.link.pause.side_effect = lambda: setattr(self.link, "ready_session", None)
        self.worker.save(Plan(saves=[Transfer(name, [b"k"], [5]) for name in "abcd"]))
        self.assertEqual([round(timeout, 3) for timeout in waited], [0.05, 0.02])
        self.link.pause.assert_called_once()

    def test_save_what_is_missing(self):
        self.session.find.return_value = Found(1, 1, 0)
        self.tensors[0].fill(6, b"y" * PAGE)
        self.worker.save(Plan(saves=[Transfer("a", [b"k", b"l"], [5, 6])]))
        self.session.commit.assert_called_once_with([0], [b"l"], timeout=mock.ANY)
        self.assertEqual(bytes(self.memory[0]), b"y" * PAGE + bytes(PAGE))

    def test_no_room(self):
        self.session.reserve.side_effect = lambda count, timeout: []
        self.worker.save(Plan(saves=[Transfer("a", [b"k"], [5])]))
        self.session.commit.assert_not_called()
        self.link.pause.assert_not_called()

    def test_failed_saves_give_slots_back(self):
        self.worker.save(Plan(saves=[Transfer("a", [b"k"], [99])]))
        self.session.drop.assert_called_once_with([0])
        self.link.pause.assert_called_once()


class Connector(unittest.TestCase):
    def make(self, role, **changes):
        connector = StatorConnector(fakes.vllm_config(**changes), role, fakes.cache_config())
        self.addCleanup(connector.shutdown)
        return connector

    def test_without_a_store_everything_is_computed(self):
        scheduler, worker = self.make(fakes.Role.SCHEDULER), self.make(fakes.Role.WORKER)
        worker.register_kv_caches({name: fakes.Tensor(8, 2, 16, 32) for name in ("layers.9.attn", "layers.10.attn")})
        request = fakes.request("a", 64)
        self.assertEqual(scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: ([0, 1, 2, 3],)), 0)
        worker.bind_connector_metadata(scheduler.build_connector_meta(fakes.step(("a", [0, 1, 2, 3], 0, 64))))
        worker.start_load_kv(None)
        worker.wait_for_save()
        self.assertEqual(worker.get_finished({"a"}), (None, None))
        self.assertTrue(scheduler.reset_cache())
        self.assertEqual(worker.get_block_ids_with_load_errors(), set())
        self.assertEqual(scheduler.request_finished(request, [0]), (False, None))
        self.assertEqual(list(scheduler.take_events()), [])

    def test_unsupported_engines_do_nothing(self):
        scheduler = self.make(fakes.Role.SCHEDULER, speculative_config=object())
        self.assertEqual(scheduler.get_num_new_matched_tokens(fakes.request("a", 64), 0), (0, False))
        self.assertEqual(scheduler.build_connector_meta(fakes.step()).plan, Plan())
        self.assertIsNone(scheduler._link)

    def test_a_worker_without_cache_reports_loads(self):
        worker = self.make(fakes.Role.WORKER)
        worker.register_kv_caches({})
        with mock.patch.object(worker, "_plan", return_value=Plan(loads=[Transfer("a", [b"k"], [5])])):
            worker.start_load_kv(None)
        ended = None
        while ended is None:
            self.assertEqual(worker.get_block_ids_with_load_errors(), set())  # not before the end is reported
            sending, ended = worker.get_finished(set())
            time.sleep(0.001)
        self.assertEqual((sending, ended), (None, {"a"}))
        self.assertEqual(worker.get_block_ids_with_load_errors(), {5})
        self.assertEqual(worker.get_block_ids_with_load_errors(), set())

    def test_loads_are_beside_steps(self):
        scheduler = self.make(fakes.Role.SCHEDULER)
        for tokens, want in ((None, (None, False)), (0, (0, False)), (32, (32, True))):
            with mock.patch.object(scheduler._scheduler, "matched_tokens", return_value=tokens):
                self.assertEqual(scheduler.get_num_new_matched_tokens(fakes.request("a", 64), 0), want)

    def test_loads_need_recompute(self):
        for policy, want in (("fail", False), ("recompute", True)):
            connector = self.make(fakes.Role.SCHEDULER, kv_transfer_config__kv_load_failure_policy=policy)
            self.assertEqual(connector._scheduler._load, want)

    def test_failed_loads_pause_the_scheduler(self):
        connector = self.make(fakes.Role.SCHEDULER)
        with mock.patch.object(connector._scheduler, "pause") as pause:
            connector.update_connector_output(SimpleNamespace(invalid_block_ids=set()))
            pause.assert_not_called()
            connector.update_connector_output(SimpleNamespace(invalid_block_ids={1}))
            pause.assert_called_once_with()

    def test_layers_in_the_order_of_numbers(self):
        names = ["model.layers.10.attn", "model.layers.9.attn", "model.layers.1.attn"]
        self.assertEqual(sorted(names, key=_natural), [names[2], names[1], names[0]])


if __name__ == "__main__":
    unittest.main()
