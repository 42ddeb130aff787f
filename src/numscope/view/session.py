"""The content of the pages: one comparison, or one run alone, as indexed tables.

The server and its tests use a `Session`, which hides where the tables came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from numscope.check import checking
from numscope.core.dtypes import AnyArray
from numscope.core.errors import NotKeptError, SettingsError
from numscope.core.json_value import JsonObject
from numscope.core.names import split_tensor
from numscope.core.report import plain
from numscope.report.pages import story, summary
from numscope.report.pages.run_index import RunIndex
from numscope.report.pages.tables import Filter, IndexedTable
from numscope.store.reader import Run
from numscope.store.schema import TableRow
from numscope.view import one_run, tensor, tree

if TYPE_CHECKING:
    from numscope.compare.comparison import Comparison


@dataclass
class Session:
    """An open comparison, or an open run where `comparing` is false."""

    calls: IndexedTable
    pairs: IndexedTable
    report: TableRow | None = None
    check: TableRow | None = None
    target: Run | None = None
    reference: Run | None = None
    comparing: bool = True
    comparison: Comparison | None = None  # can be diagnosed
    sides: dict[str, RunIndex] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, run in (("target", self.target), ("reference", self.reference)):
            if run is not None:
                self.sides[name] = RunIndex(run)
        self.forest = lru_cache(maxsize=8)(lambda step, rank: tree.forest(self.calls, step, rank))

    @classmethod
    def of_comparison(cls, comparison: Comparison) -> Session:
        """Return the session of a comparison."""
        session = cls.of_tables(
            comparison.calls,
            comparison.pairs,
            comparison.report.to_dict(),
            target=comparison.target,
            reference=comparison.reference,
        )
        session.comparison = comparison
        return session

    @classmethod
    def of_tables(
        cls,
        calls: pa.Table,
        pairs: pa.Table,
        report: TableRow,
        *,
        target: Run | None = None,
        reference: Run | None = None,
    ) -> Session:
        """Return the session of a comparison's tables; without the runs the pages lack stacks, arguments and data."""
        calls = summary.with_dtype(calls, pairs)
        return cls(IndexedTable(calls), IndexedTable(pairs), report, target=target, reference=reference)

    @classmethod
    def of_run(cls, run: Run) -> Session:
        """Return the session of one run alone."""
        result = checking.check(run)
        calls, tensors = one_run.tables(run, result)
        shape = one_run.check_summary(result, calls)
        return cls(IndexedTable(calls), IndexedTable(tensors), check=shape, target=run, comparing=False)

    @property
    def measure(self) -> story.Measure:
        """The columns that the story draws: errors of a comparison, magnitudes of a run."""
        return story.ERRORS if self.comparing else story.MAGNITUDES

    def table(self, name: str) -> IndexedTable:
        """Return the table of that name."""
        if name not in ("calls", "pairs"):
            raise SettingsError(f"no table {name!r}: calls or pairs")
        return self.calls if name == "calls" else self.pairs

    @cached_property
    def summary(self) -> JsonObject:
        """The content of the first page, and the choices of the filters."""
        described = summary.describe(
            self.calls,
            self.pairs,
            report=self.report,
            check=self.check,
            target=self.target,
            reference=self.reference,
            comparing=self.comparing,
        )
        row = described["origin_row"]
        return described | {"stack": [] if row is None else self.stack(row), "version": self.version()}

    def diagnose(self) -> JsonObject:
        """Replay the suspects, take the report of the diagnosis, and return the new summary."""
        if self.comparison is None:
            raise SettingsError("only a comparison of two runs can be diagnosed")
        from numscope.diagnose.diagnosis import diagnose

        self.report = diagnose(self.comparison).to_dict()
        self.__dict__.pop("summary", None)
        return self.summary

    def warm(self) -> None:
        """Sort by the columns that the pages show first, so that a table of a million rows answers at once."""
        for name in (self.measure.output, self.measure.input):
            self.calls.rows(Filter(), name, True)

    def heat(self) -> dict[str, object]:
        """Return worst verdict and largest error for every rank and step."""
        return summary.heat(self.calls, self.measure.output)

    def stack(self, row: int) -> list[TableRow]:
        """Return the frames of the call in that row, outermost first, the user's innermost one marked."""
        for record in self._records(self._cell(row)).values():
            if record and record["frames"]:
                return [{**frame, "user": i == record["user_frame"]} for i, frame in enumerate(record["frames"])]
        return []

    def _cell(self, row: int) -> TableRow:
        if not 0 <= row < len(self.calls):
            raise SettingsError(f"no call in row {row}: there are {len(self.calls)}")
        cell: TableRow = self.calls.table.slice(row, 1).to_pylist()[0]
        return cell

    def _records(self, cell: TableRow) -> dict[str, TableRow | None]:
        records: dict[str, TableRow | None] = {}
        for name, side in self.sides.items():
            order = cell.get(f"{name}_order")
            if order is not None and side.has(cell["step"], cell["rank"]):
                records[name] = side.call(cell["step"], cell["rank"], order)
        return records

    def call(self, row: int) -> TableRow:
        """Return the calls in a row, and their slots."""
        cell = self._cell(row)
        rows = self.pairs.rows(Filter(pair=(cell["pair"],)))
        slots = self.pairs.table.take(pa.array(rows)).to_pylist()
        for slot, number in zip(slots, rows.tolist()):
            slot["row"] = number
        return dict(plain({"row": row, "call": cell, "slots": slots, **self._records(cell)}))

    def data(self, row: int, slot: str) -> tuple[tensor.TensorPair, dict[str, str]]:
        """Return the data of a slot on both sides, and for each side without data the reason."""
        cell = self._cell(row)
        arrays: dict[str, AnyArray | None] = {"target": None, "reference": None}
        missing: dict[str, str] = {}
        sampled = False
        names = self._slot_names(cell["pair"], slot)
        for name, side in self.sides.items():
            order = cell.get(f"{name}_order")
            if order is None:
                missing[name] = "this run has no such call"
                continue
            try:
                slot_data = side.data(cell["step"], cell["rank"], order, names.get(name, slot))
                arrays[name], sampled = slot_data.array, sampled or slot_data.sampled
            except NotKeptError as error:
                missing[name] = str(error)
        return tensor.TensorPair(arrays["target"], arrays["reference"], sampled), missing

    def _slot_names(self, pair: int, slot: str) -> dict[str, str]:
        """Return a slot's own name on each side: the two may differ where calls were paired by value."""
        for row in self.pairs.table.take(pa.array(self.pairs.rows(Filter(pair=(pair,))))).to_pylist():
            if row["slot"] == slot:
                names: dict[str, str] = {}
                for side in ("target", "reference"):
                    if parts := split_tensor(row.get(f"{side}_name") or ""):
                        _, names[side] = parts
                return names
        return {}

    def group(self, step: int, rank: int, name: str, phase: str) -> dict[str, object]:
        """Return one group of the call tree."""
        sides = [tree.SideOfStep(side, run, step, rank) for side, run in self.sides.items()]
        return tree.group(self.calls, self.forest(step, rank), name, phase, sides)

    def path(self, row: int) -> dict[str, object]:
        """Return the place of a row in the call tree."""
        cell = self._cell(row)
        phase = "forward" if cell["phase"] == "input" else cell["phase"]
        groups = tree.path(self.forest(cell["step"], cell["rank"]), row)
        return {"step": cell["step"], "rank": cell["rank"], "phase": phase, "groups": groups}

    def version(self) -> str:
        """Return a text that changes when a run has new steps."""
        return ";".join(one_run.version(run) for run in (self.target, self.reference) if run is not None)
