"""Reads a run: `open_run(path)` reads the manifest and the list of steps; tables and tensors are read when asked for.

run = ns.open_run("runs/gpu")
run.calls.select(["name", "source_file", "source_line"])
run.tensor("Functional.linear.5.forward.output.0")
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.core.dtypes import AnyArray
from numscope.core.errors import NotKeptError, RunError
from numscope.core.job_files.layout import Placed
from numscope.core.names import parse_call
from numscope.core.untrusted import check_folder
from numscope.store.joins import joined_calls, joined_tensors
from numscope.store.remote.copies import fetch_shard, is_copy, is_url, local_copy
from numscope.store.rundir import documents_of, rank_directories, read_document, read_manifest, read_rank
from numscope.store.schema import TABLES, TableRow
from numscope.store.shards import Shard, entry_of
from numscope.store.tables import RankTables, StepLine
from numscope.store.whole import Piece, declares_parts, of_parameter, read_layout, whole


@dataclass(frozen=True)
class StepTables:
    """The tables of one step of one rank, as they are on disk."""

    calls: pa.Table
    slots: pa.Table
    tensors: pa.Table


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run; one that is still being written shows the steps that are complete now. It may be a URL: s3://…"""
    return Run(local_copy(path) if isinstance(path, str) and is_url(path) else Path(path))


class Run:
    """One captured job: all its ranks and steps.

    `steps` are the complete ones. Where a job was killed inside a step, `incomplete` names it, and what was written of
    it is in `calls`, `tensors` and `step_tables` too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        for folder in (path, *rank_directories(path).values()):
            check_folder(folder, path)
        replaced = self.manifest.get("replaces")
        ids = {str(self.manifest.get("id")), *map(str, replaced if isinstance(replaced, list) else ())}
        checked = ids if self.manifest.get("checksums") is True else None
        self._ranks = {rank: RankTables(directory, checked) for rank, directory in rank_directories(path).items()}
        self._shards: dict[tuple[int, str], Shard] = {}
        self._unfinished: dict[int, list[int]] = {}
        self._layouts: dict[int, dict[str, Placed]] = {}

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}: {len(self.steps)} steps, {len(self.ranks)} ranks>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        from numscope.core.notebook import facts_html

        names = ("created", "framework", "framework_version", "devices", "script", "settings")
        facts = [("steps", _few(self.steps)), ("ranks", _few(self.ranks)), ("not complete", self.incomplete)]
        return facts_html(f"run {self.path}", [*facts, *((name, self.manifest.get(name)) for name in names)])

    @property
    def ranks(self) -> list[int]:
        """The ranks that wrote to this run."""
        return list(self._ranks)

    @cached_property
    def steps(self) -> list[int]:
        """The steps that at least one rank completed."""
        return sorted({line.step for tables in self._ranks.values() for line in tables.lines})

    @cached_property
    def incomplete(self) -> list[tuple[int, int]]:
        """(rank, step) of the steps whose writing was cut off, or is still going on."""
        return [(rank, step) for rank in self._ranks for step in self.unfinished(rank)]

    def unfinished(self, rank: int) -> list[int]:
        """Return the steps of a rank whose writing was cut off, or is still going on."""
        if rank not in self._unfinished:
            tables = self._rank(rank)
            # A step of which no call has been written yet has nothing that could be read.
            self._unfinished[rank] = sorted(_unique(tables.tail("calls")["step"]))
            if len(self._ranks) > 1:
                tables.close()
        return self._unfinished[rank]

    def forget(self, rank: int) -> None:
        """Close the files of a rank, if it has one of that number: they are opened again when they are asked for."""
        if rank in self._ranks:
            self._ranks[rank].close()
        for key in [key for key in self._shards if key[0] == rank]:
            del self._shards[key]

    @cached_property
    def calls(self) -> pa.Table:
        """A row per call, with the innermost frame of the user's own code."""
        parts = []
        for rank, tables in self._ranks.items():
            stacks, checks = self.stacks(rank), self.checks(rank)
            parts += [joined_calls(tables.segment(n, "calls"), stacks, rank, checks) for n in tables.segments()]
        if not parts:
            parts = [joined_calls(TABLES["calls"].empty_table(), TABLES["stacks"].empty_table(), 0)]
        return pa.concat_tables(parts)

    @cached_property
    def tensors(self) -> pa.Table:
        """A row per slot, with its call's name and its tensor's fingerprint."""
        parts = [
            joined_tensors(tables.group(n, "calls"), tables.group(n, "slots"), tables.group(n, "tensors"), rank)
            for rank, tables in self._ranks.items()
            for n in tables.groups()
        ]
        if not parts:
            calls, slots, tensors = (TABLES[table].empty_table() for table in ("calls", "slots", "tensors"))
            parts = [joined_tensors(calls, slots, tensors, 0)]
        return pa.concat_tables(parts)

    def scan(self, table: str, columns: list[str], rank: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Yield (rank, rows) of a table on disk, only these columns, rank by rank and segment by segment."""
        for number in self.ranks if rank is None else [rank]:
            tables = self._rank(number)
            for n in tables.segments():
                yield number, tables.segment(n, table, columns)

    def rank_steps(self, rank: int) -> list[int]:
        """Return the steps that this rank completed."""
        return sorted({line.step for line in self._rank(rank).lines})

    def written_steps(self, rank: int) -> list[int]:
        """Return the steps that this rank began to write, those that were cut off included."""
        return sorted({*self.rank_steps(rank), *self.unfinished(rank)})

    def step_tables(self, step: int, rank: int, columns: Mapping[str, list[str]] | None = None) -> StepTables:
        """Return the tables of one step of one rank as they are on disk; of the named tables these columns only."""
        tables, chosen = self._rank(rank), columns or {}
        content = StepTables(*(tables.step(step, name, chosen.get(name)) for name in ("calls", "slots", "tensors")))
        if not content.calls.num_rows and step not in self.rank_steps(rank):
            raise RunError(f"{self.path} has no step {step} in rank {rank}: it has {_few(self.rank_steps(rank))}")
        return content

    def stacks(self, rank: int) -> pa.Table:
        """Return the stacks of a rank."""
        tables = self._rank(rank)
        parts = [tables.segment(n, "stacks") for n in tables.segments()]
        return pa.concat_tables(parts) if parts else TABLES["stacks"].empty_table()

    def scan_calls(self, rank: int) -> Iterator[tuple[int, pa.Table]]:
        """Yield (segment, rows) of the calls of a rank."""
        tables = self._rank(rank)
        for n in tables.segments():
            yield n, tables.segment(n, "calls")

    def checks(self, rank: int, step: int | None = None) -> pa.Table:
        """Return the operators of a rank that were held against exact arithmetic; none where nothing was verified."""
        tables = self._rank(rank)
        if step is not None:
            return tables.step(step, "checks")
        parts = [tables.segment(n, "checks") for n in tables.segments()]
        return pa.concat_tables(parts) if parts else TABLES["checks"].empty_table()

    def skipped(self, step: int | None = None, rank: int | None = None) -> dict[str, int]:
        """Return how many calls were not recorded, by reason."""
        total: dict[str, int] = {}
        for line in self._lines(step, rank):
            for reason, count in line.skipped.items():
                total[reason] = total.get(reason, 0) + count
        return total

    def faults(self, step: int | None = None, rank: int | None = None) -> int:
        """Return how many calls were not recorded, or not wholly, by a fault of numscope's own."""
        return sum(line.faults for line in self._lines(step, rank))

    def _lines(self, step: int | None, rank: int | None) -> Iterator[StepLine]:
        """Give the lines of a step, of a rank, or of all."""
        for tables in self._ranks.values() if rank is None else [self._rank(rank)] if rank in self._ranks else []:
            yield from (line for line in tables.lines if step in (None, line.step))

    def ends(self) -> dict[int, str]:
        """Return how each rank ended: "closed", the class of the exception that ended it, or "" where it was cut off.

        A rank that is still running is "" as well. Imported runs and those of 0.1.0 do not say: they have no rank here.
        """
        if self.manifest.get("ends") is not True:
            return {}
        return {rank: str(read_rank(tables.directory).get("end", "")) for rank, tables in self._ranks.items()}

    def damaged(self, rank: int) -> list[str]:
        """Return what is wrong with files of a rank beside its tables: a sentence each.

        Kept tensors are not read: that their bytes are what was stored is verified when they are.
        """
        directory = self._rank(rank).directory
        named = {
            name for _, rows in self.scan("tensors", ["shard"], rank) for name in pc.unique(rows["shard"]).to_pylist()
        }
        shards = [directory / name for name in sorted(named - {None}) if Path(name).name == name]
        checks: list[Callable[[], object]] = [
            partial(read_document, directory, name) for name in documents_of(directory)
        ]
        checks += [partial(_check_shard, path) for path in shards if path.exists() or not is_copy(self.path)]
        return [sentence for check in checks if (sentence := _wrong(check))]

    def step_seconds(self, step: int, rank: int) -> float | None:
        """Return how long a complete step took in the job, capture included."""
        lines = [line for line in self._rank(rank).lines if line.step == step]
        return sum(line.seconds for line in lines) if lines else None

    def array(self, rank: int, shard: str, key: str, dtype: str, shape: tuple[int, ...] | None) -> AnyArray:
        """Return the data that a row of the tensors table names: read-only, a view of the file where alignment allows."""
        opened = self._shards.get((rank, shard))
        if opened is not None and entry_of(key) not in opened.entries:
            opened = None  # the shard has grown since
        if opened is None:
            if Path(shard).name != shard:
                raise RunError(
                    f"{self.path} is damaged (its tables name a shard {shard!r}): read only runs that you trust"
                )
            file = self._rank(rank).directory / shard
            fetch_shard(self.path, file)
            opened = self._shards[rank, shard] = Shard(file, self.manifest.get("checksums") is True)
        return opened.array(key, dtype, shape)

    def tensor(self, name: str, step: int | None = None, rank: int | None = None) -> AnyArray:
        """Return a kept tensor by its name, by default of the first step that has it.

        With a rank, what that rank holds. Without one the whole tensor, where it is declared how the ranks' pieces lie in
        it (a DTensor, Megatron's marks, FullyShardedDataParallel); else what the first rank holds that has it.
        """
        return self._data(name, step, rank, sampled=False)

    def sample(self, name: str, step: int | None = None, rank: int | None = None) -> AnyArray:
        """Return the kept sample of a tensor as a vector."""
        return self._data(name, step, rank, sampled=True)

    def _data(self, name: str, step: int | None, rank: int | None, sampled: bool) -> AnyArray:
        others = ""
        seen: tuple[str, str] | None = None
        for number in self.ranks if rank is None else [rank]:
            for at in self.written_steps(number) if step is None else [step]:
                for call, row in self._rows(name, at, number):
                    seen = seen or (call, f"step {at}, rank {number}")
                    if row.get("shard") is not None and bool(row["sampled"]) == sampled:
                        if sampled:
                            return self.array(number, row["shard"], row["key"], row["dtype"], None)
                        if rank is None and (whole := self._whole(name, call, at, number, row)) is not None:
                            return whole
                        return self.array(number, row["shard"], row["key"], row["dtype"], tuple(row["shape"]))
                    if row.get("shard") is not None:
                        others = "run.tensor() gives the whole" if sampled else "run.sample() gives the sample"
        if seen is None:
            raise RunError(self._unknown(name, step, rank))
        what = "a sample of it" if sampled else "its data"
        if others:
            raise NotKeptError(f"{name}: {what} was not kept, but {others}")
        raise NotKeptError(
            f"{name} has a fingerprint, but {what} was not kept: "
            f"capture again with {'keep=' + repr('sample') if sampled else f'tensors=[{_pattern(seen[0])!r}]'}"
        )

    def _whole(self, name: str, call: str, step: int, rank: int, row: TableRow) -> AnyArray | None:
        """Return the tensor that the pieces of all ranks make; None where none is declared to be a piece."""
        slot = name[len(call) + 1 :]
        placement = self._placement(call, slot, step, rank, row)
        if not declares_parts(placement, of_parameter(call, slot, self._layout(rank))):
            return None
        pieces = []
        for number in self.ranks:
            for _, one in self._rows(name, step, number) if step in self.written_steps(number) else ():
                if one.get("shard") is not None and not one["sampled"]:
                    array = self.array(number, one["shard"], one["key"], one["dtype"], tuple(one["shape"]))
                    placed = of_parameter(call, slot, self._layout(number))
                    pieces.append(Piece(number, array, self._placement(call, slot, step, number, one), placed))
                    break
        found = whole(pieces)
        if found is None:
            raise NotKeptError(
                f"{name} is cut over the ranks, and not all of its pieces were kept: rank={rank} gives the one of rank {rank}"
            )
        return found

    def _placement(self, call: str, slot: str, step: int, rank: int, row: TableRow) -> str:
        """Return what a DTensor declared; a gradient that was seen before as a plain tensor lies as its parameter does."""
        head, _, label = slot.partition(".")
        if row["placement"] or head != "parameters_grad":
            return row["placement"] or ""
        return next(
            (one["placement"] or "" for _, one in self._rows(f"{call}.parameters.{label}", step, rank) if one), ""
        )

    def _layout(self, rank: int) -> dict[str, Placed]:
        if rank not in self._layouts:
            self._layouts[rank] = read_layout(self._rank(rank).directory)
        return self._layouts[rank]

    def _rows(self, name: str, step: int, rank: int) -> list[tuple[str, TableRow]]:
        """Return (call, row of the tensors table) of each slot of that name; the row of an unmeasured one is empty."""
        tables = self.step_tables(step, rank)
        narrow = tables.tensors.select(["dtype", "shape", "shard", "key", "sampled", "placement"])
        cuts = [i for i, letter in enumerate(name) if letter == "."]
        heads = pa.array([name[:i] for i in cuts], pa.string())
        rows: list[tuple[str, TableRow]] = []
        for row in np.flatnonzero(pc.is_in(tables.calls["name"], heads).to_numpy()):
            call, order = tables.calls["name"][row].as_py(), tables.calls["order"][row].as_py()
            match = pc.and_(
                pc.equal(tables.slots["call"], order), pc.equal(tables.slots["slot"], name[len(call) + 1 :])
            )
            for number in tables.slots["tensor"].filter(match).to_pylist():
                at = pc.index(tables.tensors["tensor"], number).as_py() if number is not None else -1
                rows.append((call, narrow.slice(at, 1).to_pylist()[0] if at >= 0 else {}))
        return rows

    def _unknown(self, name: str, step: int | None, rank: int | None) -> str:
        names = self.tensors["name"].unique().drop_null().to_pylist()
        where = (f" in step {step}" if step is not None else "") + (f" of rank {rank}" if rank is not None else "")
        if name in names:
            return f"{self.path} has no tensor {name}{where}; other steps or ranks have it"
        near = difflib.get_close_matches(name, names[:50_000], n=3, cutoff=0.6)
        cure = f"nearest: {', '.join(near)}" if near else "run.tensors['name'] lists them"
        return f"{self.path} has no tensor {name}{where} ({cure})"

    def _rank(self, rank: int) -> RankTables:
        if rank not in self._ranks:
            raise RunError(f"{self.path} has no rank {rank}: it has {_few(self.ranks)}")
        return self._ranks[rank]


def _unique(column: pa.ChunkedArray) -> list[int]:
    return [value for value in pc.unique(column).to_pylist() if value is not None]


def _few(numbers: list[int]) -> str:
    if not numbers:
        return "none"
    return ", ".join(map(str, numbers)) if len(numbers) <= 6 else f"{numbers[0]} to {numbers[-1]}"


def _pattern(call: str) -> str:
    """Return the `tensors=` pattern that keeps the tensors of a call and of its backward."""
    name = parse_call(call)
    if name is None:
        return f"{call}*"
    if name.prefix in ("Module", "Optimizer"):
        return f"{name.prefix}.{name.path + '.' if name.path else ''}{name.op}*"
    return f"{name.prefix}.{name.op}.{name.index}*"


def _check_shard(path: Path) -> None:
    Shard(path).check_end()


def _wrong(check: Callable[[], object]) -> str:
    try:
        check()
    except RunError as error:
        return str(error)
    return ""
