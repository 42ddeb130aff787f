"""Reads the parameters of a numscope run: their elements where they were kept, else their fingerprints."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.store.joins import joined_tensors
from numscope.store.reader import Run, open_run
from numscope.store.schema import TableRow
from numscope.weights.sources.files import rows_of
from numscope.weights.tensor import Read, Summary, Tensor

_SLOT = ".parameters."


def read(source: str | os.PathLike[str] | Run) -> Iterator[Tensor]:
    """Yield the parameters that each rank has first, named as the model names them."""
    run = source if isinstance(source, Run) else open_run(source)
    found: dict[str, Tensor] = {}
    for rank in run.ranks:
        for step in run.written_steps(rank):
            rows = _rows(run, step, rank)
            for row in rows:
                tensor = _tensor(run, row)
                found.setdefault(tensor.name, tensor)
            if rows:
                break
    if not found:
        raise RunError(
            f"{run.path} has no fingerprints of parameters: capture it with parameters=True and keep='stats'"
        )
    yield from found.values()


def _rows(run: Run, step: int, rank: int) -> list[TableRow]:
    tables = run.step_tables(step, rank)
    chosen = tables.slots.filter(pc.starts_with(tables.slots["slot"], _SLOT[1:]))
    joined = joined_tensors(tables.calls, chosen, tables.tensors, rank)
    modules = joined.filter(pc.and_(pc.starts_with(joined["name"], "Module."), pc.is_valid(joined["hash"])))
    return list(modules.to_pylist())


def _parameter(name: str) -> str:
    """Return the model's name of a parameter: `blocks.0.mlp.weight` of `Module.blocks.0.mlp.Linear.forward.0.…weight`."""
    call, _, slot = name.partition(_SLOT)
    parts = call.removeprefix("Module.").split(".")
    path = ".".join(parts[:-3]) if len(parts) > 3 else ""
    return f"{path}.{slot}" if path else slot


def _tensor(run: Run, row: TableRow) -> Tensor:
    shape = tuple(row["shape"])
    name = _parameter(row["name"])
    if row.get("placement") and "Shard" in row["placement"]:
        name = f"rank{row['rank']}:{name}"
    sketch = np.asarray(row["sketch"], np.float64) if row.get("sketch") is not None else None
    low, high, mean, l2 = (
        float("nan") if row[key] is None else float(row[key]) for key in ("min", "max", "mean", "l2")
    )
    non_finite = (row["nan"] or 0) + (row["posinf"] or 0) + (row["neginf"] or 0)
    summary = Summary(int(row["hash"]), low, high, mean, l2, row["zero"] or 0, non_finite, sketch)
    read = _kept(run, row) if row.get("kept") else None
    return Tensor(name, row["dtype"], shape, read, summary=summary)


def _kept(run: Run, row: TableRow) -> Read:
    def read(start: int, stop: int) -> AnyArray:
        return rows_of(run.tensor(row["name"], row["step"], row["rank"]))(start, stop)

    return read
