"""Fingerprints of files that a test writes."""

import json
import logging
import os
import pathlib
import struct
import tempfile
import threading
import unittest
from types import SimpleNamespace
from unittest import mock

from stator_connector import weights
from stator_connector.weights import Adapters, WeightsError, fingerprint


def setUpModule():
    logging.disable(logging.CRITICAL)


def tearDownModule():
    logging.disable(logging.NOTSET)


def safetensors(sizes: dict[str, int], fill: int = 0) -> bytearray:
    """Return a file of tensors with these sizes in bytes, one after another."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return bytearray(struct.pack("<Q", len(text)) + text + bytes([fill]) * at)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(weights, "_WHOLE", 4096))  # as if the files were large
        self.enterContext(mock.patch.object(weights, "_BEGINNING", 1024))

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def test_every_tensor_counts(self):
        sizes = {"one": 30_000, "small": 10, "two": 50_000, "empty": 0}
        file = safetensors(sizes)
        self.write("model.safetensors", file)
        seen = {fingerprint(str(self.folder))}
        data = len(file) - sum(sizes.values())
        for place in (data, data + 15_001, data + 29_999, data + 30_005, data + 30_010, data + 30_010 + 25_000, len(file) - 1, 12):
            changed = bytearray(file)
            changed[place] ^= 1 if place != 12 else 0x20
            self.write("model.safetensors", changed)
            with self.subTest(place):
                try:
                    seen.add(fingerprint(str(self.folder)))
                except WeightsError:
                    seen.add(str(place))  # the header is damaged
        self.assertEqual(len(seen), 9)

    def test_every_file_counts(self):
        seen = set()
        for name, content in (
            ("model.gguf", bytes(100_000)),
            ("model.gguf", bytes(50_000) + b"x" * 1000 + bytes(49_000)),
            ("config.json", b"{}"),
            ("config.json", b"{ }"),
            ("model.py", b""),
            ("another.bin", b"1"),
        ):
            self.write(name, content)
            seen.add(fingerprint(str(self.folder)))
        self.assertEqual(len(seen), 6)
        self.write("README.md", b"no weights")
        self.write("tokenizer.json", b"no weights")
        self.assertIn(fingerprint(str(self.folder)), seen)

    def test_copies_are_equal(self):
        self.write("model.safetensors", safetensors({"one": 9000}))
        before = fingerprint(str(self.folder))
        os.utime(self.folder / "model.safetensors", (1, 1))
        self.assertEqual(fingerprint(str(self.folder)), before)

    def test_files_that_cannot_be_read(self):
        with self.assertRaisesRegex(WeightsError, "has no files of weights"):
            fingerprint(str(self.folder))
        with self.assertRaisesRegex(WeightsError, "No such file"):
            fingerprint(str(self.folder / "model.gguf"))
        for want, header in {
            "the header of model.safetensors has 4000000 bytes": b"x" * 4_000_000,
            "is no list of tensors": b"[]",
            "a tensor without place": b'{"a": {}}',
            "a tensor from": b'{"a": {"data_offsets": [0, 999999]}}',
            "Expecting value": b"weights",
        }.items():
            self.write("model.safetensors", (struct.pack("<Q", len(header)) + header)[:100] + bytes(9000))
            with self.subTest(want), self.assertRaisesRegex(WeightsError, want):
                fingerprint(str(self.folder))

    def test_the_time_is_bounded(self):
        self.write("model.gguf", bytes(100_000))
        with self.assertRaisesRegex(WeightsError, "could not be read within 0 s"):
            fingerprint(str(self.folder), seconds=0)

    def test_files_that_change_while_they_are_read(self):
        self.write("model.gguf", bytes(9000))
        signatures = iter([(("model.gguf", 9000, 1, 1),), (("model.gguf", 9000, 2, 1),)])
        with mock.patch.object(weights, "signature", lambda path: next(signatures)):
            with self.assertRaisesRegex(WeightsError, "changed while they were read"):
                fingerprint(str(self.folder))


class LoadedAdapters(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.write(b"old")
        self.adapters = Adapters()

    def write(self, content: bytes) -> None:
        other = self.folder / "new"
        other.write_bytes(content)
        other.rename(self.folder / "adapter_model.safetensors")

    def adapter(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(lora_name="poet", lora_int_id=number, lora_path=str(self.folder), load_inplace=False)

    def read(self, number: int) -> str | None:
        """Return the fingerprint when it is there. The first call begins to read."""
        self.assertIsNone(self.adapters.fingerprint_of(self.adapter(number)))
        for thread in threading.enumerate():
            if thread.name == "stator-kv-adapter":
                thread.join()
        return self.adapters.fingerprint_of(self.adapter(number))

    def test_new_weights_under_an_old_name(self):
        old = self.read(1)
        self.assertIsNotNone(old)
        self.write(b"new")
        self.assertIsNone(self.adapters.fingerprint_of(self.adapter(1)))  # the engine may have either of them
        self.write(b"old")
        self.assertIsNone(self.adapters.fingerprint_of(self.adapter(1)))
        self.write(b"new")
        self.assertNotIn(self.read(2), (None, old))

    def test_adapters_that_cannot_be_shared(self):
        (self.folder / "adapter_model.safetensors").unlink()
        self.assertIsNone(self.read(1))
        self.write(b"old")
        inplace = self.adapter(2)
        self.assertIsNotNone(self.read(2))
        inplace.load_inplace = True
        self.assertIsNone(self.adapters.fingerprint_of(inplace))
        self.assertIsNone(self.adapters.fingerprint_of(self.adapter(2)))


if __name__ == "__main__":
    unittest.main()
