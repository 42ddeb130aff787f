"""The rows of a benchmark as one table: ratios over the plain step, and numscope's extra time over msprobe's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import limits

HEADER = ("", "numscope", "msprobe", "numscope / msprobe", "limit (✗: missed)", "written, read")


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return one line: the measurement, both tools, their ratio, the limit, and the bytes written or read."""
    what, ours, peer, quotient, more = figures(row)
    return (what, ours, peer, quotient, limits.text(row), more)


def figures(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Return one line without the limit."""
    ours, peer = row["numscope"], row.get("msprobe", {})
    if "error" in ours:
        return (row["what"], "failed", times(peer) or wall(peer), "", ours["error"][:80])
    if "captured" in ours:
        return (row["what"], times(ours), times(peer), extra(ours, peer), storage(ours, peer))
    if "ratio" in ours:
        speeds = f"{ours['plain GB/s']:.2f} GB/s plain, {ours['kept GB/s']:.2f} kept" if "kept GB/s" in ours else ""
        return (row["what"], f"{ours['ratio']:.3f} ×", ratio(peer["ratio"]) if "ratio" in peer else "", "", speeds)
    if "seconds" in ours:
        quotient = ours["seconds"] / peer["seconds"] if "seconds" in peer else None
        slots = f"{ours['calls']:,} calls, {ours['slots']:,} slots" if "calls" in ours else ""
        memory = f", {ours['memory_mb']:.0f} MB of memory" if row["mode"] in ("wide", "long", "ranks") else ""
        if "plain" in ours:
            slots = f"{ours['plain']:.1f} s for a plain read, {ours['memory_mb']:.0f} MB of memory"
        return (row["what"], wall(ours), wall(peer), share(quotient), slots + memory)
    if "gb_per_second" in ours:
        return (row["what"], f"{ours['gb_per_second']:.2f} GB/s", "", "", "both sides counted, one core")
    costs = [f"{ours[key]['microseconds']:.1f}" for key in ours if key.isdigit()]
    numbers = [int(key) for key in ours if key.isdigit()]
    return (
        f"µs per call, {min(numbers):,} to {max(numbers):,} calls a step",
        ", ".join(costs),
        "",
        "",
        f"{ours['structure']:.1f} µs without fingerprints; {ours['memory_mb']:.0f} MB more memory",
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
    """Return numscope's time besides the plain step, over msprobe's."""
    if "captured" not in peer:
        return ""
    return share(limits.extra(ours, peer))


def share(quotient: float | None) -> str:
    if quotient is None:
        return ""
    return f"1/{1 / quotient:.1f}" if 0 < quotient < 1 else f"{quotient:.2f}"


def storage(ours: dict[str, Any], peer: dict[str, Any]) -> str:
    if not ours.get("files"):
        return ""
    text = f"{size(ours['bytes'])} in {ours['files']} files"
    return f"{text}; {size(peer['bytes'])} in {peer['files']}" if "bytes" in peer else text


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table for a terminal."""
    table = [HEADER, *map(cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]
