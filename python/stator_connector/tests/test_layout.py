"""Spaces and keys equal those that Go computed."""

import dataclasses
import json
import pathlib
import unittest

from stator_connector.layout import Layout, Space

VECTORS = pathlib.Path(__file__).parents[3] / "internal/kv/block/testdata/keys.json"


def layout_of(fields: dict) -> Layout:
    """Return the layout of Go's JSON."""
    names = {"pageTokens": "page_tokens", "tpSize": "tp_size", "tpRank": "tp_rank"}
    return Layout(**{names.get(name, name): value for name, value in fields.items()})


VALID = Layout(model="m", layers=2, page_tokens=16, outer=2, inner=32, dtype="bfloat16", hashing="sha256")


class Vectors(unittest.TestCase):
    def test_equal(self):
        vectors = json.loads(VECTORS.read_text())
        self.assertGreater(len(vectors), 3)
        for vector in vectors:
            layout = layout_of(vector["layout"])
            layout.validate()
            self.assertEqual(layout.to_json(), vector["layout"])
            self.assertEqual(layout.block_bytes, vector["bytes"])
            self.assertEqual(layout.space().digest.hex(), vector["space"])
            self.assertEqual(layout.space().key(bytes.fromhex(vector["content"])).hex(), vector["key"])

    def test_key_needs_the_space(self):
        self.assertNotEqual(VALID.space().key(b"x"), Space(bytes(32)).key(b"x"))


class Bounds(unittest.TestCase):
    def test_invalid(self):
        VALID.validate()
        for name, value in {"model": "", "layers": 0, "page_tokens": 1 << 21, "tp_rank": 1, "dtype": "float8"}.items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                dataclasses.replace(VALID, **{name: value}).validate()
        with self.assertRaisesRegex(ValueError, "a block has"):
            dataclasses.replace(VALID, layers=1 << 20, inner=1 << 20).validate()


if __name__ == "__main__":
    unittest.main()
