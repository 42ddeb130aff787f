"""The rows of a benchmark as one table: ratios over the plain step, and numscope's extra time over msprobe's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HEADER = ("", "numscope", "msprobe", "numscope / msprobe", "written")


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """One line: what was measured, both tools, their ratio, and what was written."""
    ours, peer = row["numscope"], row.get("msprobe", {})
    if "error" in ours:
        return (row["what"], "failed", times(peer) or wall(peer), "", ours["error"][:80])
    if "captured" in ours:
        return (row["what"], times(ours), times(peer), extra(ours, peer), storage(ours, peer))
    if "ratio" in ours:
        return (row["what"], f"{ours['ratio']:.3f} ×", ratio(peer["ratio"]) if "ratio" in peer else "", "", "")
    if "seconds" in ours:
        quotient = ours["seconds"] / peer["seconds"] if "seconds" in peer else None
        slots = f"{ours['calls']} calls, {ours['slots']} slots" if "calls" in ours else ""
        return (row["what"], wall(ours), wall(peer), share(quotient), slots)
    costs = [f"{ours[key]['microseconds']:.1f}" for key in ours if key.isdigit()]
    numbers = ", ".join(f"{int(key):,}" for key in ours if key.isdigit())
    return (
        f"µs per call, steps of {numbers} calls",
        ", ".join(costs),
        "",
        "",
        f"{ours['memory_mb']:.0f} MB more memory",
    )


def times(side: dict[str, Any]) -> str:
    return ratio(side["captured"] / side["plain"]) if "captured" in side else failed(side)


def ratio(value: float) -> str:
    return f"{value:.0f} ×" if value >= 20 else f"{value:.1f} ×" if value >= 5 else f"{value:.2f} ×"


def wall(side: dict[str, Any]) -> str:
    return f"{side['seconds']:.2f} s" if "seconds" in side else failed(side)


def failed(side: dict[str, Any]) -> str:
    return "failed" if "error" in side else ""


def extra(ours: dict[str, Any], peer: dict[str, Any]) -> str:
    """numscope's time besides the plain step, over msprobe's."""
    if "captured" not in peer:
        return ""
    return share((ours["captured"] - ours["plain"]) / (peer["captured"] - peer["plain"]))


def share(quotient: float | None) -> str:
    if quotient is None:
        return ""
    return f"1/{1 / quotient:.1f}" if 0 < quotient < 1 else f"{quotient:.2f}"


def storage(ours: dict[str, Any], peer: dict[str, Any]) -> str:
    text = f"{size(ours['bytes'])} in {ours['files']} files"
    return f"{text}; {size(peer['bytes'])} in {peer['files']}" if "bytes" in peer else text


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table for a terminal."""
    table = [HEADER, *map(cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]


def markdown(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table for the README."""
    head = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return head + ["| " + " | ".join(cells(row)) + " |" for row in rows]
