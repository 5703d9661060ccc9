"""Runs `vllm bench serve` once for each line of the standard input, which has its arguments as a JSON list, and writes the numbers of
the result as a line of JSON. To import vLLM takes longer than a run, so one process imports it. Each run is in a child of it: a run leaves
some 100 MB behind, which the garbage collector is told not to look at."""

import contextlib
import json
import os
import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser


def run(args):
    with contextlib.redirect_stdout(sys.stderr):
        result = main(parser.parse_args(args))
    print(json.dumps({k: v for k, v in result.items() if isinstance(v, (int, float))}), flush=True)


parser = FlexibleArgumentParser()
add_cli_args(parser)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(1)
