"""Texts to encode: real ones, of what this machine has, and random ones."""

import glob
import json
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

POOLS = [
    [chr(c) for c in range(32, 127)],
    list(" \t\n\r\u00a0\u3000\u2028\x85\x0b\x0c\u2581"),
    list("aAsStTdDmMlLrReEvVkK'ſ’ \u212a"),
    list("0123456789٣४½²³¹¼Ⅷ"),
    [chr(c) for c in range(0x300, 0x370)] + list("aeiouAEIOUnN "),
    [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xAC00, 0xAC40)],
    [chr(c) for c in range(0x4E00, 0x4E80)] + list("ぁあアーン。、"),
    [chr(c) for c in range(0x900, 0x980)] + [" "],
    [chr(c) for c in range(0x1F300, 0x1F340)] + list("\u200d\ufe0f a"),
    [chr(c) for c in range(0x400, 0x460)] + list(" .,"),
    [chr(c) for c in range(0x591, 0x5F0)],
    [chr(c) for c in range(0xF900, 0xFA00)],
    [chr(c) for c in range(0x600, 0x6FF)],
    list("\x00\x01\x1f\x7f\x80\ufeff\u200b\ue000\ufffd"),
]
WORDS = ("the quick brown Fox jumps OVER lazy dogs HTTPServer getURL camelCase snake_case Ünïcode naïve ÉCOLE straße ΑΒΓδε привет Мир 你好 世界 "
         "こんにちは 안녕하세요 हिन्दी ไทย עברית العربية Việt Nam e\u0301 a\u0323\u0302 ﬁ Å Ω K \u0344 ǅ ʰ ª º 3.14 0x1F 1,000,000 foo() {} => :: // /* */ "
         "<p> </p> $x @y #z <0x41> <unk> </s> ▁a ▁ x²y").split(" ")
BEYOND = ["", " ", "  ", "\n", "'s", "'LL", ", "]


def documents():
    """Sources and docs of this repository, man pages, and whatever else is text here."""
    patterns = [str(ROOT / p) for p in ("**/*.go", "**/*.md", "**/*.txt", "Makefile")]
    patterns += ["/usr/share/man/**/*.gz", "/usr/share/common-licenses/*", "/usr/share/i18n/locales/*", "/usr/share/perl/**/*.p[lm]",
                 f"{sys.prefix}/lib/**/*.py", f"{sys.base_prefix}/lib/python3*/**/*.py", "/usr/share/doc/**/*.html"]
    files = []
    for p in patterns:
        found = sorted(glob.glob(p, recursive=True))
        random.Random(0).shuffle(found)
        files += found[:1500]
    for f in files:
        try:
            data = pathlib.Path(f).read_bytes()
            if f.endswith(".gz"):
                import gzip
                data = gzip.decompress(data)
            text = data.decode()
        except (OSError, UnicodeDecodeError, EOFError):
            continue
        if text:
            yield text


def agents():
    """The inputs of agent sessions, where the folder of traces lies beside the repository."""
    for f in sorted(glob.glob(str(ROOT.parent / "shared/traces/agent/*/*"))):
        for line in pathlib.Path(f).read_text().split("\n"):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            yield row["input"] if isinstance(row.get("input"), str) else json.dumps(row, ensure_ascii=False)


def spelled(vocabulary):
    """What the tokens of a vocabulary stand for, whichever way it is spelled."""
    byte = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    chars = {chr(b): b for b in byte}
    chars.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in byte)})
    for token in vocabulary:
        try:
            yield bytes(chars[c] for c in token).decode()
        except (KeyError, UnicodeDecodeError):
            yield token.replace("▁", " ")


class Texts:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.documents = list(documents())
        self.agents = list(agents())

    def make(self, n, model):
        """So many texts, a third of them real, for a vocabulary as its file has it."""
        r = self.random
        added = [a["content"] for a in model.get("added_tokens", [])]
        added = r.sample(added, min(len(added), 60)) + added[:10] + added[-10:] + ["<|im_", "<|", "|>", "<"]
        vocabulary = sorted(model["model"]["vocab"])
        tokens = list(spelled(r.sample(vocabulary, min(len(vocabulary), 6000))))
        out = [self.real() for _ in range(n // 3)]
        while len(out) < n:
            out.append(self.invented(added, tokens))
        return [t for t in out if t]

    def real(self):
        r = self.random
        text = r.choice(self.agents if self.agents and r.random() < 0.25 else self.documents)
        at = r.randrange(len(text))
        return text[at:at + r.choice([20, 50, 300, 300, 2000])]

    def char(self):
        return self.random.choice(self.random.choice(POOLS))

    def invented(self, added, tokens):
        r = self.random
        kind = r.randrange(9)
        if kind == 0:
            return "".join(chr(c) for c in (r.randrange(0x110000) for _ in range(r.randrange(1, 40))) if not 0xD800 <= c < 0xE000)
        if kind == 1:
            return "".join(chr(r.randrange(0x3000)) for _ in range(r.randrange(1, 60)))
        if kind == 2:
            pool = r.choice(POOLS)
            return "".join(r.choice(pool) for _ in range(r.randrange(1, 80)))
        if kind == 3:
            pools = [r.choice(POOLS) for _ in range(3)]
            return "".join(r.choice(r.choice(pools)) for _ in range(r.randrange(1, 120)))
        if kind == 4:
            parts = [lambda: r.choice(added), self.char, lambda: " ", lambda: "\n", lambda: "word", lambda: r.choice(WORDS)]
            return "".join(r.choice(parts)() for _ in range(r.randrange(1, 40)))
        if kind == 5:
            return self.char() * r.choice([1, 2, 3, 7, 30, 100, 1000]) + r.choice(["", " x", "\n", "a", "'s"])
        if kind == 6:
            return "".join(r.choice(WORDS) + r.choice(BEYOND) for _ in range(r.randrange(1, 40)))
        if kind == 7:
            return "".join(r.choice(tokens) for _ in range(r.randrange(1, 30)))
        return "".join(r.choice([r.choice(tokens), " ", r.choice(added), self.char()]) for _ in range(r.randrange(1, 30)))

    def prompts(self, n=64, size=16000):
        """So many different prompts of English with code in it: agent sessions, else documents."""
        text = "\n".join(self.agents or [d for d in self.documents if d.isascii()])
        text = text[: n * size * 8]
        step = max(1, (len(text) - size) // n)
        return [text[i * step:i * step + size] for i in range(n)]
