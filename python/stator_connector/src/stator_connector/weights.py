"""Fingerprints of weights, which distinguish models and adapters of one name.

Small files are hashed as a whole. Of large ones the size, the beginning and samples are hashed: of safetensors three in each tensor, and of
other files at equal distances. So the files of a large model are read in seconds. A change of a few numbers between the samples is not
noticed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO

logger = logging.getLogger("stator_connector")

# Files with weights, and others that change what a model computes.
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_OTHERS = ("config.json", "params.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json")
_CODE = ".py"  # of models that bring their own

_WHOLE = 16 << 20  # bytes of a file that is hashed as a whole
_BEGINNING = 1 << 20  # bytes of the beginning of a larger one
_SAMPLE = 1024  # bytes
_SAMPLES = 4096  # of a file without a list of its tensors
_MAX_HEADER = 100 << 20  # bytes of the header of a safetensors file
_MAX_FILES = 10_000
_MAX_SECONDS = 60.0  # for one model
_MAX_ADAPTERS = 1024  # that are remembered

# A signature is what the file system has of the files of a folder: name, size, time of the last change, and inode.
Signature = tuple[tuple[str, int, int, int], ...]


class WeightsError(Exception):
    """The files of weights cannot be read."""


def fingerprint(path: str, seconds: float = _MAX_SECONDS) -> str:
    """Return the fingerprint of a folder or file of weights. Raise WeightsError if it cannot be read within so many seconds."""
    deadline = time.monotonic() + seconds
    try:
        before = signature(path)
        digest = hashlib.sha256(b"stator weights 1\n")
        for name, size, _, _ in before:
            digest.update(struct.pack("<IQ", len(name.encode()), size) + name.encode())
            with open(os.path.join(path, name) if os.path.isdir(path) else path, "rb") as file:
                for at, count in _parts(file, name, size):
                    file.seek(at)
                    digest.update(file.read(count))
                    if time.monotonic() > deadline:
                        raise WeightsError(f"the weights in {path} could not be read within {seconds:g} s")
        if signature(path) != before:
            raise WeightsError(f"the weights in {path} changed while they were read")
    except (OSError, ValueError) as error:
        raise WeightsError(f"read the weights in {path}: {error}") from error
    return digest.hexdigest()[:32]


def signature(path: str) -> Signature:
    """Return the signature of a folder or file of weights. Raise WeightsError if there are none."""
    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in entries if _counts(entry.name) and entry.is_file())
            paths = [os.path.join(path, name) for name in names]
        else:
            names, paths = [os.path.basename(path)], [path]
        if not any(name.endswith(_WEIGHTS) for name in names):
            raise WeightsError(f"{path} has no files of weights ({', '.join(_WEIGHTS)})")
        if len(names) > _MAX_FILES:
            raise WeightsError(f"{path} has {len(names)} files: at most {_MAX_FILES} are read")
        stats = [os.stat(file) for file in paths]
    except OSError as error:
        raise WeightsError(f"read the weights in {path}: {error}") from error
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in zip(names, stats))


def _counts(name: str) -> bool:
    return name.endswith(_WEIGHTS) or name.endswith(_CODE) or name in _OTHERS


def _parts(file: BinaryIO, name: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield the places of a file that are hashed, with their sizes."""
    if size <= _WHOLE:
        yield 0, size
        return
    yield 0, _BEGINNING
    yield size - _SAMPLE, _SAMPLE
    if not name.endswith(".safetensors"):
        for number in range(_SAMPLES):
            yield number * (size - _SAMPLE) // _SAMPLES, _SAMPLE
        return

    file.seek(0)
    (header,) = struct.unpack("<Q", file.read(8))
    if header > min(_MAX_HEADER, size - 8):
        raise ValueError(f"the header of {name} has {header} bytes, of {size} of the file")
    tensors = json.loads(file.read(header))
    if not isinstance(tensors, dict):
        raise ValueError(f"the header of {name} is no list of tensors")
    yield 8, header
    for tensor, members in sorted(tensors.items()):
        if tensor != "__metadata__":
            yield from _samples_of(members, 8 + header, size)


def _samples_of(members: Any, data: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning, the middle and the end of a tensor, whose data begin at a place of a file of a size."""
    try:
        start, end = (data + int(offset) for offset in members["data_offsets"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a tensor without place: {error}") from error
    if not data <= start <= end <= size:
        raise ValueError(f"a tensor from {start} to {end} of {size} bytes")
    for at in (start, (start + end) // 2, max(start, end - _SAMPLE)):
        yield at, min(_SAMPLE, end - at)


def of_model(vllm_config: Any) -> str:
    """Return what distinguishes an engine's weights: a fingerprint, with the revision if one is configured.

    Weights whose files cannot be read need a revision. Raise WeightsError without one.
    """
    model_config = vllm_config.model_config
    revision = getattr(model_config, "revision", None)
    options = {name: getattr(model_config, name, None) or None for name in ("quantization", "hf_overrides")}
    try:
        parts = ["sha256 " + fingerprint(_path_of(vllm_config))]
    except WeightsError as error:
        if not revision:
            raise WeightsError(f"{error}. Set --revision to a name that changes with the weights") from error
        logger.warning("%s: the revision %r alone distinguishes them", error, revision)
        parts = []
    if revision:
        parts.append(f"revision {revision}")
    if any(options.values()):
        text = json.dumps(options, sort_keys=True, default=str)
        parts.append("options " + hashlib.sha256(text.encode()).hexdigest()[:16])
    return ", ".join(parts)


def _path_of(vllm_config: Any) -> str:
    """Return the folder or file of an engine's weights: its --model, or what was downloaded for that name."""
    model_config, load_config = vllm_config.model_config, vllm_config.load_config
    model = str(model_config.model)
    if getattr(model_config, "model_weights", "") or str(load_config.load_format) == "dummy":
        raise WeightsError(f"the weights of {model} are not read from files of this machine")
    if os.path.exists(model):
        return model
    try:
        from huggingface_hub import snapshot_download

        revision = getattr(model_config, "revision", None)
        return str(snapshot_download(model, revision=revision, cache_dir=load_config.download_dir, local_files_only=True))
    except Exception as error:
        raise WeightsError(f"{model} is no path of this machine, and no model in the cache of downloads") from error


class Adapters:
    """Fingerprints of LoRA adapters, computed in the background. It is used by one thread, which never waits for a file's content.

    Which weights of an adapter an engine has is known only while its files stay as they were at the first request. So an adapter whose
    files have changed is not used any more until vLLM loads it under another number.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, str], tuple[Signature, str] | None] = OrderedDict()  # guarded by _lock; None if not usable
        self._reading: set[tuple[int, str]] = set()  # guarded by _lock

    def fingerprint_of(self, adapter: Any) -> str | None:
        """Return the fingerprint of vLLM's adapter, or None if it is not known yet or its blocks must not be shared."""
        name = (adapter.lora_int_id, adapter.lora_path)
        with self._lock:
            if name not in self._known:
                if name not in self._reading:
                    self._reading.add(name)
                    threading.Thread(target=self._read, args=(name, adapter.lora_name), name="stator-kv-adapter", daemon=True).start()
                return None
            known = self._known[name]
        if known is None:
            return None
        try:
            if not adapter.load_inplace and signature(adapter.lora_path) == known[0]:
                return known[1]
        except WeightsError:
            pass  # as if the files had changed
        logger.warning("the files of the adapter %r have changed: its blocks are not shared until it is loaded again", adapter.lora_name)
        self._set(name, None)
        return None

    def _read(self, name: tuple[int, str], label: str) -> None:
        try:
            before = signature(name[1])
            self._set(name, (before, fingerprint(name[1])))
        except WeightsError as error:
            logger.warning("blocks of the adapter %r are not shared: %s", label, error)
            self._set(name, None)

    def _set(self, name: tuple[int, str], known: tuple[Signature, str] | None) -> None:
        with self._lock:
            self._reading.discard(name)
            self._known[name] = known
            while len(self._known) > _MAX_ADAPTERS:
                self._known.popitem(last=False)
