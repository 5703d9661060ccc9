"""Plans of the scheduler, copies and failures of the worker, without a store. store_connector.py runs them with one."""

import logging
import unittest
from types import SimpleNamespace
from unittest import mock

import fakes
from stator_connector.layout import Layout
from stator_connector.pages import Pages, UnsupportedCache
from stator_connector.protocol import Found, StoreError
from stator_connector.scheduler import MAX_STEP_BLOCKS, Change, Plan, Scheduler, Transfer
from stator_connector.worker import TAINTED_STEPS, Worker

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


class Schedules(unittest.TestCase):
    def setUp(self):
        self.session = mock.Mock()
        self.session.find.side_effect = lambda keys, prefix, timeout: Found(len(keys), len(keys), 1)
        self.link = link_with(self.session)
        self.scheduler = Scheduler(LAYOUT.space(), 16)
        self.scheduler.use(self.link)

    def test_the_last_token_is_computed(self):
        for tokens, computed, want in ((64, 0, 48), (65, 0, 64), (65, 32, 32), (16, 0, 0), (64, 48, 0), (64, 8, 0)):
            with self.subTest(tokens=tokens, computed=computed):
                self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", tokens), computed), want)

    def test_only_what_is_worth_loading(self):
        self.session.find.side_effect = lambda keys, prefix, timeout: Found(4, 2, 1)
        self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", 160), 32), 32)
        self.assertEqual(self.session.find.call_args.args[1], 32)

    def test_failures_find_nothing(self):
        self.session.find.side_effect = StoreError("too late")
        self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", 64), 0), 0)
        self.link.pause.assert_called_once()
        self.link.ready_session = None
        self.assertEqual(self.scheduler.matched_tokens(fakes.request("a", 64), 0), 0)

    def test_loads_and_saves(self):
        request = fakes.request("a", 70)
        space = LAYOUT.space()
        keys = [space.key(content) for content in request.block_hashes]
        self.assertEqual(self.scheduler.matched_tokens(request, 16), 48)
        self.scheduler.allocated(request, [3, 4, 5, 6, 7], 32)  # vLLM may take less
        plan = self.scheduler.plan([("a", [3, 4, 5, 6, 7], 70)])
        self.assertEqual(plan.loads, [Transfer("a", keys[1:3], [4, 5])])
        self.assertEqual(plan.saves, [Transfer("a", keys, [3, 4, 5, 6])])
        self.assertEqual(plan.requests, ["a"])
        self.session.name.assert_called_once_with(keys)
        self.assertEqual(self.scheduler.plan([("a", [3, 4, 5, 6, 7], 71)]), Plan(requests=["a"]))

        request.block_hashes.append(b"x" * 32)
        plan = self.scheduler.plan([("a", [3, 4, 5, 6, 7], 80)])
        self.assertEqual(plan.saves, [Transfer("a", [space.key(b"x" * 32)], [7])])

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

    def test_requests_with_failed_blocks_save_nothing(self):
        for number, name in enumerate("abc"):
            self.scheduler.allocated(fakes.request(name, 32, first_hash=10 * number), [number, number + 1], 0)
        self.scheduler.failed({1})
        self.link.pause.assert_called_once()
        steps = [("a", [0, 1], 32), ("b", [1, 2], 32), ("c", [2, 3], 32)]
        self.assertEqual([save.request_id for save in self.scheduler.plan(steps).saves], ["c"])
        with mock.patch("stator_connector.scheduler.time.monotonic", return_value=float("inf")):  # computed again long ago
            self.assertEqual(self.scheduler.plan(steps).saves, [])
            self.scheduler.finished("b")
            self.scheduler.allocated(fakes.request("b", 32), [1, 2], 0)
            self.assertEqual([save.request_id for save in self.scheduler.plan(steps).saves], ["b"])

    def test_finished_requests_are_forgotten(self):
        request = fakes.request("a", 64)
        self.scheduler.matched_tokens(request, 0)
        self.scheduler.allocated(request, [0, 1, 2, 3], 48)
        self.scheduler.finished("a")
        self.assertEqual(self.scheduler.plan([("a", [0, 1, 2, 3], 64)]), Plan(requests=["a"]))

    def test_roles(self):
        scheduler = Scheduler(LAYOUT.space(), 16, load=False, save=False)
        scheduler.use(self.link)
        request = fakes.request("a", 64)
        self.assertEqual(scheduler.matched_tokens(request, 0), 0)
        scheduler.allocated(request, [0, 1, 2, 3], 0)
        self.assertEqual(scheduler.plan([("a", [0, 1, 2, 3], 64)]), Plan(requests=["a"]))

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
        pages.write(3, memoryview(b"x" * PAGE))
        self.assertEqual((tensor.block(3, PAGE), tensor.block(2, PAGE)), (b"x" * PAGE, bytes(PAGE)))

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
        self.memory = {number: memoryview(bytearray(2 * PAGE)) for number in range(4)}
        self.session = mock.Mock()
        self.session.arena.slot.side_effect = self.memory.__getitem__
        self.session.find.return_value = Found(0, 0, 0)
        self.session.reserve.side_effect = lambda count, timeout: list(range(count))
        self.tensors = [fakes.Tensor(8, 2, 16, 32) for _ in range(2)]
        self.link = link_with(self.session)
        self.worker = Worker()
        self.worker.use(self.link, Pages(self.tensors, PAGE, 8))

    def load(self, slots=(0, 1)):
        self.session.fetch.return_value = SimpleNamespace(slots=list(slots), release=mock.Mock())
        self.worker.load(Plan(loads=[Transfer("a", [b"k", b"l"], [5, 6])], requests=["a", "b"]))

    def test_load(self):
        self.memory[1][:] = b"x" * (2 * PAGE)
        self.load()
        self.assertEqual(self.tensors[1].block(6, PAGE), b"x" * PAGE)
        self.assertEqual(self.worker.take_failed(), set())
        self.session.fetch.return_value.release.assert_called_once()

    def test_failed_loads_are_reported_once(self):
        for name, fail, want in (
            ("fewer blocks", lambda: self.load((0,)), {6}),
            ("the session ended while blocks were copied", lambda: self.load(), {5, 6}),
            ("no session", lambda: self.load(), {5, 6}),
        ):
            with self.subTest(name):
                self.session.check.side_effect = StoreError("gone") if "ended" in name else None
                self.link.session = None if name == "no session" else self.session
                fail()
                self.assertEqual(self.worker.take_failed(), want)
                self.assertEqual(self.worker.take_failed(), set())

    def test_wrong_values_are_not_saved(self):
        self.load(())
        for number in range(1, TAINTED_STEPS + 1):  # the step of the failure, and those after it
            save = Plan(saves=[Transfer("a", [b"k"], [5]), Transfer(f"c{number}", [b"m"], [4])], requests=["a", f"c{number}"])
            if number > 1:
                self.worker.load(save)
                self.worker.save(save)
        self.session.commit.assert_not_called()
        late = Plan(saves=[Transfer("d", [b"m"], [4]), Transfer("a", [b"k"], [5])], requests=["a", "d"])
        self.worker.load(late)
        self.worker.save(late)
        self.session.commit.assert_called_once_with([0], [b"m"], timeout=mock.ANY)
        self.worker.finished({"a"})
        self.worker.save(late)
        self.assertEqual(self.session.commit.call_count, 3)

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
        plan = Plan(loads=[Transfer("a", [b"k"], [5])], requests=["a"])
        worker.bind_connector_metadata(mock.Mock())
        worker._connector_metadata = SimpleNamespace(plan=plan)
        with mock.patch.object(worker, "_plan", return_value=plan):
            worker.start_load_kv(None)
        self.assertEqual(worker.get_block_ids_with_load_errors(), {5})

    def test_loads_need_recompute(self):
        for policy, want in (("fail", False), ("recompute", True)):
            connector = self.make(fakes.Role.SCHEDULER, kv_transfer_config__kv_load_failure_policy=policy)
            self.assertEqual(connector._scheduler._load, want)

    def test_failed_loads_pause_the_scheduler(self):
        connector = self.make(fakes.Role.SCHEDULER)
        with mock.patch.object(connector._scheduler, "failed") as failed:
            connector.update_connector_output(SimpleNamespace(invalid_block_ids=set()))
            failed.assert_not_called()
            connector.update_connector_output(SimpleNamespace(invalid_block_ids={1}))
            failed.assert_called_once_with({1})

    def test_layers_in_the_order_of_numbers(self):
        names = ["model.layers.10.attn", "model.layers.9.attn", "model.layers.1.attn"]
        self.assertEqual(sorted(names, key=_natural), [names[2], names[1], names[0]])


if __name__ == "__main__":
    unittest.main()
