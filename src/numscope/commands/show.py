"""Show a run: an overview, or the calls whose name, or tensors whose name, the pattern matches.

A pattern with * or ? must match the whole name; any other is looked for inside names.

  numscope show runs/gpu
  numscope show runs/gpu gelu
  numscope show runs/gpu 'Functional.linear.*.forward' --step 0
  numscope show runs/gpu linear.5.forward.output --stack
"""

from __future__ import annotations

import argparse
import json
import sys

HELP = "calls, statistics and call stacks of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_path", metavar="RUN", help="the run's directory")
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help="part of a call's or tensor's name, or a glob")
    parser.add_argument("--stack", action="store_true", help="print the calls' stacks")
    parser.add_argument("--step", type=int, metavar="N", help="this step only")
    parser.add_argument("--rank", type=int, metavar="N", help="this rank only")
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="calls at most, 0 for all (default 40)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was asked for."""
    from numscope.core.errors import SettingsError
    from numscope.core.report import plain
    from numscope.report.terminal import show_calls, show_overview
    from numscope.report.terminal.lines import print_lines
    from numscope.store.reader import open_run

    if args.limit < 0:
        raise SettingsError(f"--limit {args.limit}: give how many calls to show, 0 for all")
    opened = open_run(args.run_path)
    pattern = args.pattern or ("*" if args.stack or args.step is not None else None)
    if pattern is None:
        overview = show_overview.overview(opened, args.rank)
        if args.json:
            print(json.dumps(plain(overview), indent=1, ensure_ascii=False))
        else:
            print_lines(show_overview.lines(overview))
        return 0
    matching = show_calls.find(opened, pattern, step=args.step, rank=args.rank, limit=args.limit or None)
    if args.json:
        json.dump(plain(show_calls.to_dict(matching, stacks=args.stack)), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print_lines(show_calls.lines(matching, stacks=args.stack))
    return 0
