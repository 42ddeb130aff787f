"""`numscope run`: capture a training script with no change to it."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

from numscope.capture import launch
from numscope.core.errors import SettingsError
from numscope.core.json_value import JsonObject
from numscope.core.settings import GUARD_RECORD, CaptureSettings, GuardSettings, from_text

HELP = "capture a training script with no change to it"
_METAVARS = {
    "max_tensors": "N",
    "max_gradients": "N",
    "keep_last": "N",
    "max_bytes": "SIZE",
    "sample": "HEAD,K,TAIL",
    "control": "FILE",
    "on_error": "WHAT",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the capture options: each has the name of an argument of ns.capture."""
    parser.usage = "numscope run [-c FILE] [options] --out RUN -- script.py [args …]"
    parser.add_argument(
        "--out", metavar="RUN", help="the run directory to write (default with --guard: numscope-guard)"
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="a settings file (TOML) with the names below as keys")
    for item in fields(CaptureSettings):
        flag, text = item.name.replace("_", "-"), item.metadata["help"]
        if item.name == "verify":
            parser.add_argument(f"--{flag}", nargs="?", const="1", metavar="SHARE", help=text)
        elif item.default is True:
            parser.add_argument(f"--no-{flag}", dest=item.name, action="store_false", default=None, help=f"no {text}")
        elif item.default is False:
            parser.add_argument(f"--{flag}", action="store_true", default=None, help=text)
        elif item.name in {"tensors", "scope", "exclude"}:
            parser.add_argument(f"--{flag}", action="append", metavar="PATTERN", help=f"{text}; may be repeated")
        else:
            default = "" if item.default in (None, 0) else f" (default {_shown(item.default)})"
            parser.add_argument(
                f"--{flag}", metavar=_METAVARS.get(item.name, item.name.upper()), help=f"{text}{default}"
            )
    parser.add_argument(
        "--to-cpu", action="append", default=[], metavar="PATTERN", help="run these on the CPU; may be repeated"
    )
    parser.add_argument("--dtype", metavar="DTYPE", help="with --to-cpu: run them in this dtype too, such as float64")
    parser.add_argument("--also", action="append", default=[], help=argparse.SUPPRESS)  # bisect's axes
    parser.add_argument(
        "--guard", action="store_true", help="record nothing; stop at the first NaN or overflow, and say where"
    )
    parser.add_argument("--max-hits", type=int, default=1, metavar="N", help="with --guard: act at the N-th origin")
    parser.add_argument(
        "--action", choices=["raise", "warn", "stop"], default="raise", help="with --guard: what the N-th origin does"
    )
    parser.add_argument(
        "--allow", action="append", metavar="PATTERN", help="with --guard: what these make is meant; may be repeated"
    )
    parser.add_argument(
        "--latency", type=int, metavar="N", help="with --guard, on a device: wait for the flags after every N calls"
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="-- script.py args …", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run the script under capture and pass its exit status on."""
    command = args.script[1:] if args.script[:1] == ["--"] else args.script
    launch.program(command)  # raises for a wrong command line before anything else is loaded
    if not args.out and not args.guard:
        raise SettingsError(
            "say where the run goes: numscope run --out RUN -- script.py (with --guard it need not be said)"
        )
    settings: JsonObject = {}
    for item in fields(CaptureSettings):
        value = getattr(args, item.name)
        if value is not None:
            settings[item.name] = from_text(item.name, value) if isinstance(value, str) else value
    if args.config:
        settings["config"] = os.path.abspath(args.config)
    CaptureSettings.of(**settings)
    if args.dtype and not args.to_cpu:
        raise SettingsError("--dtype says in which dtype --to-cpu runs things: give --to-cpu PATTERN too")
    also: JsonObject = {}
    if args.to_cpu:
        also["numscope.diagnose.intervene.reroute:install"] = {"names": args.to_cpu, "dtype": args.dtype}
    for function, _, argument in (item.partition("=") for item in args.also):
        also[function] = {"install": argument}
    if args.guard:
        args.out = args.out or GUARD_RECORD
        watch = {"max_hits": args.max_hits, "action": args.action, "allow": args.allow or [], "latency": args.latency}
        watch["verify"] = settings.get("verify", False)
        settings["guard"] = {**watch, **({"level": args.level} if args.level else {})}
        GuardSettings.of(**settings["guard"])
    from numscope.capture.job import run_script

    return run_script(command, args.out, settings, also)


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
