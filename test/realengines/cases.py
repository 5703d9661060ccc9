"""Runs cases of clients' libraries against a gateway, and prints a JSON line for each one."""

import json
import os
import sys

# Libraries may print to standard output, which is for the lines alone.
lines = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

PROMPT = [{"role": "user", "content": "Name a colour."}]


def run(library, *cases):
    """Calls each case, a text and a function, and prints what it raises."""
    for what, call in cases:
        problem = ""
        try:
            call()
        except Exception as error:  # every failure is a line of the report
            problem = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"library": library, "what": what, "problem": problem}), file=lines, flush=True)


def expect(error, call, derived=False):
    """Returns the error of this class, or with derived of one derived from it, that a call raises."""
    try:
        call()
    except error as raised:
        assert derived or type(raised) is error, repr(raised)
        return raised
    raise AssertionError(f"no {error.__name__}")


def address():
    """Returns the arguments of a script: the gateway's URL and then names of models."""
    return sys.argv[1:]
