"""Which engines are supported, and which have blocks in common."""

import logging
import os
import pathlib
import tempfile
import unittest
from unittest import mock

from fakes import FullAttentionSpec, cache_config, vllm_config
from stator_connector.config import Unsupported, layout_of, packing_of, socket_path


def setUpModule():
    logging.disable(logging.CRITICAL)


def tearDownModule():
    logging.disable(logging.NOTSET)


@mock.patch.dict(os.environ)
class Layouts(unittest.TestCase):
    def setUp(self):
        for name in ("PYTHONHASHSEED", "STATOR_KV_MODEL", "STATOR_KV_SOCKET"):
            os.environ.pop(name, None)

    def layout(self, packing="p", vllm=None, cache=None):
        return layout_of(vllm or vllm_config(), cache or cache_config(), packing)

    def test_layout(self):
        layout = self.layout()
        self.assertEqual((layout.model, layout.layers, layout.page_tokens, layout.outer, layout.inner), ("m", 2, 16, 2, 32))
        self.assertEqual(layout.weights, "revision r")
        self.assertEqual((layout.dtype, layout.hashing, layout.block_bytes), ("bfloat16", "vllm sha256; p", 4096))

    def test_what_separates_engines(self):
        layouts = {self.layout(), self.layout(packing_of("amx", "0.32.0")), self.layout(packing_of("vec", "0.32.0"))}
        layouts.add(self.layout(packing_of("vec", "0.33.0")))
        layouts.add(self.layout(vllm=vllm_config(model_config__revision="s")))
        layouts.add(self.layout(vllm=vllm_config(cache_config__prefix_caching_hash_algo="sha256_cbor")))
        os.environ["PYTHONHASHSEED"] = "0"
        layouts.add(self.layout())
        os.environ["STATOR_KV_MODEL"] = "name"
        layouts.add(self.layout())
        self.assertEqual(len({layout.space() for layout in layouts}), 8)

    def test_weights_of_one_name(self):
        """Two folders of weights have one name, and so have two engines. Their blocks have no keys in common."""
        os.environ["STATOR_KV_MODEL"] = "name"
        layouts = []
        for content in (b"old weights", b"new weights"):
            folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_bytes(content)
            layouts.append(self.layout(vllm=vllm_config(model_config__model=str(folder), model_config__revision=None)))
        old, new = layouts
        self.assertEqual((old.model, new.model), ("name", "name"))
        self.assertNotEqual(old.weights, new.weights)
        self.assertNotEqual(old.space().key(b"content"), new.space().key(b"content"))

    def test_options_that_change_weights(self):
        plain, quantized = self.layout(), self.layout(vllm=vllm_config(model_config__quantization="fp8"))
        self.assertNotEqual(plain.space(), quantized.space())

    def test_unsupported_engines(self):
        for want, vllm in {
            "Set --revision to a name that changes with the weights": vllm_config(model_config__revision=None),
            "pipeline_parallel_size is 2": vllm_config(parallel_config__pipeline_parallel_size=2),
            "tensor_parallel_size is 2": vllm_config(parallel_config__tensor_parallel_size=2),
            "runs on cuda": vllm_config(device_config__device_type="cuda"),
            "speculative decoding": vllm_config(speculative_config=object()),
            "prefix caching is off": vllm_config(cache_config__enable_prefix_caching=False),
            "needs the environment variable PYTHONHASHSEED": vllm_config(cache_config__prefix_caching_hash_algo="xxhash"),
        }.items():
            with self.subTest(want), self.assertRaisesRegex(Unsupported, want):
                self.layout(vllm=vllm)

    def test_unsupported_caches(self):
        class SlidingWindowSpec(FullAttentionSpec):
            pass

        two = cache_config()
        two.kv_cache_groups *= 2
        sliding = cache_config()
        sliding.kv_cache_groups[0].kv_cache_spec = SlidingWindowSpec()
        for want, cache in {
            "2 groups": two,
            "SlidingWindowSpec": sliding,
            "different sizes": cache_config(spec__head_size_v=8),
            "both must be equal": cache_config(hash_block_size=8),
            "has the type uint8": cache_config(spec__dtype="torch.uint8"),
            "page_tokens": cache_config(spec__block_size=0),
        }.items():
            with self.subTest(want), self.assertRaisesRegex(Unsupported, want):
                self.layout(cache=cache)

    def test_socket(self):
        with self.assertRaisesRegex(ValueError, "STATOR_KV_SOCKET"):
            socket_path({})
        os.environ["STATOR_KV_SOCKET"] = "/run/a"
        self.assertEqual((socket_path({}), socket_path({"socket": "/run/b"})), ("/run/a", "/run/b"))


if __name__ == "__main__":
    unittest.main()
