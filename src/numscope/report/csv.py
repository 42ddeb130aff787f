"""Writes the pairs as CSV: a row per pair of tensors; unknown values are empty."""

from __future__ import annotations

import os

import pyarrow as pa

from numscope.compare.parts.rows import Rows
from numscope.report.files import output


def write_csv(pairs: pa.Table | Rows, path: str | os.PathLike[str]) -> None:
    """Write the table of pairs."""
    import pyarrow.csv as arrow_csv

    with output(path) as file, arrow_csv.CSVWriter(str(file), pairs.schema) as writer:
        for part in pairs.batches() if isinstance(pairs, Rows) else [pairs]:
            writer.write_table(_without_formulas(part))


def _without_formulas(part: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return rows in which no text is a formula to a spreadsheet: a name of a stranger's may begin with = or @."""
    import pyarrow.compute as pc

    table = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(at, field, pc.replace_substring_regex(table.column(at), r"^([=+\-@\t\r])", r"'\1"))
    return table
