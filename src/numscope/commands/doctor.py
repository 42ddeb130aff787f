"""Say what changes numbers: on this machine, in a run, or between two runs.

  numscope doctor                      # settings, versions and chips of this machine
  numscope doctor runs/npu             # of a run
  numscope doctor runs/npu runs/gpu    # in what two runs differ, before any tensor is compared

Exit status: 0, or 1 where two runs differ in a setting, a version or a chip; 2 it could not be done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TextIO

from numscope.commands import grammar
from numscope.core.errors import NumscopeError, SettingsError

HELP = "what of this machine, or of two runs, changes numbers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="*", help="none: this machine; one: its facts; two: the differences"
    )
    grammar.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the facts, or the differences."""
    if len(args.runs) > 2:
        raise SettingsError(f"doctor takes at most two runs, {len(args.runs)} are given")
    if len(args.runs) == 2:
        target, reference = args.runs
        return _two_runs(target, reference, args.json)
    facts = _run(args.runs[0]).get("numerics") if args.runs else _machine()
    if not isinstance(facts, Mapping) or not facts:
        raise NumscopeError(
            f"{args.runs[0]} does not say its settings: it was captured by an older version, or imported"
        )
    if not _wrote_json({"format": "numscope.doctor/1", "facts": facts}, args.json):
        _print_facts(facts, sys.stdout)
    return 0


def _two_runs(target: str, reference: str, to: str | None) -> int:
    from numscope.compare.run_settings import differences

    different = differences(_run(target), _run(reference))
    document = {"format": "numscope.doctor/1", "differences": [one.to_dict() for one in different]}
    if not _wrote_json(document, to):
        width = max((len(one.name) for one in different), default=0)
        for one in different:
            print(f"  {one.name:<{width}}  {_cell(one.target)}  against  {_cell(one.reference)}")
        print(f"{len(different)} differences" if different else "no setting, version or chip differs")
    return int(bool(different))


def _run(path: str) -> Mapping[str, object]:
    from numscope.store.reader import open_run

    return open_run(path).manifest


def _machine() -> Mapping[str, object]:
    if find_spec("torch") is None:
        raise NumscopeError("torch is not installed here: install it, or name a run")
    from numscope.capture.torch.numerics import collect

    return collect(start_devices=True)


def _wrote_json(document: Mapping[str, object], to: str | None) -> bool:
    """Write the document to a file or to standard output; tell whether standard output has it."""
    from numscope.report.files import STDOUT
    from numscope.report.json import write_document

    if to is not None:
        write_document(document, to)
    return to == STDOUT


def _print_facts(facts: Mapping[str, object], stream: TextIO) -> None:
    for group, values in facts.items():
        if not isinstance(values, Mapping) or not values:
            continue
        print(group, file=stream)
        width = max(map(len, values))
        for name, value in values.items():
            print(f"  {name:<{width}}  {_cell(value)}", file=stream)


def _cell(value: object) -> str:
    return "not set" if value is None else str(value)
