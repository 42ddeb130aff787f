"""The limits of the project's figures, and the check of each measured figure against its limit."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
Limit = tuple[str, float, float, str]  # what is held to it, the figure, the limit, "at most" or "at least"

EXTRA = {  # of msprobe's extra time on the same step
    ("TinyLM, 2 layers", "mix stats"): 1 / 10,
    ("TinyLM, 12 layers", "mix stats"): 1 / 10,
    ("Medium", "mix stats"): 1 / 6,
    ("TinyLM, 2 layers", "mix tensors"): 1 / 10,
    ("TinyLM, 12 layers", "mix tensors"): 1 / 10,
    ("TinyLM, 2 layers", "guard mix"): 1 / 15,
}
IDLE = ("not started", "stopped", "step not recorded")
FIVE_THOUSAND = "TinyLM, 56 layers"


def limits(row: Row) -> list[Limit]:
    """The figures of a row that have a limit."""
    ours, peer = row["numscope"], row.get("msprobe", {})
    if "error" in ours:
        return []
    place = (row["model"], row["mode"])
    found: list[Limit] = []
    if place in EXTRA and "captured" in peer:
        found.append(("of msprobe's extra time", extra(ours, peer), EXTRA[place], "at most"))
    if row["mode"] == "mix tensors" and "bytes" in ours:
        if "bytes" in peer:
            found.append(("of its bytes", ours["bytes"] / peer["bytes"], 0.4, "at most"))
        found.append(("files", ours["files"], 19, "at most"))
    if row["mode"] in IDLE:
        found.append(("× plain", ours["ratio"], 1.01, "at most"))
    if row["what"] == "numscope --help":
        found.append(("s", ours["seconds"], 0.15, "at most"))
    if row["what"] == "import numscope":
        found.append(("s besides Python's own", ours["seconds"] - ours["bare interpreter"], 0.06, "at most"))
    if row["what"].startswith("compare "):
        found += _compare(row, ours, peer)
    if row["mode"] == "measures":
        found.append(("GB/s", ours["gb_per_second"], 1.5, "at least"))
    if row["mode"] == "growth":
        found.append(("× the cost in the smallest step", ours["rise"], 1.2, "at most"))
        found.append(("µs besides the fingerprint", ours["structure"], 10.0, "at most"))
        found.append(("MB", ours["memory_mb"], 256.0, "at most"))
    return found


def _compare(row: Row, ours: Row, peer: Row) -> list[Limit]:
    found: list[Limit] = []
    if row["model"] == FIVE_THOUSAND and row["mode"] == "stats":
        found.append(("s", ours["seconds"], 0.6, "at most"))
    if row["mode"] == "wide":
        found.append(("s", ours["seconds"], 10.0, "at most"))
    if row["mode"] == "ranks":
        found.append(("MB", ours["memory_mb"], 4000.0, "at most"))
    if row["mode"] == "long":
        found.append(("MB", ours["memory_mb"], 2000.0, "at most"))
    if "seconds" in peer:
        least = 5.0 if row["mode"] == "tensors" else 10.0
        found.append(("× msprobe's speed", peer["seconds"] / ours["seconds"], least, "at least"))
    return found


def extra(ours: Row, peer: Row) -> float:
    """Return numscope's time besides the plain step, over msprobe's."""
    return float((ours["captured"] - ours["plain"]) / (peer["captured"] - peer["plain"]))


def kept(limit: Limit) -> bool:
    """Tell whether a figure keeps to its limit."""
    _, figure, bound, sense = limit
    return figure <= bound if sense == "at most" else figure >= bound


def as_json(row: Row) -> list[Row]:
    """Return the limits of a row for its results file."""
    return [
        {"figure": limit[0], "value": limit[1], "limit": limit[2], "sense": limit[3], "kept": kept(limit)}
        for limit in limits(row)
    ]


def text(row: Row) -> str:
    """Return the limits of a row for a table: `≤ 1/10 of msprobe's extra time`; a cross where it is missed."""
    return ", ".join(f"{_bound(*limit[2:])}{'' if kept(limit) else ' ✗'} {limit[0]}" for limit in limits(row))


def _bound(bound: float, sense: str) -> str:
    number = f"1/{1 / bound:.0f}" if bound < 0.4 and abs(1 / bound - round(1 / bound)) < 1e-9 else f"{bound:g}"
    return f"{'≤' if sense == 'at most' else '≥'} {number}"
