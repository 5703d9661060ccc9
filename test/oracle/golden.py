"""Writes small vocabularies with unusual settings, and what tokenizers makes of some texts with
them, for the unit tests to repeat without an oracle:

    .venv-oracle/bin/python test/oracle/golden.py > internal/prompt/tokenizer/testdata/reference.jsonl
"""

import json
import pathlib
import random

import corpus
import settings
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

SAYING = (corpus.ROOT / "README.md").read_text() + " ".join(corpus.WORDS) * 3


def vocabulary(of_bytes, normalizer=None, splitter=None, decoder=None, size=420, bytes_=range(256), added=(), **options):
    t = Tokenizer(models.BPE(**options))
    if normalizer:
        t.normalizer = normalizer
    if splitter:
        t.pre_tokenizer = splitter
    if decoder:
        t.decoder = decoder
    special = ["<unk>"] if options.get("unk_token") else []
    if options.get("byte_fallback"):
        special += [f"<0x{b:02X}>" for b in bytes_]
    t.train_from_iterator([SAYING], trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False, limit_alphabet=70, initial_alphabet=pre.ByteLevel.alphabet() if of_bytes else []))
    for a in added:
        (t.add_special_tokens if a.special else t.add_tokens)([a])
    return t


def cases(r):
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    marks = normalizers.Replace(" ", "▁")
    spm = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    yield "gemma", vocabulary(False, marks, pre.Split(" ", "merged_with_previous"), decoders.Sequence(spm), unk_token="<unk>",
                              fuse_unk=True, byte_fallback=True, added=settings.added(r))
    yield "llama2", vocabulary(False, normalizers.Sequence([normalizers.Prepend("▁"), marks]), None,
                               decoders.Sequence(spm + [decoders.Strip(" ", 1, 0)]), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    for scheme, split in (("first", False), ("always", True), ("never", True)):
        yield f"metaspace {scheme}", vocabulary(False, None, pre.Metaspace(prepend_scheme=scheme, split=split),
                                                decoders.Metaspace(prepend_scheme=scheme), unk_token="<unk>", added=settings.added(r))
    yield "bytes missing", vocabulary(False, None, None, None, unk_token="<unk>", byte_fallback=True, bytes_=range(100, 256))
    yield "normalized added", vocabulary(False, normalizers.Sequence([normalizers.Prepend("▁"), marks, normalizers.Strip(True, True)]), None,
                                         decoders.Sequence(spm), byte_fallback=True, ignore_merges=True, added=settings.added(r) + settings.added(r))
    yield "whitespace", vocabulary(False, None, pre.Whitespace(), None, unk_token="<unk>", fuse_unk=False)
    yield "digits", vocabulary(True, normalizers.NFC(), pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=True)]), decoders.ByteLevel())
    yield "after bytes", vocabulary(True, None, pre.Sequence([pre.Punctuation("contiguous"), pre.ByteLevel(add_prefix_space=False), pre.Digits(False),
                                                             pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), decoders.ByteLevel())
    for rx in settings.KNOWN:
        if rx.startswith((r"\d{1,3}(?=", "(?=")):
            continue
        behavior = r.choice(settings.BEHAVIORS[1:])
        yield f"{behavior} {rx}", vocabulary(True, None, pre.Sequence([pre.Split(Regex(rx), behavior), byte_level]), decoders.ByteLevel(), size=300)


def main():
    r = random.Random(1)
    texts = corpus.Texts.__new__(corpus.Texts)
    texts.random, texts.documents, texts.agents = r, [SAYING], []
    for name, t in cases(r):
        model = json.loads(t.to_str())
        rows = []
        for text in texts.make(40, model) + ["", "  <s>  the\n\n\n ", "naïve 你好 👩‍👩‍👧 ², x 12345"]:
            text = text[:200]
            ids = t.encode(text, add_special_tokens=False).ids
            rows.append({"text": text, "ids": ids})
        print(json.dumps({"name": name, "model": model, "texts": rows}, ensure_ascii=False))


if __name__ == "__main__":
    main()
