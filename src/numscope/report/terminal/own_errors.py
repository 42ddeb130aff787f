"""The calls of a verified run that compute wrongly, and the accuracy of the rest.

WRONG  Functional.gelu.3.forward in blocks.3.mlp, step 0

  gelu computes wrongly on cpu in float32: every element is off by about 2^-9
  its own error is 1.9e-03, and 3.1e-07 is what healthy kernels are measured to have

  model.py:41 in forward
    return F.gelu(x)

  5 other calls compute wrongly: Functional.gelu.4.forward …
"""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter

from numscope.check.own_errors import Accuracy, OwnErrors
from numscope.report.terminal.lines import Line, align

_OTHERS = 4
_REASONS = 4
_ROWS = 12


def lines(errors: OwnErrors) -> list[Line]:
    """Return the first call that computes wrongly, the others in a line, and how much was verified."""
    told: list[Line] = []
    if errors.wrong:
        first = errors.wrong[0]
        where = f" in {first.module}" if first.module else ""
        told.append([("WRONG", "bold red"), f"  {first.call}{where}, step {first.step}{_rank(errors)}"])
        wide = min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140) - 2
        told += ["", *(f"  {line}" for line in textwrap.wrap(first.reason, wide, break_long_words=False))]
        if first.relative is not None and first.expected:
            told.append(
                f"  its own error is {first.relative:.1e}, and {first.expected:.1e} is what healthy kernels may have"
            )
        if first.source:
            told += ["", [("  " + f"{first.source.file}:{first.source.line} in {first.source.function}", "cyan")]]
            told.append(f"    {first.source.code}")
        others = Counter(origin.call for origin in errors.wrong[1:])
        others.pop(first.call, None)
        if others:
            names = ", ".join(list(others)[:_OTHERS]) + (" …" if len(others) > _OTHERS else "")
            told += [
                "",
                f"  {len(others)} other call{'s compute' if len(others) > 1 else ' computes'} wrongly: {names}",
            ]
        told.append("")
    told += _coverage(errors)
    told += _table(errors.accuracy)
    return told


def _rank(errors: OwnErrors) -> str:
    ranks = {origin.rank for origin in errors.wrong}
    return f", rank {errors.wrong[0].rank}" if len(ranks) > 1 else ""


def _coverage(errors: OwnErrors) -> list[Line]:
    counts = dict(errors.verified)
    none = counts.pop("none", 0)
    how = ", ".join(f"{count:,} {_WORDS[word]}" for word, count in counts.items())
    right = "" if errors.wrong else ": each computes as exactly as its kind is measured to"
    told: list[Line] = [f"verified {sum(counts.values()):,} operators ({how}){right}"]
    if none:
        reasons = [f"{reason} ({count:,})" for reason, count in list(errors.reasons.items())[:_REASONS]]
        more = " …" if len(errors.reasons) > _REASONS else ""
        told.append(f"not verified {none:,}: {'; '.join(reasons)}{more}")
    return told


_WORDS = {"exact": "whole", "sample": "in samples", "projection": "in projections"}


def _table(accuracy: tuple[Accuracy, ...]) -> list[Line]:
    """Return the operators that come nearest to their limits."""
    ranked = sorted(accuracy, key=lambda row: -(row.units / row.limit if row.limit else 0))[:_ROWS]
    rows: list[tuple[str, ...]] = [("operator", "dtype", "device", "calls", "own error", "ulp", "of its limit")]
    rows += [
        (
            row.operator,
            row.dtype,
            row.device,
            f"{row.calls:,}",
            f"{row.own_error:.1e}",
            f"{row.own_ulp:.2g}",
            f"{row.units / row.limit:.2g}" if row.limit else "",
        )
        for row in ranked
    ]
    return ["", *("  " + "  ".join(cells).rstrip() for cells in align(rows, (False, False, False, *[True] * 4)))]
