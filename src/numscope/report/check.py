"""What a check found, on one screen: the origin with its line, the way to the loss as a short tree, the ranks.

FOUND  at Torch.log.0.forward in encoder, step 3

  Torch.log.0.forward turned finite inputs into 12 -inf of 64 elements
  model.py:41 in forward    x = torch.log(x)

  Torch.log.0.forward
  └─ Tensor.mul.4.forward
     └─ … 7 calls …
        └─ Functional.cross_entropy.0.forward
"""

from __future__ import annotations

from collections.abc import Sequence

from numscope.check.checking import Check, Link
from numscope.check.headroom import Format, Margin
from numscope.report.lines import Line, align, ranges

_SHOWN = 9  # links of the chain
_OTHERS = 5  # origins after the first


def lines(found: Check) -> list[Line]:
    """Return the lines of a check."""
    told: list[Line] = []
    origin = found.origin
    if origin is None:
        told.append([("nothing non-finite", "bold green")])
    else:
        where = f" in {origin.module}" if origin.module else ""
        rank = f", rank {origin.rank}" if len(found.run.ranks) > 1 else ""
        told.append([("FOUND", "bold red"), f"  at {origin.call}{where}, step {origin.step}{rank}"])
        told += ["", f"  {origin.reason}"]
        if origin.source:
            place = f"{origin.source.file}:{origin.source.line} in {origin.source.function}"
            told.append([f"  {place}    ", (origin.source.code, "dim")])
        told += ["", *_tree(found.chain)]
        told.append(f"  {_many(found.inherited, 'call')} inherited it")
        if len(found.origins) > 1:
            told += _others(found)
        if found.ranks:
            told += ["", *(f"  rank {rank}: {story}" for rank, story in sorted(found.ranks.items()))]
    if found.skipped_steps:
        told.append(f"  skipped by a loss scaler, and no fault: steps {ranges(found.skipped_steps)}")
    return told


def _others(found: Check) -> list[Line]:
    """Return the other origins: one line for a call, however many steps it came up in."""
    steps: dict[tuple[str, int], list[int]] = {}
    for item in found.origins:
        steps.setdefault((item.call, item.rank), []).append(item.step)
    told: list[Line] = []
    assert found.origin is not None
    again = steps.pop((found.origin.call, found.origin.rank))[1:]
    if again:
        told += ["", f"  again in {_steps(again)}"]
    if steps:
        told += ["", f"  {_many(len(steps), 'other origin')}:"]
        ranks = len(found.run.ranks) > 1
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


def _tree(chain: Sequence[Link]) -> list[Line]:
    names = [link.call for link in chain]
    if len(names) > _SHOWN:
        head, tail = names[: _SHOWN - 3], names[-2:]
        names = [*head, f"… {len(names) - len(head) - len(tail)} calls …", *tail]
    return [f"  {name}" if depth == 0 else f"  {'   ' * (depth - 1)}└─ {name}" for depth, name in enumerate(names)]


def headroom_lines(form: Format, margins: Sequence[Margin], limit: int = 40) -> list[Line]:
    """Return the calls that a format cannot hold, or only just."""
    over = sum(margin.over > 1 for margin in margins)
    told: list[Line] = ["", f"{form.name}: {over} outputs would overflow, {len(margins) - over} come near its edges"]
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
        told.append('(-: not known without the elements; capture with keep="tensors", or tensors=[…])')
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
