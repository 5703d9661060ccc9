"""Copies blocks between an engine's KV cache and slots of the store, for caches in ordinary memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any


class UnsupportedCache(Exception):
    """The engine's KV cache has a shape or place that the connector cannot copy."""


class Pages:
    """The KV caches of all layers, of which each has one page for a block.

    A page's bytes are copied as they are. Which engines may exchange them is decided by the layout, see config.packing_of.
    """

    def __init__(self, tensors: Iterable[Any], page_bytes: int, blocks: int) -> None:
        """Take tensors in the order of the layers, whose first dimension is the block. Raise UnsupportedCache."""
        self._page_bytes = page_bytes
        self._blocks = blocks
        self._tensors = list(tensors)  # keeps their memory
        self._views = [_view(tensor, page_bytes, blocks) for tensor in self._tensors]
        self.block_bytes = page_bytes * len(self._views)

    def read(self, block: int, slot: memoryview) -> None:
        """Copy a block of the cache into a slot."""
        self._check(block)
        for number, (memory, stride) in enumerate(self._views):
            at = number * self._page_bytes
            slot[at : at + self._page_bytes] = memory[block * stride : block * stride + self._page_bytes]

    def write(self, block: int, slot: memoryview) -> None:
        """Copy a slot into a block of the cache.

        Loads run beside the engine's steps, so it releases the interpreter's lock during each copy, which a memoryview would not.
        """
        self._check(block)
        if len(slot) < self.block_bytes:
            raise ValueError(f"a slot of {len(slot)} bytes for a block of {self.block_bytes}")
        source = ctypes.addressof(ctypes.c_char.from_buffer(slot))
        for number, (memory, stride) in enumerate(self._views):
            target = ctypes.addressof(ctypes.c_char.from_buffer(memory, block * stride))
            ctypes.memmove(target, source + number * self._page_bytes, self._page_bytes)

    def _check(self, block: int) -> None:
        if not 0 <= block < self._blocks:
            raise IndexError(f"block {block} of {self._blocks}")


def _view(tensor: Any, page_bytes: int, blocks: int) -> tuple[memoryview, int]:
    """Return the bytes of a tensor, and the distance of two of its blocks."""
    if tensor.device.type != "cpu":
        raise UnsupportedCache(f"the KV cache is on {tensor.device}: only caches in host memory are supported")
    shape, strides, size = list(tensor.shape), list(tensor.stride()), tensor.element_size()
    if not shape or shape[0] != blocks:
        raise UnsupportedCache(f"the KV cache has the shape {shape}, and {blocks} blocks are expected")
    dense = size
    for length, stride in sorted(zip(shape[1:], strides[1:]), key=lambda pair: pair[1]):
        if length > 1 and stride * size != dense:
            raise UnsupportedCache(f"blocks of the KV cache have gaps: shape {shape}, strides {strides}")
        dense *= length
    if dense != page_bytes:
        raise UnsupportedCache(f"a block of a layer has {dense} bytes, and its layout {page_bytes}")
    stride = strides[0] * size
    if stride < page_bytes:
        raise UnsupportedCache(f"blocks of the KV cache overlap: shape {shape}, strides {strides}")
    memory = (ctypes.c_char * ((blocks - 1) * stride + page_bytes)).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B"), stride
