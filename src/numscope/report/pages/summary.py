"""The summary that every page begins with: the two runs, the differences at the start, the place of the origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from numscope.core.json_value import JsonObject
from numscope.core.report import plain
from numscope.core.words import PairVerdict
from numscope.report.pages.tables import Filter, IndexedTable
from numscope.store.reader import Run
from numscope.store.schema import TableRow

SEVERITY: tuple[PairVerdict, ...] = ("identical", "equivalent", "unmatched", "inherited", "origin")  # the worst last
FACETS = ("verdict", "phase", "kind", "dtype", "step", "rank")
_MODULES = 2000  # module paths offered as suggestions
# Facts that differ between any two jobs.
_TIMES = ("created", "started", "finished", "ended", "time")
_TOLD_APART = ("numerics.",)  # in the report's own list of settings
_NAMES = ("pid", "job", "path", "out", "settings.path", "id", "host", "imported.at", "imported.files", "checksum")
_IGNORED = (*_TIMES, *_TOLD_APART, *_NAMES)


def about(run: Run | None, name: str = "") -> JsonObject:
    """Return the facts of a run that a page shows."""
    if run is None:
        return {"path": name, "steps": [], "ranks": [], "incomplete": [], "skipped": {}, "manifest": {}}
    return {
        "path": str(run.path),
        "steps": list(run.steps),
        "ranks": list(run.ranks),
        "incomplete": [list(item) for item in run.incomplete],
        "skipped": plain(run.skipped()),
        "manifest": {key: plain(value) for key, value in _flat(run.manifest).items() if not key.startswith("env")},
    }


def manifest_differences(target: Run | None, reference: Run | None) -> list[TableRow]:
    """Return the differences of two manifests: framework, devices, seeds, settings, environment."""
    if target is None or reference is None:
        return []
    first, second = _flat(target.manifest), _flat(reference.manifest)
    return [
        {"name": name, "target": plain(first.get(name)), "reference": plain(second.get(name))}
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name) and not name.startswith(_IGNORED)
    ][:60]


def _flat(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item
    return flat


def row_of(calls: IndexedTable, origin: TableRow) -> int | None:
    """Return the row of an origin's call, or None: the origin may be data or a parameter that no row shows."""
    rows = calls.rows(Filter(step=(int(origin.get("step", 0)),), rank=(int(origin.get("rank", 0)),)))
    for name in ("target_name", "reference_name"):
        if name not in calls.names:
            continue
        coded = calls.column(name)
        assert coded.words is not None
        code = coded.words.index(origin.get("call", "")).as_py()
        if code >= 0 and len(hits := rows[coded.values[rows] == code]):
            return int(hits[0])
    return None


def start(calls: IndexedTable) -> list[TableRow]:
    """Return the data and parameters that differed before any call."""
    where = Filter(kind=("data", "parameter"), verdict=("origin", "inherited", "unmatched"))
    wanted = ["pair", "target_name", "reference_name", "kind", "error_out", "verdict", "reason"]
    picked = calls.table.select(wanted).take(pa.array(calls.rows(where)[:12]))
    return [plain(row) for row in picked.to_pylist()]


class _SlotDtype(NamedTuple):
    """The dtype of a slot, and whether the slot is an output."""

    is_output: bool
    dtype: str | None


def with_dtype(calls: pa.Table, pairs: pa.Table) -> pa.Table:
    """Add to each call the dtype of its first output (of its first slot where it has no output)."""
    number = pairs.column("pair").to_numpy()
    dtype = pairs.column("target_dtype").to_pylist()
    other = pairs.column("reference_dtype").to_pylist()
    output = [name.startswith("output") for name in pairs.column("slot").to_pylist()]
    first: dict[int, _SlotDtype] = {}
    for pair, is_output, mine, theirs in zip(number.tolist(), output, dtype, other):
        if pair not in first or (is_output and not first[pair].is_output):
            first[pair] = _SlotDtype(is_output, mine or theirs)
    slots = [first.get(pair) for pair in calls.column("pair").to_pylist()]
    dtypes = [None if slot is None else slot.dtype for slot in slots]
    return calls.append_column("dtype", pa.array(dtypes, pa.string()))


def describe(
    calls: IndexedTable,
    pairs: IndexedTable,
    *,
    report: TableRow | None,
    check: TableRow | None,
    target: Run | None,
    reference: Run | None,
    comparing: bool,
) -> JsonObject:
    """Return the content of the first page, and the choices of the filters."""
    origin = (report or check or {}).get("origin")
    tables = {"calls": calls, "pairs": pairs}
    return {
        "mode": "comparison" if comparing else "run",
        "report": report,
        "check": check,
        "target": about(target, "target"),
        "reference": about(reference, "reference") if comparing else None,
        "differences": manifest_differences(target, reference),
        "origin_row": row_of(calls, origin) if origin else None,
        "suspect_rows": [row_of(calls, suspect) for suspect in (report or {}).get("suspects", [])],
        "start": start(calls) if comparing else [],
        "tables": {
            name: {
                "rows": len(table),
                "columns": table.names,
                "facets": {facet: table.facet(facet) for facet in FACETS},
            }
            for name, table in tables.items()
        },
        "modules": calls.facet("module")[:_MODULES],
    }


def heat(calls: IndexedTable, measure: str) -> dict[str, object]:
    """Return worst verdict, largest error and number of calls for every rank and step."""
    steps, ranks = calls.facet("step"), calls.facet("rank")
    column = np.searchsorted(steps, calls.column("step").values)
    line = np.searchsorted(ranks, calls.column("rank").values)
    cell = line * max(len(steps), 1) + column
    size = len(steps) * len(ranks)
    verdict = calls.column("verdict")
    words = verdict.words.to_pylist() if verdict.words is not None else []
    code = np.array([SEVERITY.index(w) if w in SEVERITY else -1 for w in words] + [-1])
    worst = np.full(size, -1)
    np.maximum.at(worst, cell, code[verdict.values])
    error = calls.column(measure)
    is_known = np.isfinite(error.values) if error.valid is None else error.valid & np.isfinite(error.values)
    largest = np.full(size, -np.inf)
    np.maximum.at(largest, cell[is_known], error.values[is_known])
    shape = (len(ranks), len(steps))
    return {
        "steps": steps,
        "ranks": ranks,
        "verdict": [[SEVERITY[c] if c >= 0 else None for c in row] for row in worst.reshape(shape).tolist()],
        "error": [[v if np.isfinite(v) else None for v in row] for row in largest.reshape(shape).tolist()],
        "calls": np.bincount(cell, minlength=size).reshape(shape).tolist(),
    }
