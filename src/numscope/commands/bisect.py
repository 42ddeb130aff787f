"""Capture, compare and diagnose two commands: fingerprints of everything, then the suspects' tensors, then why.

  numscope bisect --target "train.py --device npu" --reference "train.py --device cuda" --out bisect/
  numscope bisect --target "train.py" --axis compile --out bisect/
  numscope bisect --target "train.py" --axis "env FLAG=1,0" --out bisect/

Goes on where it was interrupted.
Exit status: 0 identical or equivalent, 1 diverged, 2 it could not be done, or not all of it (incomplete).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from numscope.commands import grammar
from numscope.core.report import EXIT_STATUS

HELP = "capture, compare and diagnose two commands, coarse to fine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--target", metavar="CMD", help="the script that is wrong, with its arguments")
    parser.add_argument("--reference", metavar="CMD", help="the script that is right, with its arguments")
    parser.add_argument(
        "--axis",
        metavar="AXIS",
        help="derive the reference from the target: compile, device, dtype, threads, deterministic, 'env NAME=A,B'",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="where runs, report and repro go")
    grammar.add_json(parser)
    parser.add_argument("--level", metavar="LEVEL", help="module, api, mix (module + api) or aten (default mix)")
    parser.add_argument(
        "--no-check", dest="check", action="store_false", help="don't ask whether each command repeats itself"
    )


def run(args: argparse.Namespace) -> int:
    """Run the passes, print the answer."""
    from numscope.diagnose.bisect.axes import sides
    from numscope.diagnose.bisect.bisection import Bisection, job, require
    from numscope.report.files import answer_stream, check_output
    from numscope.report.json import write_json
    from numscope.report.terminal.diagnosis import print_diagnosis

    if args.json:
        check_output(args.json)
    require(args.target, args.reference, args.axis)
    here, there = sides(args.axis) if args.axis else (None, None)
    out = Path(args.out)
    level = ("--level", args.level) if args.level else ()
    bisection = Bisection(
        job("target", args.target, here), job("reference", args.reference or args.target, there), out, _tell, level
    )
    report, comparison = bisection.run(args.check)
    write_json(report, out / "report.json")
    if args.json:
        write_json(report, args.json)
    stream = answer_stream(args.json)
    print_diagnosis(report, stream)
    print(f"\n  report     {out / 'report.json'}", file=stream)
    if report.origin is not None:
        from numscope.core.errors import NumscopeError
        from numscope.diagnose.repro.write import write_repro

        try:
            print(f"  repro      {write_repro(comparison, report, out / 'test_origin.py')}", file=stream)
        except NumscopeError as why:
            print(f"  repro      {why}", file=stream)
    return EXIT_STATUS[report.verdict]


def _tell(line: str) -> None:
    print(f"bisect: {line}", file=sys.stderr, flush=True)
