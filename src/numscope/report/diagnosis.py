"""The diagnosis on one screen: verdict, origin, mechanism, repair, the lift test's figures, and what could not be done.

DIVERGED  at Functional.gelu.2.forward in blocks.2.mlp, step 0

  mechanism  semantic: the two compute different things, in any precision
  repair     equal to the reference with approximate='none' (now 'tanh') in Functional.gelu.2.forward
  lift       native 2.0e-04   float32 2.0e-04   float64 2.0e-04   (rounding explains 6e-08)
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, TextIO

from numscope.core.report import Origin, Report

MEANING = {
    "semantic": "the two compute different things, in any precision",
    "precision": "the same computation, in another dtype or cast at another place",
    "order": "the same sums in another order: rounding, no fault",
    "input": "the calls are right: they were given something else",
    "parameter": "the calls are right: their parameters differ",
    "unknown": "could not be told",
}


def print_diagnosis(report: Report, stream: TextIO) -> None:
    """Print a diagnosis."""
    width = min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140)
    for line in lines(report, width):
        print(line, file=stream)


def lines(report: Report, width: int = 100) -> list[str]:
    """Return the lines of a diagnosis."""
    origin = report.origin
    if origin is None:
        return [f"{report.verdict.upper()}", "", *_wrapped("", report.reason, width)]
    where = f" in {origin.module}" if origin.module and origin.module not in origin.call else ""
    rank = f", rank {origin.rank}" if origin.rank else ""
    found = [f"{report.verdict.upper()}  at {origin.call}{where}, step {origin.step}{rank}", ""]
    found += _wrapped("", origin.reason, width)
    if origin.source is not None:
        found.append(f"  {origin.source.file}:{origin.source.line}")
        if origin.source.code:
            found.append(f"    {origin.source.code.strip()}")
    found += ["", *_about(origin, width)]
    for rival in report.suspects[1:3]:
        if "diagnosis" in rival.details:
            found += ["", *_wrapped("also", f"{rival.call}: {rival.reason}", width), *_about(rival, width, brief=True)]
    return found


def _about(origin: Origin, width: int, brief: bool = False) -> list[str]:
    found = _wrapped("mechanism", f"{origin.mechanism}: {MEANING[origin.mechanism]}", width)
    if origin.repair:
        found += _wrapped("repair", origin.repair, width)
    elif not brief:
        found += _wrapped("repair", "no hypothesis reproduces the reference", width)
    details = origin.details.get("diagnosis") or {}
    if brief:
        return found
    found += _figures(details.get("lift") or {}, width)
    if details.get("target") and isinstance(details["target"], list):
        found += _wrapped("replayed", _calls(details["target"], details.get("reference") or []), width)
    for key, label in (("note", "note"), ("could_not", "could not")):
        if details.get(key):
            found += _wrapped(label, str(details[key]), width)
    for item in (details.get("not_replayed") or [])[:3]:
        found += _wrapped("could not", f"replay {item}", width)
    return found


def _figures(lift: Mapping[str, Any], width: int) -> list[str]:
    if not lift:
        return []
    shown = "   ".join(f"{name} {_number(lift.get(name))}" for name in ("native", "float32", "float64"))
    found = _wrapped("lift", f"{shown}   (rounding explains {_number(lift.get('floor'))})", width)
    sides = []
    for side in ("target", "reference"):
        if lift.get(f"{side}_error") is not None:
            kept = "reproduced" if lift.get(f"{side}_reproduced") else "not reproduced"
            sides.append(f"{side} {_number(lift[f'{side}_error'])}, {kept}")
    if sides:
        found += _wrapped("own error", f"against a float64 replay: {'; '.join(sides)}", width)
    return found


def _calls(target: list[str], reference: list[str]) -> str:
    if target == reference:
        return _few(target)
    return f"{_few(target) or 'nothing'} against {_few(reference) or 'nothing'}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _number(value: Any) -> str:
    if value is None:
        return "?"
    return "0" if value == 0 else f"{float(value):.1e}"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    room = f"  {label:<11}" if label else "  "
    return textwrap.wrap(
        text, width, initial_indent=room, subsequent_indent=" " * len(room), break_long_words=False
    ) or [room.rstrip()]
