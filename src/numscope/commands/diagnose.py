"""Say why two runs stop agreeing: replay the suspects in several precisions, and find the change that repairs it.

  numscope diagnose runs/npu runs/gpu
  numscope diagnose runs/npu runs/gpu --json report.json --repro test_origin.py
  numscope diagnose runs/npu runs/gpu --confirm "train.py --device npu"

Needs tensors: capture with --keep tensors, or --tensors PATTERN of the suspects; `numscope bisect` does that by itself.
Exit status: 0 identical or equivalent, 1 diverged, 2 it could not be done, or not all of it (incomplete).
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from numscope.commands import grammar
from numscope.core.errors import NumscopeError, SettingsError
from numscope.core.report import EXIT_STATUS

HELP = "why they stop agreeing: replay the suspects"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    grammar.add_runs(parser)
    grammar.add_noise_and_map(parser)
    grammar.add_part(parser)
    parser.add_argument("--suspects", type=int, default=3, metavar="N", help="how many suspects to replay (default 3)")
    grammar.add_json(parser)
    parser.add_argument("--repro", metavar="FILE", help="write one pytest file that shows the fault by itself")
    parser.add_argument(
        "--grafted", metavar="RUN", help="the target again with a graft: how much of the error it removed"
    )
    parser.add_argument(
        "--confirm",
        metavar="CMD",
        help="run the script again with the suspect on the CPU and in float64: how much of the error goes?",
    )
    parser.add_argument(
        "--dtype", metavar="DTYPE", help="with --confirm: the dtype to run the suspect in (default: its own)"
    )


def run(args: argparse.Namespace) -> int:
    """Diagnose, print the answer, write the files."""
    from numscope.report.files import answer_stream, check_output

    for name in ("json", "repro"):
        if getattr(args, name):
            check_output(getattr(args, name))
    if args.suspects < 1:
        raise SettingsError(f"--suspects {args.suspects}: give how many to replay, at least 1")
    if find_spec("torch") is None and find_spec("paddle") is None:
        raise NumscopeError("diagnose replays calls with PyTorch, which is not installed here: pip install torch")
    if args.dtype and not args.confirm:
        raise SettingsError("--dtype belongs to --confirm CMD: give both")
    from numscope.compare.comparison import compare
    from numscope.diagnose.diagnosis import diagnose
    from numscope.report.json import write_json
    from numscope.report.terminal.diagnosis import labelled, print_diagnosis

    comparison = compare(args.target, args.reference, noise=args.noise, map=args.map, steps=args.step, ranks=args.rank)
    report = diagnose(comparison, suspects=args.suspects)
    stream = answer_stream(args.json)
    print_diagnosis(report, stream)
    try:
        if args.repro and report.origin is not None:
            from numscope.diagnose.repro.write import write_repro

            print(f"\n  repro      {write_repro(comparison, report, args.repro)}", file=stream)
        if args.grafted:
            from numscope.diagnose.intervene.graft import error_removed

            share = error_removed(args.target, args.grafted, args.reference)
            said = f"{share.before:.2g} before, {share.after:.2g} after: {share.removed:.0%} of it removed"
            print(f"\n  grafted    the final error is {said}", file=stream)
        if args.confirm and report.origin is not None:
            from numscope.diagnose.intervene.confirm import confirm
            from numscope.diagnose.intervene.proof import with_proofs

            proofs = confirm(comparison, report, args.confirm, args.dtype)
            report = with_proofs(report, proofs)
            print("\n" + "\n".join(labelled("confirmed", str(proof)) for proof in proofs), file=stream)
    finally:  # the answer stands, whatever came of the rest
        if args.json:
            write_json(report, args.json)
    return EXIT_STATUS[report.verdict]
