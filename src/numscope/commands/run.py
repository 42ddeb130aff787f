"""`numscope run`: capture a training script with no change to it."""

from __future__ import annotations

import argparse
from typing import Any

from numscope.core.errors import SettingsError

HELP = "capture a training script with no change to it"

_NAMES = (
    "level", "keep", "tensors", "scope", "steps", "ranks", "on_error", "backward", "parameters", "optimizer", "stacks",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the capture options, which have the names of ns.capture's arguments."""
    parser.usage = "numscope run [options] --out RUN -- script.py [args …]"
    parser.add_argument("--out", required=True, metavar="RUN", help="the run directory to write")
    parser.add_argument("--level", default=None, help="module, api, mix (default) or aten")
    parser.add_argument("--keep", default=None, help="structure, stats (default), sample or tensors")
    parser.add_argument(
        "--tensors", action="append", metavar="PATTERN", help="keep full tensors of these names; repeat"
    )
    parser.add_argument("--scope", action="append", metavar="PATTERN", help="record only these calls; repeat")
    parser.add_argument("--steps", default=None, help="3, 0,4 or 4-10:2; default all")
    parser.add_argument("--ranks", default=None, help="which ranks; default all")
    parser.add_argument("--on-error", default=None, choices=["warn", "raise"], help="what a fault of numscope's does")
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is there")
    for name in ("backward", "parameters", "optimizer", "stacks"):
        parser.add_argument(f"--no-{name}", dest=name, action="store_false", default=None, help=f"leave {name} out")
    parser.add_argument(
        "--to-cpu",
        action="append",
        default=[],
        metavar="PATTERN",
        help="run these on the CPU: a name, a pattern; repeat",
    )
    parser.add_argument("--dtype", default=None, help="with --to-cpu: run them in this dtype too, such as float64")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="-- script.py args …", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run the script under capture and pass its exit status on."""
    command = args.script[1:] if args.script[:1] == ["--"] else args.script
    if not command:
        raise SettingsError("no script given: numscope run --out RUN -- script.py args")
    settings: dict[str, Any] = {name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None}
    from numscope.capture.job import run_script
    from numscope.core.settings import CaptureSettings

    CaptureSettings.of(overwrite=args.overwrite, **settings)
    if args.dtype and not args.to_cpu:
        raise SettingsError("--dtype says in which dtype --to-cpu runs things: give --to-cpu PATTERN too")
    also = {"numscope.diagnose.reroute:install": {"names": args.to_cpu, "dtype": args.dtype}} if args.to_cpu else {}
    return run_script(command[0], command[1:], args.out, {"overwrite": args.overwrite, **settings}, also)
