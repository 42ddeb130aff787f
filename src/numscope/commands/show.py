"""Show a run: an overview, or the calls whose name, or tensors whose name, the pattern matches.

A pattern with * or ? must match the whole name; any other is looked for inside names.

  numscope show runs/gpu
  numscope show runs/gpu gelu
  numscope show runs/gpu 'Functional.linear.*.forward' --step 0
  numscope show runs/gpu linear.5.forward.output --stack
"""

from __future__ import annotations

import argparse

from numscope.commands import grammar

HELP = "calls, statistics and call stacks of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    grammar.add_run(parser)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help="part of a call's or tensor's name, or a glob")
    parser.add_argument("--stack", action="store_true", help="print the calls' stacks")
    grammar.add_part(parser)
    parser.add_argument("--top", type=int, default=40, metavar="N", help="how many to show, 0 for all (default 40)")
    parser.add_argument("--limit", dest="top", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # 0.1.0's
    grammar.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    from numscope.core.errors import SettingsError
    from numscope.report.files import STDOUT, check_output
    from numscope.report.json import write_document
    from numscope.report.terminal import show_calls, show_overview
    from numscope.report.terminal.lines import print_lines
    from numscope.store.reader import open_run

    if args.top < 0:
        raise SettingsError(f"--top {args.top}: give how many calls to show, 0 for all")
    if args.json:
        check_output(args.json)
    opened = open_run(args.run_path)
    pattern = args.pattern or ("*" if args.stack or args.step is not None else None)
    if pattern is None:
        document = show_overview.overview(opened, args.rank)
        told = show_overview.lines(document)
    else:
        matching = show_calls.find(opened, pattern, steps=args.step, ranks=args.rank, most=args.top or None)
        document = show_calls.to_dict(matching, stacks=args.stack)
        told = show_calls.lines(matching, stacks=args.stack)
    if args.json:
        write_document(document, args.json)
    if args.json != STDOUT:
        print_lines(told)
    return 0
