"""Writes the pairs as CSV: a row per pair of tensors; unknown values are empty."""

from __future__ import annotations

import os

import pyarrow as pa

from numscope.compare.spool import Rows
from numscope.report.files import output


def write_csv(pairs: pa.Table | Rows, path: str | os.PathLike[str]) -> None:
    """Write the table of pairs."""
    import pyarrow.csv as arrow_csv

    with output(path) as file, arrow_csv.CSVWriter(str(file), pairs.schema) as writer:
        for part in pairs.batches() if isinstance(pairs, Rows) else [pairs]:
            writer.write_table(part)
