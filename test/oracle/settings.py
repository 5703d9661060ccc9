"""Vocabularies that are trained here, with settings that few real ones have, and random
expressions for pre-tokenizers."""

import collections
import json
import pathlib
import tempfile

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

BEHAVIORS = ["removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next"]
KNOWN = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\d{1,3}(?=(?:\d{3})*\b)|\D+", r"[0-9][0-9][0-9]", r"\d", r"[A-Za-z]+|\s+|.", r"(?=[A-Z])\p{L}+?(?!\p{Ll})", r"[\n\r]+| +(?=\S)",
]


def pattern(r, depth=0):
    """A random expression."""
    def atom():
        k = r.randrange(12)
        if k < 3:
            return r.choice(["a", "b", "é", "s", "1", " ", "'", r"\n", "中", r"\.", "A", "ſ"])
        if k < 6:
            return r.choice([r"\s", r"\S", r"\d", r"\w", r"\W", r"\D", r"\p{L}", r"\p{Lu}", r"\p{N}", r"\p{M}", r"\P{L}", r"\p{^P}", ".",
                             r"\p{Han}", r"\p{Greek}", r"\p{Sc}", r"\p{Z}", r"\p{Cc}", r"\x41", r"\x{4e2d}", r"\u00e9"])
        if k < 9:
            items = [r.choice(["a-z", "0-9", r"\s", r"\p{L}", r"\r\n", "é", "A", r"\d", r"\-", "一-龥", r"\p{P}", "[b-d]", "[^a]", "'"])
                     for _ in range(r.randrange(1, 4))]
            both = "&&" + r.choice([r"\p{L}", "[^b]", "a-m"]) if r.random() < 0.1 else ""
            return "[" + r.choice(["", "", "^"]) + "".join(items) + both + "]"
        if depth > 2 or r.random() < 0.05:
            return r.choice(["a", "^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z"])
        if k == 9:
            return "(?:" + pattern(r, depth + 1) + ")"
        if k == 10:
            return r.choice(["(", "(?>", "(?i:"]) + pattern(r, depth + 1) + ")"
        return r.choice(["(?=", "(?!"]) + pattern(r, depth + 1) + ")"

    def quantifier(a):
        if r.random() < 0.5 or a.startswith(("(?=", "(?!")) or a in ("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z"):
            return a
        return a + r.choice(["?", "*", "+", "{2}", "{1,3}", "{2,}", "{,2}", "+?", "*?", "??", "++", "*+", "?+", "{1,2}?", "{1,3}+"])

    return "|".join("".join(quantifier(atom()) for _ in range(r.randrange(1, 4))) for _ in range(r.randrange(1, 4)))


def pre_tokenizer(r, of_bytes):
    def one():
        k = r.randrange(9)
        if k == 0:
            return pre.Digits(individual_digits=r.random() < 0.5)
        if k == 1:
            return pre.Punctuation(r.choice(BEHAVIORS))
        if k == 2:
            return pre.Whitespace()
        if k == 3:
            return pre.WhitespaceSplit()
        if k == 4:
            return pre.Split(r.choice(["a", " ", "th", "\n"]), r.choice(BEHAVIORS), invert=r.random() < 0.3)
        if k == 5:
            return pre.CharDelimiterSplit(r.choice("e ,"))
        if k == 6:
            return pre.FixedLength(length=r.randrange(1, 9))
        rx = r.choice(KNOWN) if r.random() < 0.6 else pattern(r)
        return pre.Split(Regex(rx), r.choice(BEHAVIORS), invert=r.random() < 0.3)

    stages = [one() for _ in range(r.choice([0, 0, 1, 1, 2, 3]))]
    if of_bytes:
        stages.append(pre.ByteLevel(add_prefix_space=r.random() < 0.5, use_regex=r.random() < 0.6))
        stages += [one() for _ in range(r.choice([0, 0, 0, 1, 2]))]
    elif r.random() < 0.5:
        scheme = r.choice(["always", "never"] if stages else ["always", "never", "first"])
        stages.append(pre.Metaspace(prepend_scheme=scheme, split=r.random() < 0.5))
    return pre.Sequence(stages) if len(stages) != 1 else stages[0]


def normalizer(r):
    steps = []
    for _ in range(r.choice([0, 1, 1, 2, 3])):
        k = r.randrange(6)
        if k == 0:
            steps.append(normalizers.NFC())
        elif k == 1:
            steps.append(normalizers.Prepend(r.choice(["▁", "x", " "])))
        elif k == 2:
            steps.append(normalizers.Replace(r.choice([" ", "a", "the", "\n"]), r.choice(["▁", "", "bc", " "])))
        elif k == 3:
            steps.append(normalizers.Replace(Regex(r.choice([r" {2,}", r"\s+", r"[0-9]", "(?i:th)"])), r.choice([" ", "▁", "#", ""])))
        elif k == 4:
            steps.append(normalizers.Strip(left=r.random() < 0.7, right=r.random() < 0.5))
        else:
            steps.append(normalizers.Replace(" ", "▁"))
    return normalizers.Sequence(steps) if steps else None


def decoder(r, of_bytes):
    if of_bytes:
        return decoders.ByteLevel() if r.random() < 0.8 else decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    k = r.randrange(5)
    if k == 0:
        return None
    if k == 1:
        return decoders.Metaspace(prepend_scheme=r.choice(["always", "first", "never"]))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if r.random() < 0.5:
        steps.append(decoders.Strip(" ", r.randrange(1, 3), 0))
    if r.random() < 0.2:
        steps.pop(0)
        steps.append(decoders.Replace("▁", " "))
    return decoders.Sequence(steps)


def added(r):
    contents = ["<s>", "</s>", "<a>", "<a><b>", "word", "the", " x", "é", "e\u0323", "▁", "  ", "<0x41>", "\n\n", "th", "ing"]
    return [AddedToken(c, single_word=r.random() < 0.3, lstrip=r.random() < 0.3, rstrip=r.random() < 0.3, normalized=r.random() < 0.4,
                       special=r.random() < 0.5) for c in r.sample(contents, r.randrange(0, 8))]


def train(r, documents):
    of_bytes = r.random() < 0.45
    fallback = not of_bytes and r.random() < 0.6
    unknown = None if of_bytes or r.random() < 0.4 else "<unk>"
    t = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=r.random() < 0.5, byte_fallback=fallback, ignore_merges=r.random() < 0.3))
    n = normalizer(r)
    if n is not None:
        t.normalizer = n
    t.pre_tokenizer = pre_tokenizer(r, of_bytes)
    d = decoder(r, of_bytes)
    if d is not None:
        t.decoder = d
    special = ["<unk>"] if unknown else []
    if fallback:
        missing = r.choice([0, 0, 0, 1, 40])
        special += [f"<0x{b:02X}>" for b in range(256) if b not in r.sample(range(256), missing)]
    trainer = trainers.BpeTrainer(
        vocab_size=r.choice([500, 1200, 3000]), special_tokens=special, show_progress=False, limit_alphabet=r.choice([60, 300, 2000]),
        initial_alphabet=pre.ByteLevel.alphabet() if of_bytes else [], max_token_length=r.choice([None, 8]))
    t.train_from_iterator([d[:3000] for d in r.sample(documents, min(len(documents), 40))], trainer)
    for a in added(r):
        (t.add_special_tokens if a.special else t.add_tokens)([a])
    return t


def describe(t):
    model = json.loads(t.to_str())
    kept = {k: v for k, v in model["model"].items() if k not in ("vocab", "merges", "type")}
    return json.dumps({**{k: model[k] for k in ("normalizer", "pre_tokenizer", "decoder")}, **kept}, ensure_ascii=False)


def check(checker, texts, trained, patterns):
    """Compares on vocabularies trained here; returns how often each sentence refused one."""
    r = texts.random
    refusals = collections.Counter()
    folder = pathlib.Path(tempfile.mkdtemp())
    path = folder / "tokenizer.json"
    for i in range(trained):
        t = train(r, texts.documents)
        t.save(str(path))
        before = checker.failed
        sentence = checker.model(f"trained {i}", path, texts.make(1500, json.loads(path.read_text())))
        if sentence:
            refusals[sentence] += 1
        if checker.failed > before:
            print(f"    of {describe(t)}")
            t.save(str(folder / f"failed-{i}.json"))
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    base.train_from_iterator([d[:3000] for d in texts.documents[:40]],
                             trainers.BpeTrainer(vocab_size=1000, show_progress=False, initial_alphabet=pre.ByteLevel.alphabet()))
    base.decoder = decoders.ByteLevel()
    compared = 0
    for i in range(patterns):
        rx = pattern(r) if i >= len(KNOWN) else KNOWN[i]
        try:
            split = pre.Split(Regex(rx), r.choice(BEHAVIORS[1:]), invert=r.random() < 0.2)
        except Exception:
            continue  # not an expression
        base.pre_tokenizer = pre.Sequence([split, pre.FixedLength(length=1000), pre.ByteLevel(add_prefix_space=True, use_regex=False)])
        base.save(str(path))
        some = [t for t in texts.make(60, json.loads(base.to_str()))]
        some += ["".join(r.choice("abAsSſ1 2'\né中.-zZ\u212a") for _ in range(r.randrange(1, 60))) for _ in range(60)]
        ids, bad = checker.encode(f"pattern {ascii(rx)}", path, base, some)
        if ids is None:
            refusals[bad.rsplit(": ", 1)[-1]] += 1
        else:
            compared += 1
    print(f"patterns: {compared} of {patterns} compared")
    return refusals
