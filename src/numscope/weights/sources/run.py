"""Reads the parameters of a numscope run: their elements where they were kept, else their fingerprints."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.store.reader import Run, open_run
from numscope.store.schema import TableRow
from numscope.weights.sources.files import rows_of
from numscope.weights.summary import Summary
from numscope.weights.tensor import Read, Tensor

_COLUMNS = (
    "step rank name dtype shape nan posinf neginf zero min max mean l2 hash sketch shard key sampled placement".split()
)
_SLOT = ".parameters."


def read(source: str | os.PathLike[str] | Run) -> Iterator[Tensor]:
    """Yield the parameters of the first step that has them, named as the model names them."""
    run = source if isinstance(source, Run) else open_run(source)
    table = run.tensors
    columns = [name for name in _COLUMNS if name in table.column_names]
    chosen = table.select(columns).filter(pc.match_substring(table["name"], _SLOT))
    found: dict[str, TableRow] = {}
    for row in sorted(chosen.to_pylist(), key=lambda row: (row["step"], row["rank"])):
        if row["hash"] is not None:
            found.setdefault(_parameter(row["name"]), row)
    if not found:
        raise RunError(
            f"{run.path} has no fingerprints of parameters: capture it with parameters=True and keep='stats'"
        )
    for name, row in found.items():
        yield _tensor(run, name, row)


def _parameter(name: str) -> str:
    """Return the model's name of a parameter: `blocks.0.mlp.weight` of `Module.blocks.0.mlp.Linear.forward.0.…weight`."""
    call, _, slot = name.partition(_SLOT)
    parts = call.removeprefix("Module.").split(".")
    path = ".".join(parts[:-3]) if len(parts) > 3 else ""
    return f"{path}.{slot}" if path else slot


def _tensor(run: Run, name: str, row: TableRow) -> Tensor:
    shape = tuple(row["shape"])
    sketch = np.asarray(row["sketch"], np.float64) if row.get("sketch") is not None else None
    low, high, mean, l2 = (
        float("nan") if row[key] is None else float(row[key]) for key in ("min", "max", "mean", "l2")
    )
    non_finite = (row["nan"] or 0) + (row["posinf"] or 0) + (row["neginf"] or 0)
    summary = Summary(int(row["hash"]), low, high, mean, l2, row["zero"] or 0, non_finite, sketch)
    read = _kept(run, row, shape) if row.get("shard") is not None and not row.get("sampled") else None
    return Tensor(name, row["dtype"], shape, read, summary=summary)


def _kept(run: Run, row: TableRow, shape: tuple[int, ...]) -> Read:
    def read(start: int, stop: int) -> AnyArray:
        return rows_of(run.array(row["rank"], row["shard"], row["key"], row["dtype"], shape))(start, stop)

    return read
