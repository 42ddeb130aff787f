"""Writes a comparison as one HTML file: the viewer's pages with the most important rows, and no network access.

The file holds the built front end (view/static) and the data. Its Content-Security-Policy allows the script and the style
by their hashes and nothing else to be loaded, so that it can be opened from disk, mailed and attached to an issue.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np

from numscope.compare.comparison import Comparison
from numscope.core.json_value import JsonObject
from numscope.core.report import plain
from numscope.report.files import output
from numscope.report.pages import story, summary
from numscope.report.pages.run_index import RunIndex
from numscope.report.pages.tables import Filter, IndexedTable, RowNumbers
from numscope.store.schema import TableRow

LARGEST = 4_800_000  # bytes of the file
_CALLS, _PAIRS, _POINTS, _STACKS = 2000, 4000, 20_000, 60  # rows at most; fewer where the file would grow too large
_DIFFERENT = ("origin", "inherited", "unmatched")


def write_html(comparison: Comparison, path: str | Path) -> None:
    """Write the report of a comparison as one HTML file."""
    text = render(comparison)
    with output(path) as file:
        file.write_text(text, encoding="utf-8")


def render(comparison: Comparison) -> str:
    """Return the report of a comparison as the text of one HTML file."""
    calls = IndexedTable(summary.with_dtype(comparison.calls, comparison.pairs))
    pairs = IndexedTable(comparison.pairs)
    share = 1.0
    while True:
        data = _data(comparison, calls, pairs, share)
        text = page(data, f"numscope: {comparison.report.verdict}")
        if len(text.encode()) <= LARGEST or share < 0.01:
            return text
        share /= 2


def write_answer(answer: JsonObject, path: str | Path) -> None:
    """Write a command's answer, as its --json has it, as one HTML file."""
    text = page({"document": answer}, f"numscope: {answer['format']}")
    with output(path) as file:
        file.write_text(text, encoding="utf-8")


def page(data: Mapping[str, object], title: str) -> str:
    """Return the front end and its data as one HTML text."""
    static = files("numscope").joinpath("view", "static")
    script = static.joinpath("app.js").read_text("utf-8")
    style = static.joinpath("app.css").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    # Every < is escaped, so that no name in the data can end the script element.
    embedded = json.dumps(plain(data), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style></head>\n"
        f'<body><div id="app"></div>\n<script type="application/json" id="numscope-data">{embedded}</script>\n'
        f'<script type="module">{script}</script></body></html>\n'
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(comparison: Comparison, calls: IndexedTable, pairs: IndexedTable, share: float) -> dict[str, object]:
    report = comparison.report.to_dict()
    described = summary.describe(
        calls,
        pairs,
        report=report,
        check=None,
        target=comparison.target,
        reference=comparison.reference,
        comparing=True,
    )
    suspects = [row for row in [described["origin_row"], *described["suspect_rows"]] if row is not None]
    rows = _most_telling(calls, suspects, max(int(_CALLS * share), 20))
    owners = calls.column("pair").values[rows]
    slots = np.flatnonzero(np.isin(pairs.column("pair").values, owners))[: max(int(_PAIRS * share), 40)]
    sides = {"target": RunIndex(comparison.target), "reference": RunIndex(comparison.reference)}
    details = {row: _records(calls, sides, row) for row in dict.fromkeys(suspects[:_STACKS])}
    origin = details.get(described["origin_row"], {}) if described["origin_row"] is not None else {}
    described |= {"stack": _frames(origin), "version": "file"}
    if len(rows) < len(calls) or len(slots) < len(pairs):
        described["shown"] = {"calls": len(rows), "of_calls": len(calls), "pairs": len(slots), "of_pairs": len(pairs)}
    points = story.frame(calls, story.ERRORS, Filter(), 0, 0, max(int(_POINTS * share), 1000))
    return {
        "summary": described,
        "calls": _text(calls.window(rows, calls.names)),
        "pairs": _text(pairs.window(slots, pairs.names)),
        "story": _text(points),
        "heat": summary.heat(calls, "error_out"),
        "details": details,
    }


def _most_telling(calls: IndexedTable, suspects: list[int], most: int) -> RowNumbers:
    """Return the rows to show: suspects and their neighbours, then differences, the largest first."""
    near = [row for suspect in suspects[:20] for row in range(max(suspect - 15, 0), min(suspect + 16, len(calls)))]
    picked = [np.array(near, np.int64)]
    for verdict in _DIFFERENT:
        picked.append(calls.rows(Filter(verdict=(verdict,)), "error_out", True)[: most // 2])
    picked.append(calls.rows(Filter(), "error_out", True)[:most])
    picked.append(np.arange(min(len(calls), most)))
    first: dict[int, None] = dict.fromkeys(np.concatenate(picked).tolist())
    return np.array(sorted(list(first)[:most]), np.int64)


def _records(calls: IndexedTable, sides: dict[str, RunIndex], row: int) -> dict[str, TableRow | None]:
    cell: TableRow = calls.table.slice(row, 1).to_pylist()[0]
    records = {}
    for name, side in sides.items():
        order = cell[f"{name}_order"]
        if order is not None and side.has(cell["step"], cell["rank"]):
            records[name] = side.call(cell["step"], cell["rank"], order)
    return {name: _row(record) for name, record in records.items()}


def _row(record: TableRow | None) -> TableRow | None:
    return None if record is None else {**plain(record)}


def _frames(records: dict[str, TableRow | None]) -> list[TableRow]:
    for record in records.values():
        if record and record["frames"]:
            return [{**frame, "user": i == record["user_frame"]} for i, frame in enumerate(record["frames"])]
    return []


def _text(frame: bytes) -> str:
    return base64.b64encode(frame).decode("ascii")
