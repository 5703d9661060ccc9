"""Compares internal/prompt/tokenizer with Hugging Face tokenizers: make oracle-tokenizer.

Every text is encoded by both, and every difference is shown.
The vocabularies are real ones and such as are trained here with settings that real ones do not
have. The texts are real and random; the seed is printed and can be given again. Last, both are
timed on one core, by CPU time, over the same prompts. The exit status is 1 if anything differs
or is slower than it should be.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["RUST_BACKTRACE"] = "0"

import corpus
import settings
import tokenizers

# What each real vocabulary must show: MB/s of English with nothing remembered, and how many
# times the speed of tokenizers.
MODELS = {
    "llama3_1": (50, 15),
    "qwen3": (50, 15),
    "deepseek_v3": (0, 0),
    "gptoss": (35, 15),
    "gemma3": (35, 9),
    "llama2": (0, 0),
}
LOAD_SECONDS, LOAD_MIB = 0.3, 60  # of a vocabulary of 128,000 entries (llama3_1, deepseek_v3)
REFUSED = 3


def reference_ids(reference, texts):
    """The ids of each text: None where an expression is beyond the reference itself, which
    counts its steps and panics."""
    try:
        return [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        if len(texts) == 1:
            return [None]
        half = len(texts) // 2
        return reference_ids(reference, texts[:half]) + reference_ids(reference, texts[half:])


class Check:
    def __init__(self, program, shown):
        self.program, self.shown, self.failed = program, shown, 0

    def ask(self, model, lines, *flags):
        with tempfile.TemporaryFile("w+") as questions:
            for line in lines:
                questions.write(json.dumps(line) + "\n")
            questions.seek(0)
            done = subprocess.run([self.program, "-model", str(model), *flags], stdin=questions, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        if done.returncode == REFUSED:
            return None, done.stderr.decode().strip()
        if done.returncode:
            raise SystemExit(f"{self.program} {model}: {done.stderr.decode()[-2000:]}")
        return [json.loads(line) for line in done.stdout.decode().split("\n") if line], ""

    def differ(self, name, what, subject, want, got):
        self.failed += 1
        if self.failed <= self.shown:
            print(f"  DIFFERS {name} {what}: {ascii(subject)[:300]}\n    want {ascii(want)[:300]}\n    got  {ascii(got)[:300]}")

    def encode(self, name, path, reference, texts):
        """Compares ids. Returns how many texts differ, or the reason of a refusal."""
        answers, refused = self.ask(path, [{"text": t} for t in texts])
        if answers is None:
            return 0, refused
        bad = 0
        for text, ids, answer in zip(texts, reference_ids(reference, texts), answers):
            if ids is not None and ids != answer["ids"]:
                bad += 1
                self.differ(name, "ids", text, ids, answer["ids"])
        return bad, ""

    def model(self, name, path, texts):
        reference = tokenizers.Tokenizer.from_file(str(path))
        reference.no_truncation()
        reference.no_padding()
        bad, refused = self.encode(name, path, reference, texts)
        if not refused:
            print(f"{name}: {len(texts)} texts, {bad} differ", flush=True)
        return refused

    def speed(self, name, path, prompts):
        """Times both on one core and returns nothing: what is too slow is a failure."""
        bar, ratio = MODELS[name]
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            ours = self.ask(path, [{"text": p} for p in prompts], "-bench", "5")[0][0]
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            reference = tokenizers.Tokenizer.from_file(str(path))
            theirs = min(self.time(reference.encode, p, prompts) for p in range(2))
            fast = min(self.time(lambda p, **k: reference.encode_batch_fast([p], **k), p, prompts) for p in range(2))
        finally:
            os.sched_setaffinity(0, cores)
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
        rate = ours["bytes"] / ours["cold_seconds"] / 1e6
        times = theirs / ours["cold_seconds"]
        print(f"{name}: cold={rate:.1f}MB/s warm={ours['bytes'] / ours['warm_seconds'] / 1e6:.1f}MB/s "
              f"tokenizers={ours['bytes'] / theirs / 1e6:.2f}MB/s ratio={times:.1f} ratio_to_encode_batch_fast={fast / ours['cold_seconds']:.1f} "
              f"load={ours['load_seconds'] * 1e3:.0f}ms heap={ours['heap_mib']:.1f}MiB", flush=True)
        small = name in ("llama3_1", "deepseek_v3")
        if rate < bar or times < ratio or small and (ours["load_seconds"] > LOAD_SECONDS or ours["heap_mib"] > LOAD_MIB):
            self.failed += 1
            print(f"  BELOW its bars: {bar} MB/s, {ratio} times tokenizers, load in {LOAD_SECONDS * 1e3:.0f} ms and {LOAD_MIB} MiB")

    @staticmethod
    def time(encode, _, prompts):
        before = resource.getrusage(resource.RUSAGE_SELF)
        for p in prompts:
            encode(p, add_special_tokens=False)
        after = resource.getrusage(resource.RUSAGE_SELF)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, help="our side")
    parser.add_argument("--vocabularies", type=pathlib.Path, required=True, help="folder of NAME/tokenizer.json")
    parser.add_argument("--texts", type=int, default=20000, help="texts for each real vocabulary")
    parser.add_argument("--trained", type=int, default=60, help="vocabularies to train")
    parser.add_argument("--patterns", type=int, default=400, help="random expressions to split by")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--show", type=int, default=20, help="differences to show")
    parser.add_argument("--no-speed", action="store_true")
    args = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, seed {args.seed}", flush=True)
    check = Check(args.program, args.show)
    texts = corpus.Texts(args.seed)
    for name in args.models:
        path = args.vocabularies / name / "tokenizer.json"
        refused = check.model(name, path, texts.make(args.texts, json.loads(path.read_text())))
        if refused:
            raise SystemExit(f"{name} is refused: {refused}")
    refusals = settings.check(check, texts, args.trained, args.patterns)
    for sentence, n in sorted(refusals.items(), key=lambda i: -i[1]):
        print(f"  refused {n}: {sentence}")
    if not args.no_speed:
        prompts = texts.prompts()
        for name in args.models:
            check.speed(name, args.vocabularies / name / "tokenizer.json", prompts)
    print(f"{check.failed} failures, seed {args.seed}")
    sys.exit(check.failed > 0)


if __name__ == "__main__":
    main()
