"""Say what changes numbers: on this machine, in a run, or between two runs.

  numscope doctor                      # settings, versions and chips of this machine
  numscope doctor runs/npu             # of a run
  numscope doctor runs/npu runs/gpu    # in what two runs differ, before any tensor is compared
  numscope doctor --measure            # how far each operator of this machine's chips is off, in about a minute

Exit status: 0, or 1 where two runs differ in a setting, a version or a chip, or where a measured operator is at fault; 2 it
could not be done.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from numscope.commands import grammar
from numscope.core.errors import NumscopeError, SettingsError

if TYPE_CHECKING:
    from numscope.compare.judge.rounding.accuracy import Key, Row

HELP = "what of this machine, or of two runs, changes numbers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs", metavar="RUN", nargs="*", help="none: this machine; one: its facts; two: the differences"
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure the operators of this machine; verdicts on it use the table"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="N", help="with --measure: how long, in all (default 60)"
    )
    grammar.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the facts, or the differences."""
    if args.measure:
        if args.runs:
            raise SettingsError("--measure is about this machine: give it no run")
        return _measure(args.seconds, args.json)
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


def _measure(seconds: float, to: str | None) -> int:
    """Measure each chip of this machine, write its table, and print the operators that are farthest off."""
    if find_spec("torch") is None:
        raise NumscopeError("torch is not installed here: install it to measure its operators")
    if not seconds > 0:
        raise SettingsError(f"--seconds {seconds:g}: give how long to measure, above 0")
    from numscope.compare.judge.rounding.accuracy import accuracy_of, is_fault, measured, own_rows, tables, write_rows
    from numscope.diagnose.accuracy.measuring import devices, measure, versions
    from numscope.report.files import answer_stream

    usual, stream = accuracy_of(own_rows()), answer_stream(to)
    found: list[dict[str, object]] = []
    all_devices = devices()
    for device in all_devices:
        rows = measure(device, seconds / len(all_devices))
        if not rows:
            raise NumscopeError(f"no operator could be measured on {device}: it lacks float32, bfloat16 and float16")
        path = tables() / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', rows[0].chip)}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            write_rows(rows, versions(), file)
        faults = [row for row in rows if is_fault(row, usual)]
        found.append(
            {"chip": rows[0].chip, "device": device.type, "table": str(path), "rows": len(rows)}
            | {"operators": [_told(row, usual.high.get(row.key)) for row in rows]}
            | {"faults": [_told(row, usual.high.get(row.key)) for row in faults]}
        )
        _print_accuracy(rows, faults, usual.high, path, stream)
    measured.cache_clear()
    _wrote_json({"format": "numscope.doctor/1", "measured": found}, to)
    return int(any(one["faults"] for one in found))


def _told(row: Row, usual: float | None) -> dict[str, object]:
    name, backward, narrow = row.key
    return {
        "operator": name,
        "direction": "backward" if backward else "forward",
        "format": "narrow" if narrow else "single",
        "samples": row.samples,
        "median": row.median,
        "high": row.high,
        "usual": usual,
    }


def _print_accuracy(rows: list[Row], faults: list[Row], usual: Mapping[Key, float], path: Path, stream: TextIO) -> None:
    """Print a chip's farthest operators, in units of roundoff of the shape that their rules give."""

    def times(row: Row) -> float:
        return row.high / max(usual.get(row.key, row.high), 0.5)

    print(f"{rows[0].chip}: {len(rows)} rows, {path}", file=stream)
    shown = faults or sorted(rows, key=times, reverse=True)[:8]
    for row in shown:
        name, backward, narrow = row.key
        what = f"{name}{' backward' if backward else ''}, {'below float32' if narrow else 'float32'}"
        beside = f", {times(row):.2g} × what other chips are" if row.key in usual else ", measured on no other chip"
        print(f"  {what:<40} off by {row.high:.2g} units of roundoff{beside}", file=stream)
    if faults:
        print(f"  {len(faults)} rows are no rounding but faults of the chip, and granted to no call", file=stream)


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
