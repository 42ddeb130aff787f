"""The calls that compute wrongly: those whose own error, against exact arithmetic, is beyond what healthy kernels have.

Only runs that were captured with `verify` know it (the table `checks`).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.capture.torch.verify.sentences import sentence
from numscope.check.checking import Check
from numscope.check.collectives import wrong_collectives
from numscope.core.json_value import JsonObject
from numscope.core.report import Origin, Source
from numscope.store.joins import joined_calls, rows_of_checks
from numscope.store.reader import Run
from numscope.store.schema import TableRow

_KINDS = {"module": "module", "aten": "aten", "optimizer": "optimizer", "collective": "collective"}


class Accuracy(NamedTuple):
    """How accurate an operator was on a device, over a run."""

    operator: str
    dtype: str
    device: str
    calls: int
    wrong: int  # of those
    own_error: float  # the largest, relative
    own_ulp: float
    units: float  # the largest, in the terms of the limit
    limit: float

    def to_dict(self) -> JsonObject:
        """Return the row as JSON."""
        return self._asdict()


@dataclass(frozen=True)
class OwnErrors:
    """All that a run knows of its calls' own errors."""

    wrong: tuple[Origin, ...] = ()  # calls that compute wrongly, the first one first
    places: tuple[tuple[int, int], ...] = ()  # step and order of each of them
    accuracy: tuple[Accuracy, ...] = ()
    verified: dict[str, int] = field(default_factory=dict)  # how many operators, by exact, sample, projection, none
    reasons: dict[str, int] = field(default_factory=dict)  # why others were not

    @cached_property
    def known(self) -> bool:
        """Tell whether anything was verified."""
        return bool(self.verified)

    def to_dict(self) -> JsonObject:
        """Return it as JSON."""
        return {
            "operators": self.verified,
            "not_verified": self.reasons,
            "wrong": [origin.to_dict() for origin in self.wrong],
            "accuracy": [row.to_dict() for row in self.accuracy],
        }


def own_errors(run: Run) -> OwnErrors:
    """Return what a run knows of its calls' own errors."""
    found: list[tuple[tuple[int, int], tuple[int, int], Origin]] = []
    tables: list[pa.Table] = []
    for rank in run.ranks:
        checks = run.checks(rank)
        if not checks.num_rows:
            continue
        tables.append(checks)
        found += _wrong(run, rank, checks)
    if not tables:
        return OwnErrors()
    every = pa.concat_tables(tables)
    # A collective's place among the operators is not known: it comes before those of its step that compute wrongly.
    found += [((one.step, -1), (one.step, one.order), one.origin) for one in wrong_collectives(run)]
    found.sort(key=lambda item: item[0])
    none = every.filter(pc.equal(every["verified"], "none"))
    return OwnErrors(
        tuple(origin for _, _, origin in found),
        tuple(place for _, place, _ in found),
        _accuracy(every),
        dict(sorted(Counter(every["verified"].to_pylist()).items())),
        dict(Counter(none["reason"].to_pylist()).most_common()),
    )


def is_first(errors: OwnErrors, check: Check) -> bool:
    """Tell whether a call computes wrongly before, or where, something non-finite is born."""
    if check.origin is None or not errors.wrong:
        return check.origin is None
    born = check.origin
    step, order = errors.places[0]
    return (step, order) <= (born.step, check.chain[0].order if check.chain else order)


def _wrong(run: Run, rank: int, checks: pa.Table) -> list[tuple[tuple[int, int], tuple[int, int], Origin]]:
    bad = checks.filter(pc.greater(checks["units"], checks["limit"]))
    if not bad.num_rows:
        return []
    calls = pa.concat_tables([joined_calls(table, run.stacks(rank), rank) for _, table in run.scan_calls(rank)])
    rows = rows_of_checks(calls, bad)
    made = []
    for row, at in zip(bad.to_pylist(), rows.tolist()):
        call = calls.slice(at, 1).to_pylist()[0] if at >= 0 else None
        order = call["order"] if call is not None else row["call"] if row["call"] is not None else -1
        made.append(((row["step"], row["place"]), (row["step"], order), _origin(row, call, rank)))
    return made


def _origin(row: TableRow, call: TableRow | None, rank: int) -> Origin:
    told: dict[str, Any] = json.loads(row["pattern"]) if row["pattern"] else {}
    told = {key: _number(value) for key, value in told.items()}
    which = sentence(row["operator"], told, row["dtype"]) if told else "its own error is beyond what rounding explains"
    name = call["name"] if call is not None else f"Aten.{row['operator']}"
    phase: Any = call["phase"] if call is not None else "backward" if row["backward"] else "forward"
    source = None
    if call is not None and call["source_file"]:
        source = Source(
            call["source_file"], call["source_line"] or 0, call["source_function"] or "", call["source_code"] or ""
        )
    own = row["own_error"]
    kind: Any = _KINDS.get(call["kind"], "api") if call is not None else "aten"
    return Origin(
        call=name,
        kind=kind,
        phase=phase,
        step=row["step"],
        rank=rank,
        reason=f"{row['operator']} computes wrongly on {row['device']} in {row['dtype']}: {which}",
        module=call["module"] or "" if call is not None else "",
        source=source,
        mechanism="device",
        relative=own,
        expected=own * row["limit"] / row["units"] if own and np.isfinite(row["units"]) else None,
        details={
            "operator": row["operator"],
            "dtype": row["dtype"],
            "device": row["device"],
            "verified": row["verified"],
            "own_ulp": row["own_ulp"],
            "units": row["units"],
            "limit": row["limit"],
            "elements": row["elements"],
            "pattern": told,
        },
    )


def _number(value: Any) -> Any:
    """Return a number that JSON holds as a word."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def _accuracy(checks: pa.Table) -> tuple[Accuracy, ...]:
    known = checks.filter(pc.not_equal(checks["verified"], "none"))
    wrong = pc.greater(known["units"], known["limit"]).cast(pa.int64())
    known = known.append_column("wrong", wrong)
    groups = known.group_by(["operator", "dtype", "device"]).aggregate(
        [
            ("place", "count"),
            ("wrong", "sum"),
            ("own_error", "max"),
            ("own_ulp", "max"),
            ("units", "max"),
            ("limit", "max"),
        ]
    )
    rows = [
        Accuracy(
            row["operator"],
            row["dtype"],
            row["device"],
            row["place_count"],
            row["wrong_sum"],
            row["own_error_max"],
            row["own_ulp_max"],
            row["units_max"],
            row["limit_max"],
        )
        for row in groups.to_pylist()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.wrong, row.operator, row.dtype, row.device)))
