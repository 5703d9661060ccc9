"""Runs `vllm bench serve` once for each line of the standard input, which has its arguments as a JSON list, and writes the numbers of
the result as a line of JSON. To import vLLM takes longer than a run, so one process makes all runs."""

import contextlib
import json
import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
for line in sys.stdin:
    with contextlib.redirect_stdout(sys.stderr):
        result = main(parser.parse_args(json.loads(line)))
    print(json.dumps({k: v for k, v in result.items() if isinstance(v, (int, float))}), flush=True)
