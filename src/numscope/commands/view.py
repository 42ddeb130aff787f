"""numscope view: look at one run, or at two and their comparison, in the browser."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from numscope.commands import grammar
from numscope.core.errors import SettingsError

if TYPE_CHECKING:
    from numscope.view.forms import Forms

HELP = "look at a run, or at two and their comparison, in the browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a run, or an answer of `numscope weights --json`; without it, a page to choose from",
    )
    parser.add_argument("reference", nargs="?", metavar="REFERENCE", help="the run to compare it with")
    grammar.add_noise_and_map(parser)
    grammar.add_part(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to serve on (default: a free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="where to serve (default: this machine only)"
    )
    parser.add_argument("--allow-remote", action="store_true", help="let --host be reachable by other machines")
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from numscope.report.weights import read_weights_json
    from numscope.store.reader import open_run
    from numscope.view.jobs import Choice
    from numscope.view.server import EitherForms, Viewer, serve

    if not 0 <= args.port < 65536:
        raise SettingsError(f"--port {args.port}: give a number from 1 to 65535, or 0 for a free one")
    if (args.step or args.rank) and not args.reference:
        raise SettingsError("--step and --rank choose what is compared: give two runs")
    viewer = Viewer(forms=EitherForms(_hooktools))
    if args.target and args.target.endswith(".json") and not args.reference:
        viewer.document = read_weights_json(args.target)
    elif args.target:
        for path in filter(None, (args.target, args.reference, *args.noise)):
            open_run(path)  # raises here, not in the browser, where a run cannot be read
        steps, ranks = (tuple(chosen) if chosen else None for chosen in (args.step, args.rank))
        viewer.open(Choice(args.target, args.reference, tuple(args.noise), args.map, steps, ranks))
    serve(
        viewer,
        host=args.host,
        port=args.port,
        allow_remote=args.allow_remote,
        open_browser=not args.no_open,
    )
    return 0


def _hooktools() -> Forms:
    from numscope.compat.hooktools.forms import HooktoolsForms

    return HooktoolsForms()
