"""A recorded call as the search for its cause needs it: arguments, stack, and the modules it runs in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.cause.sources import Place, ProgramSources
from numscope.core.names import parse_call
from numscope.store.reader import Run
from numscope.store.schema import TableRow


@dataclass(frozen=True)
class Frame:
    """A frame of the user's own code or of a library."""

    place: Place
    function: str
    code: str


@dataclass(frozen=True)
class RecordedCall:
    """A call of one run."""

    name: str
    arguments: str | None
    frames: tuple[Frame, ...]  # outermost first; those whose source was recorded
    modules: tuple[str, ...]  # paths of the modules that it runs in, innermost first

    @property
    def operator(self) -> str:
        """The operator's name without its prefix, number and phase."""
        parsed = parse_call(self.name)
        return parsed.op if parsed is not None and not parsed.path else ""


class RecordedRun:
    """One rank of a run, looked up call by call."""

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._rank = run, rank
        self._steps: dict[int, pa.Table] = {}

    @cached_property
    def sources(self) -> ProgramSources:
        return ProgramSources.of(self._run, self._rank)

    def call(self, step: int, order: object) -> RecordedCall | None:
        """Return the call of an order in a step, None for none."""
        if not isinstance(order, int):
            return None
        row = self._row(step, order)
        if row is None:
            return None
        where = row
        if row["stack"] is None and row["forward"] is not None:  # the autograd engine has no stack: the forward call's
            where = self._row(step, row["forward"]) or row
        return RecordedCall(
            row["name"], row["arguments"], self._frames.get(where["stack"], ()), self._modules(step, where)
        )

    def named(self, step: int, name: object) -> RecordedCall | None:
        """Return the call of a name in a step, None for none."""
        table = self._table(step)
        found = table.filter(pc.equal(table["name"], name)) if isinstance(name, str) else table.slice(0, 0)
        return self.call(step, found["order"][0].as_py()) if found.num_rows else None

    def ran(self, place: Place) -> bool:
        """Return whether a recorded call came from a line."""
        return place in self._places

    def maker(self, step: int, order: object, slot: object) -> RecordedCall | None:
        """Return the last call, before a call of an order, that made the bits in one of that call's slots."""
        if not isinstance(order, int):
            return None
        tables = self._run.step_tables(step, self._rank)
        slots, tensors = tables.slots, tables.tensors
        held = slots.filter(pc.and_(pc.equal(slots["call"], order), pc.equal(slots["slot"], slot)))["tensor"]
        one = tensors.filter(pc.is_in(tensors["tensor"], held.combine_chunks()))["hash"].drop_null()
        if not len(one):
            return None
        same = tensors.filter(pc.equal(tensors["hash"], one[0]))["tensor"].combine_chunks()
        made = slots.filter(pc.and_(pc.is_in(slots["tensor"], same), pc.starts_with(slots["slot"], "output")))
        before = [number for number in made["call"].to_pylist() if number < order]
        return self.call(step, max(before)) if before else None

    def _row(self, step: int, order: int) -> TableRow | None:
        table = self._table(step)
        found = table.filter(pc.equal(table["order"], order)).slice(0, 1).to_pylist()
        return found[0] if found else None

    def _table(self, step: int) -> pa.Table:
        if step not in self._steps:
            calls = self._run.step_tables(step, self._rank).calls
            names = ["order", "name", "arguments", "stack", "forward", "parent", "kind", "module"]
            self._steps[step] = calls.select(names)
        return self._steps[step]

    def _modules(self, step: int, row: TableRow) -> tuple[str, ...]:
        """Return the paths of the modules around a call; a module call's line stands in the module around it."""
        path = row["module"]
        if not isinstance(path, str):
            return ("",)
        parts = path.split(".") if path else []
        paths = [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
        known = [
            one for one in paths if self.sources.class_of(one) not in ("", "ModuleList", "ModuleDict", "Sequential")
        ]
        own = row["kind"] == "module" and known[:1] == [path]
        return tuple(known[1:] if own else known) or ("",)

    @cached_property
    def _places(self) -> set[Place]:
        return {frame.place for frames in self._frames.values() for frame in frames}

    @cached_property
    def _frames(self) -> dict[object, tuple[Frame, ...]]:
        table = self._run.stacks(self._rank)
        files = {one.file for one in self.sources.definitions}
        return {
            number: tuple(
                Frame(Place(one["file"], one["line"] or 0), one["function"] or "", one["code"] or "")
                for one in frames or ()
                if one["file"] in files
            )
            for number, frames in zip(table["stack"].to_pylist(), table["frames"].to_pylist(), strict=True)
        }
