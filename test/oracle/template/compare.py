"""Compares `stator render --raw` with Python's Jinja2: make oracle-template.

Every template is rendered in every context by both: by Jinja2 in the environment that Hugging
Face's apply_chat_template builds, and by stator. The texts must be equal, and where Python raises
stator must answer with an error. The expressions beside this file are rendered too, each as a
template of its own. The random contexts' seed is printed and can be given again. The exit status
is 1 if anything differs.
"""

import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

import contexts

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


class Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %}, which renders what it holds."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


ENV = environment()


def theirs(source, lines):
    """What Python makes of each line: a text, or None and why."""
    try:
        template = ENV.from_string(source)
    except Exception as e:  # Jinja2's own errors, and those of the Python it generates
        return [(None, f"{type(e).__name__}: {e}")] * len(lines)
    out = []
    for line in lines:
        try:
            text = template.render(**json.loads(line))
            text.encode()  # a text that no engine can take is none
            out.append((text, ""))
        except Exception as e:
            out.append((None, f"{type(e).__name__}: {e}"))
    return out


def ours(stator, model, file, lines):
    """What stator makes of each line."""
    command = [stator, "render", "--raw", "--model-dir", model, "--template", str(file)]
    p = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, encoding="utf-8")
    if p.returncode != 0:
        return [(None, p.stderr.strip())] * len(lines)
    answers = [json.loads(line) for line in p.stdout.split("\n") if line]
    if len(answers) != len(lines):
        raise SystemExit(f"{file}: stator answered {len(lines)} lines with {len(answers)}")
    return [(a["prompt"], "") if "prompt" in a else (None, json.dumps(a)) for a in answers]


class Comparison:
    def __init__(self, shown):
        self.shown, self.renders, self.raised, self.different = shown, 0, 0, 0

    def add(self, template, names, lines, python, stator):
        different = 0
        for name, line, (want, why), (got, said) in zip(names, lines, python, stator, strict=True):
            self.renders += 1
            self.raised += want is None
            if want == got:
                continue
            different += 1
            if different <= self.shown:
                print(f"DIFFERENT  {template}, context {name}: {line[:400]}")
                at = next((i for i, (a, b) in enumerate(zip(want or "", got or "")) if a != b), min(len(want or ""), len(got or "")))
                for who, text, reason in (("Jinja2", want, why), ("stator", got, said)):
                    print(f"  {who} {'raises ' + reason if text is None else f'at {at}: ' + repr(text[max(0, at - 40):at + 80])}")
        self.different += different
        return different


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--stator", default=ROOT / "bin" / "stator")
    p.add_argument("--model", default="builtin:sim", help="a folder for tokens that a context does not name; only its tokenizer_config.json is compared")
    p.add_argument("--templates", type=pathlib.Path, action="append", help="a folder of .jinja files, or one file; again for more")
    p.add_argument("--contexts", type=pathlib.Path, help="a file of further contexts, a JSON object per line")
    p.add_argument("--random", type=int, default=60, help="how many random contexts")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    p.add_argument("--shown", type=int, default=2, help="differences shown per template")
    args = p.parse_args()

    r = random.Random(args.seed)
    cases = dict(contexts.FIXED)
    cases.update({f"random {i}": contexts.random_context(r) for i in range(args.random)})
    if args.contexts:
        cases.update({f"{args.contexts.name}:{i}": json.loads(line) for i, line in enumerate(args.contexts.open(), 1) if line.strip()})
    folder = ROOT / "internal" / "models" / "sim" if args.model == "builtin:sim" else pathlib.Path(args.model)
    tokens = {k: v for k, v in json.loads((folder / "tokenizer_config.json").read_text()).items() if k.endswith("_token") and isinstance(v, str)}
    lines = [json.dumps({**tokens, **c}, ensure_ascii=False) for c in cases.values()]

    files = [ROOT / "internal" / "models" / "sim" / "chat_template.jinja"]
    for place in args.templates or [ROOT.parent / "shared" / "templates"]:
        found = [place] if place.is_file() else sorted(place.glob("*.jinja"))
        if not found:
            print(f"skip {place}: it has no .jinja files; name a folder of them with --templates")
        files += found
    print(f"Jinja2 {jinja2.__version__}, {len(files)} templates, {len(cases)} contexts, seed {args.seed}")

    c = Comparison(args.shown)
    for file in files:
        python = theirs(file.read_text(encoding="utf-8"), lines)
        different = c.add(file.name, cases, lines, python, ours(args.stator, args.model, file, lines))
        print(f"{file.name:40} {len(lines) - different} of {len(lines)} equal, Python raises in {sum(t is None for t, _ in python)}")
    before, renders = c.different, c.renders
    expressions(c, args, tokens)
    print(f"expressions.txt: {c.renders - renders - (c.different - before)} of {c.renders - renders} equal")
    print(f"{c.renders} renders, {c.raised} raise in Python, {c.different} differ")
    return 1 if c.different else 0


def expressions(c, args, tokens):
    """Renders each line of expressions.txt as a template, in the context of its first line."""
    source, *rest = (HERE / "expressions.txt").read_text(encoding="utf-8").split("\n")
    line = json.dumps({**tokens, **json.loads(source)}, ensure_ascii=False)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "expression.jinja")
        for i, template in enumerate(rest, 2):
            if template and not template.startswith("##"):
                template = template.replace("⏎", "\n")
                file.write_text(template, encoding="utf-8")
                c.add(f"expressions.txt:{i}", [template], [line], theirs(template, [line]), ours(args.stator, args.model, file, [line]))


if __name__ == "__main__":
    sys.exit(main())
