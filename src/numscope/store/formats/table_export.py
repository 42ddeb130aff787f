"""Writes a run's two tables, calls and tensors, as CSV and as Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from numscope.store.reader import Run


def export_csv(run: Run, destination: Path) -> int:
    """Write calls.csv and tensors.csv; a destination that ends in .csv gets the tensors alone."""
    tensors = run.tensors.drop_columns(["sketch"])
    shape = pa.array(
        [None if value is None else json.dumps(value) for value in tensors["shape"].to_pylist()], pa.string()
    )
    tensors = tensors.set_column(tensors.schema.get_field_index("shape"), "shape", shape)
    digest = pa.array(
        [None if value is None else f"{value:016x}" for value in tensors["hash"].to_pylist()], pa.string()
    )
    tensors = tensors.set_column(tensors.schema.get_field_index("hash"), "hash", digest)
    return _tables({"calls": run.calls, "tensors": tensors}, destination, ".csv", pyarrow.csv.write_csv)


def export_parquet(run: Run, destination: Path) -> int:
    """Write calls.parquet and tensors.parquet, sketches included."""
    return _tables({"calls": run.calls, "tensors": run.tensors}, destination, ".parquet", pyarrow.parquet.write_table)


def _tables(
    tables: dict[str, pa.Table], destination: Path, suffix: str, write: Callable[[pa.Table, Path], object]
) -> int:
    if destination.suffix == suffix:
        destination.parent.mkdir(parents=True, exist_ok=True)
        write(tables["tensors"], destination)
        return 1
    destination.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write(table, destination / f"{name}{suffix}")
    return len(tables)
