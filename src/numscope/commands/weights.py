"""Are these the same weights? Compare two sets of weights of any format, and name what is wrong.

  numscope weights converted/ original/
  numscope weights model.gguf original/ --json answer.json --html answer.html
  numscope weights converted/ original/ --view
  numscope weights A --out a.weights      # fingerprints alone, to compare on another machine
  numscope weights a.weights B

A is the one under suspicion, B the reference. Exit status: 0 identical or equivalent, 1 diverged, 2 it could not be done,
or not all of it (incomplete).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from numscope.commands import grammar
from numscope.core.errors import SettingsError

HELP = "are these the same weights?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help="the weights under suspicion: a file, a folder, a run or an address")
    parser.add_argument("b", metavar="B", nargs="?", help="the weights that are right")
    parser.add_argument(
        "--out", metavar="FILE", help="write the fingerprints of A to a .weights file, and compare nothing"
    )
    parser.add_argument("--map", metavar="FILE", help="TOML: which tensors belong together")
    parser.add_argument("--adapter", metavar="DIR", help="a LoRA adapter of A's, which B has merged")
    parser.add_argument(
        "--earlier", action="append", default=[], metavar="PATH", help="an earlier checkpoint, which A may be left from"
    )
    parser.add_argument("--explain", action="store_true", help="say why tensors were paired, and how that was proven")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="pairs to show (default 10)")
    grammar.add_json(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the pairs as CSV")
    grammar.add_html(parser)
    parser.add_argument("--view", action="store_true", help="show the answer in the browser, as the model's tree")


def run(args: argparse.Namespace) -> int:
    """Compare, print the answer, write the files; or write fingerprints."""
    from numscope.report.files import answer_stream, check_output
    from numscope.weights.comparison import fingerprint, weights
    from numscope.weights.pair import EXIT_STATUS
    from numscope.weights.sources.fingerprint_file import SUFFIX

    for path in (args.out, args.json, args.csv, args.html):
        if path:
            check_output(path)
    if args.out is not None:
        if args.b is not None:
            raise SettingsError("--out writes the fingerprints of one set of weights: leave B away")
        if not args.out.endswith(SUFFIX):
            raise SettingsError(f"--out {args.out}: name a file that ends in {SUFFIX}")
        count = fingerprint(args.a, args.out, _progress())
        print(f"{args.out} has the fingerprints of {count} tensors; numscope weights {args.out} B compares them")
        return 0
    if args.b is None:
        raise SettingsError("give two sets of weights, A and B, or --out FILE for the fingerprints of A")
    answer = weights(args.a, args.b, map=args.map, earlier=args.earlier, adapter=args.adapter, progress=_progress())
    from numscope.report.json import write_document
    from numscope.report.terminal.weights import print_weights
    from numscope.report.weights import write_weights_csv

    print_weights(answer, answer_stream(args.json), top=args.top, explain=args.explain)
    if args.json:
        write_document(answer.to_dict(), args.json)
    if args.csv:
        write_weights_csv(answer, args.csv)
    if args.html:
        from numscope.report.weights import write_weights_html

        write_weights_html(answer, args.html)
    if args.view:
        from numscope.view.server import Viewer, serve

        serve(Viewer(document=answer.to_dict()))
    return EXIT_STATUS[answer.verdict]


def _progress() -> Callable[[int, int], None] | None:
    if not sys.stderr.isatty():
        return None
    start = time.monotonic()

    def show(done: int, total: int) -> None:
        if time.monotonic() - start < 0.5 or not total:
            return
        filled = min(30, 30 * done // total)
        end = "\r" + " " * 60 + "\r" if done >= total else ""
        sys.stderr.write(f"\r  {'━' * filled}{'─' * (30 - filled)} {100 * done // total} %{end}")
        sys.stderr.flush()

    return show
