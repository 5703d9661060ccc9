"""Layouts, spaces and keys of KV blocks. They equal those of the Go package internal/kv/block byte by byte."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

KEY_BYTES = 16

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}

_MAX_TEXT = 1024
_MAX_COUNT = 1 << 20
_MAX_BYTES = 1 << 30  # of a block


@dataclass(frozen=True)
class Layout:
    """What the bytes of a block depend on.

    The bytes are layers, each with outer parts of page_tokens tokens of inner numbers of type dtype, without gaps.
    """

    model: str
    layers: int
    page_tokens: int
    outer: int
    inner: int
    dtype: str
    tp_size: int = 1
    tp_rank: int = 0
    hashing: str = ""
    weights: str = ""

    def validate(self) -> None:
        """Raise ValueError, which names the field that is wrong."""
        longest = max(len(text.encode()) for text in (self.model, self.weights, self.hashing))
        if not self.model or longest > _MAX_TEXT:
            raise ValueError(f"model, weights and hashing need at most {_MAX_TEXT} bytes, and model at least one")
        for name in ("layers", "page_tokens", "outer", "inner", "tp_size"):
            if not 1 <= getattr(self, name) <= _MAX_COUNT:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be from 1 to {_MAX_COUNT}")
        if not 0 <= self.tp_rank < self.tp_size:
            raise ValueError(f"tp_rank is {self.tp_rank} of {self.tp_size} ranks")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is unknown: use {', '.join(DTYPE_BYTES)}")
        if self.block_bytes > _MAX_BYTES:
            raise ValueError(f"a block has {self.block_bytes} bytes, more than {_MAX_BYTES}")

    @property
    def layer_bytes(self) -> int:
        """The size of a block's part of one layer."""
        return self.outer * self.page_tokens * self.inner * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """The size of a block."""
        return self.layers * self.layer_bytes

    def to_json(self) -> dict[str, str | int]:
        """Return the layout as it is sent to the store."""
        return {
            "model": self.model,
            "weights": self.weights,
            "layers": self.layers,
            "pageTokens": self.page_tokens,
            "outer": self.outer,
            "inner": self.inner,
            "dtype": self.dtype,
            "tpSize": self.tp_size,
            "tpRank": self.tp_rank,
            "hashing": self.hashing,
        }

    def space(self) -> Space:
        """Return the digest of the layout."""
        digest = hashlib.sha256(b"stator kv space 2\n")
        for text in (self.model, self.weights, self.dtype, self.hashing):
            encoded = text.encode()
            digest.update(struct.pack("<I", len(encoded)) + encoded)
        numbers = (self.layers, self.page_tokens, self.outer, self.inner, self.tp_size, self.tp_rank)
        digest.update(struct.pack("<6I", *numbers))
        return Space(digest.digest())


@dataclass(frozen=True)
class Space:
    """The digest of a layout. Blocks of different spaces have no keys in common."""

    digest: bytes

    def within(self, part: bytes) -> Space:
        """Return a space of a part of this one's blocks, such as those of an adapter. Different parts have no keys in common."""
        return Space(hashlib.sha256(b"stator kv part\n" + self.digest + part).digest())

    def key(self, content: bytes) -> bytes:
        """Return the key of the block with an engine's content hash, which must cover all tokens before the block too."""
        return hashlib.sha256(self.digest + content).digest()[:KEY_BYTES]
