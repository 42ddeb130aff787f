"""Compare two runs: align their calls, measure the tensors, judge, and name the origin.

  numscope compare runs/npu runs/gpu
  numscope compare runs/npu runs/gpu --json report.json --xlsx report.xlsx --html report.html
  numscope compare runs/npu runs/gpu --noise runs/gpu-again --step 0 --only origin
  numscope compare runs/npu runs/gpu --part 3/8 --out parts
  numscope compare runs/npu runs/gpu --merge parts

Exit status: 0 identical or equivalent, 1 diverged, 2 it could not be done, or not all of it (incomplete).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from numscope.commands import grammar
from numscope.core.errors import MissingExtraError, SettingsError
from numscope.core.report import EXIT_STATUS

if TYPE_CHECKING:
    from numscope.compare.comparison import Asked, Comparison
    from numscope.compare.thresholds import Thresholds

HELP = "the first call at which two runs stop agreeing"
_VERDICTS = ("identical", "equivalent", "origin", "inherited", "unmatched", "unmeasured")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    grammar.add_runs(parser)
    grammar.add_noise_and_map(parser)
    parser.add_argument(
        "--ungrafted", metavar="RUN", help="for a TARGET captured under a graft: the same without it (default: found)"
    )
    grammar.add_part(parser)
    parser.add_argument(
        "--allow-incomplete",
        action="store_true",
        help="give the verdict of what could be compared, and say what could not",
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many to show (default 5)")
    parser.add_argument("--only", choices=_VERDICTS, help="show pairs of this verdict")
    parser.add_argument("--sort", choices=("error", "order", "name"), default="error", help="order of the pairs shown")
    parser.add_argument(
        "--explain-alignment", action="store_true", help="say why calls were paired, and which were not"
    )
    parser.add_argument("--thresholds", metavar="FILE", help="TOML file of the thresholds below, for CI")
    parser.add_argument(
        "--scale", type=float, metavar="X", help="factor on what rounding is taken to explain (default 1)"
    )
    parser.add_argument(
        "--max-relative", type=float, metavar="X", help="a larger relative L2 error anywhere is diverged"
    )
    parser.add_argument("--max-unmatched", type=int, metavar="N", help="more unmatched calls than this is diverged")
    grammar.add_json(parser)
    for name, what in (
        ("csv", "the pairs"),
        ("parquet", "the pairs"),
        ("xlsx", "everything"),
    ):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"write {what} as {name.upper() if name != 'parquet' else 'Parquet'}"
        )
    grammar.add_html(parser)
    parser.add_argument("--part", metavar="I/N", help="compare one of N shares of the ranks, and write it into --out")
    parser.add_argument("--out", metavar="DIR", help="where --part writes what it found")
    parser.add_argument(
        "--merge", nargs="+", metavar="PART", help="the answer of all parts, which lie in these folders"
    )
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="where the work runs")


def run(args: argparse.Namespace) -> int:
    """Compare, print the answer, write the files."""
    from numscope.report.files import answer_stream, check_output

    for name in ("json", "csv", "parquet", "xlsx", "html"):
        if getattr(args, name):
            check_output(getattr(args, name))
    if args.xlsx and find_spec("xlsxwriter") is None:
        raise MissingExtraError("xlsxwriter", "compare --xlsx")
    if args.top < 0:
        raise SettingsError("--top must be at least 0")
    if bool(args.part) != bool(args.out) or (args.part and args.merge):
        raise SettingsError("a part is `--part I/N --out DIR`; `--merge DIR` gives the answer of all parts")
    if args.part and any(getattr(args, name) for name in ("json", "csv", "parquet", "xlsx", "html")):
        raise SettingsError("a part has no report: write files where all parts are merged")
    if args.merge and args.ungrafted:
        raise SettingsError("--ungrafted is for a comparison in one piece: leave --merge out")
    asked: Asked = {
        "noise": args.noise,
        "map": args.map,
        "steps": args.step,
        "ranks": args.rank,
        "thresholds": _thresholds(args),
    }
    if args.part:
        return _write_part(args, asked)
    if args.merge:
        from numscope.diagnose.sharpened import merge_parts

        comparison = merge_parts(
            args.target, args.reference, args.merge, allow_incomplete=args.allow_incomplete, **asked
        )
    else:
        from numscope.diagnose.sharpened import compare

        comparison = compare(
            args.target,
            args.reference,
            engine=args.engine,
            progress=_progress(),
            ungrafted=args.ungrafted,
            allow_incomplete=args.allow_incomplete,
            **asked,
        )
    from numscope.report.terminal.comparison import print_comparison

    _write(comparison, args)  # before the text: a reader that goes away (`| head`) costs no file
    stream = answer_stream(args.json)
    if args.explain_alignment:
        from numscope.report.terminal.alignment import print_alignment

        print_alignment(comparison, stream)
    print_comparison(comparison, stream, top=args.top, only=args.only, sort=args.sort)
    return EXIT_STATUS[comparison.verdict]


def _write_part(args: argparse.Namespace, asked: Asked) -> int:
    """Compare a share of the ranks, and write what was found."""
    from numscope.compare.comparison import compare_part
    from numscope.compare.parts.shares import parse_share
    from numscope.core.language.chinese import translated

    part = parse_share(args.part)
    written = compare_part(
        args.target, args.reference, part, args.out, engine=args.engine, progress=_progress(), **asked
    )
    if written.places:
        what = f"{written.places} steps of {written.ranks} ranks"
    else:
        what = "nothing, as there are fewer ranks to compare than parts"
    print(translated(f"part {part.number} of {part.of}: {what}; in {written.path}"))
    return 0


def _thresholds(args: argparse.Namespace) -> Thresholds:
    from dataclasses import replace

    from numscope.compare.thresholds import Thresholds, load_thresholds

    limits = load_thresholds(args.thresholds) if args.thresholds else Thresholds()
    chosen = {name: getattr(args, name) for name in ("scale", "max_relative", "max_unmatched")}
    return replace(limits, **{name: value for name, value in chosen.items() if value is not None})


def _progress() -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None
    import time

    start = time.monotonic()

    def show(done: int, total: int) -> None:
        if time.monotonic() - start < 0.5 or total == 1:
            return
        filled = 30 * done // total
        end = "\r" + " " * 60 + "\r" if done == total else ""
        sys.stderr.write(f"\r  {'━' * filled}{'─' * (30 - filled)} {done}/{total} steps{end}")
        sys.stderr.flush()

    return show


def _write(comparison: Comparison, args: argparse.Namespace) -> None:
    if args.json:
        from numscope.report.json import write_json

        write_json(comparison.report, args.json)
    if args.csv:
        from numscope.report.csv import write_csv

        write_csv(comparison.pair_rows, args.csv)
    if args.parquet:
        from numscope.report.parquet import write_parquet

        write_parquet(comparison.pair_rows, comparison.report, args.parquet)
    if args.xlsx:
        from numscope.report.xlsx import write_xlsx

        write_xlsx(comparison, args.xlsx)
    if args.html:
        from numscope.report.html import write_html

        write_html(comparison, args.html)
