"""The result of a check on one screen: the origin with its line and tensors, the way to the loss as a tree, and the ranks.

FOUND  a NaN is born at Torch.softmax.0.forward in blocks.3.attention, step 120

  Torch.softmax.0.forward made 4 NaN of 16 elements out of infinities: input.0 has 9 -inf of 16 elements

  model.py:41 in forward
    return torch.softmax(scores, -1) @ v

  given  input.0   float32 [4, 4]   9 -inf   -0.31 … 1.2
  made   output.0  float32 [4, 4]   4 NaN        0 … 1

  Torch.softmax.0.forward                  4 NaN of 16 elements
  └─ Tensor.matmul.1.forward               8 NaN of 32 elements
     └─ … 7 calls …
        └─ Functional.cross_entropy.0.forward  1 NaN of 1 elements
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from numscope.check.checking import ChainCall, Check, OriginTensor
from numscope.check.headroom import Margin
from numscope.check.remark import Remark
from numscope.core.dtypes import FloatFormat
from numscope.nonfinite.rule import Counts
from numscope.report.terminal.lines import Line, align, ranges

_SHOWN = 9  # links of the chain
_OTHERS = 5  # origins after the first
_TENSORS = 8  # of the origin


def lines(check: Check, width: int | None = None) -> list[Line]:
    """Return the lines of a check; sentences are as wide as the terminal, up to 140 columns."""
    wide = width or min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140)
    told = _nothing(check) if check.origin is None else _found(check, wide)
    if check.skipped_steps:
        told.append(f"  skipped by a loss scaler, and no fault: {_steps(check.skipped_steps)}")
    return told


def remark_lines(remarks: Sequence[Remark], width: int | None = None) -> list[Line]:
    """Return the lines of the remarks."""
    wide = width or min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140)
    told: list[Line] = []
    for remark in remarks:
        rows = textwrap.wrap(remark.text, wide - 10, break_long_words=False)
        told += ["", [("  remark  ", "yellow"), rows[0]], *(f"          {row}" for row in rows[1:])]
    return told


def _nothing(check: Check) -> list[Line]:
    if not check.meant:
        return [[("nothing non-finite", "bold green")]]
    what = "1 tensor holds" if check.meant == 1 else f"{check.meant:,} tensors hold"
    return [
        [("nothing is born non-finite", "bold green")],
        f"  {what} infinities that were put there, as a mask does: {check.first_meant}{' first' * (check.meant > 1)}",
    ]


def _found(check: Check, width: int) -> list[Line]:
    origin = check.origin
    assert origin is not None
    where = f" in {origin.module}" if origin.module else ""
    rank = f", rank {origin.rank}" if len(check.run.ranks) > 1 else ""
    how = "comes in" if origin.kind in ("data", "parameter") else "is born"
    born = f"{'a NaN' if origin.details['nan'] else 'an infinity'} {how} at"
    told: list[Line] = [[("FOUND", "bold red"), f"  {born} {origin.call}{where}, step {origin.step}{rank}"], ""]
    told += [f"  {line}" for line in textwrap.wrap(origin.reason, width - 2, break_long_words=False)]
    if origin.source:
        told += ["", [("  " + f"{origin.source.file}:{origin.source.line} in {origin.source.function}", "cyan")]]
        told.append(f"    {origin.source.code}")
    if finer := origin.details.get("finer"):
        told += [f"  {line}" for line in textwrap.wrap(f"({finer})", width - 2, break_long_words=False)]
    told += ["", *_tensors(check.tensors, origin.phase == "input")] if check.tensors else []
    told += ["", *_tree(check.chain)]
    if check.run.manifest.get("guard") and not check.inherited:
        told.append("  the guard's record ends with it")
    else:
        told.append(f"  {_many(check.inherited, 'call') if check.inherited else 'no call'} inherited it")
    if len(check.origins) > 1:
        told += _others(check)
    if check.ranks:
        told += ["", *(f"  rank {rank}: {story}" for rank, story in sorted(check.ranks.items()))]
    return told


def _tensors(tensors: Sequence[OriginTensor], data: bool) -> list[Line]:
    """Return the origin's tensors, those with something non-finite first where there are too many."""
    few = list(tensors)
    if len(few) > _TENSORS:
        few = sorted(few, key=lambda item: item.counts.clean)[:_TENSORS]
    rows = [_cells(item, data) for item in few]
    told: list[Line] = []
    for *cells, low, high in align(rows, (False, False, False, False, True, False)):
        told.append(f"  {'  '.join([*cells, low])}{' … ' if low.strip() else '   '}{high}".rstrip())
    return told + ([f"  … {len(tensors) - len(few)} more tensors"] if len(tensors) > len(few) else [])


def _cells(item: OriginTensor, data: bool) -> tuple[str, ...]:
    """Return the cells of a tensor: its role, slot, dtype and shape, non-finite elements, least and greatest value."""
    role = "made" if item.slot.startswith("output") and not data else "given"
    low, high = ("" if value is None else f"{value:.4g}" for value in (item.low, item.high))
    return role, item.slot, f"{item.dtype} {list(item.shape)}", _short(item.counts), low, high


def _short(counts: Counts) -> str:
    return "finite" if counts.clean else str(counts).partition(" of ")[0]


def _others(check: Check) -> list[Line]:
    """Return the other origins: one line for each call, with all its steps."""
    steps: dict[tuple[str, int], list[int]] = {}
    for item in check.origins:
        steps.setdefault((item.call, item.rank), []).append(item.step)
    told: list[Line] = []
    assert check.origin is not None
    again = steps.pop((check.origin.call, check.origin.rank))[1:]
    if again:
        told += ["", f"  again in {_steps(again)}"]
    if steps:
        told += ["", f"  {_many(len(steps), 'other origin')}:"]
        ranks = len(check.run.ranks) > 1
        for (call, rank), numbers in list(steps.items())[:_OTHERS]:
            told.append(f"    {call}, {_steps(numbers)}" + (f", rank {rank}" if ranks else ""))
    if len(steps) > _OTHERS:
        told.append(f"    … {len(steps) - _OTHERS} more; --json has all")
    return told


def _steps(numbers: Sequence[int]) -> str:
    distinct = sorted(set(numbers))
    return f"step{'s' if len(distinct) > 1 else ''} {ranges(distinct)}"


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _tree(chain: Sequence[ChainCall]) -> list[Line]:
    """Return the calls from the origin to the loss, each with its non-finite elements."""
    links = [(link.call, link.counts) for link in chain]
    if len(links) > _SHOWN:
        head, tail = links[: _SHOWN - 3], links[-2:]
        links = [*head, (f"… {len(links) - len(head) - len(tail)} calls …", ""), *tail]
    names = [name if depth == 0 else f"{'   ' * (depth - 1)}└─ {name}" for depth, (name, _) in enumerate(links)]
    column = max(map(len, names), default=0)
    return [f"  {name.ljust(column)}  {counts}".rstrip() for name, (_, counts) in zip(names, links)]


def headroom_lines(form: FloatFormat, margins: Sequence[Margin], limit: int = 40) -> list[Line]:
    """Return the calls whose values a format cannot hold, or only just."""
    over = sum(margin.overflows for margin in margins)
    rest = f"{len(margins) - over} come near its edges or lose elements to zero"
    told: list[Line] = ["", f"{form.name}: {_many(over, 'tensor')} would overflow, {rest}"]
    if not margins:
        return told
    rows: list[tuple[str, ...]] = [("call", "slot", "largest", "of the limit", "over", "near", "subnormal", "to zero")]
    for margin in margins[:limit]:
        shares = (margin.overflowing, margin.near, margin.subnormal, margin.flushed)
        rows.append((margin.call, margin.slot, f"{margin.largest:.4g}", f"{margin.over:.3g} ×", *map(_share, shares)))
    told += ["  ".join(cells).rstrip() for cells in align(rows, (False, False, *[True] * 6))]
    if len(margins) > limit:
        told.append(f"… {len(margins) - limit} more; --json has all")
    if any(margin.near is None or margin.flushed is None for margin in margins):
        told.append("(-: not known without the elements; capture with --keep tensors, or --tensors PATTERN)")
    return told


def operator_lines(operators: dict[str, dict[str, int]]) -> list[Line]:
    """Return how many calls gave each dtype."""
    told: list[Line] = ["", "calls by the dtype of their output"]
    for dtype, counts in operators.items():
        few = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:4])
        told.append(f"  {dtype}: {sum(counts.values())} ({few}{', …' if len(counts) > 4 else ''})")
    return told


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}" if value else "0"
