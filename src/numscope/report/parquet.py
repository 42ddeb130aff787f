"""Writes the pairs as Parquet, with the report's JSON in the file's metadata."""

from __future__ import annotations

import json
import os

import pyarrow as pa

from numscope.compare.parts.rows import Rows
from numscope.core.report import Report
from numscope.report.files import output


def write_parquet(pairs: pa.Table | Rows, report: Report, path: str | os.PathLike[str]) -> None:
    """Write the table of pairs; `numscope.report` in the schema's metadata is the report."""
    import pyarrow.parquet as arrow_parquet

    text = json.dumps(report.to_dict(), ensure_ascii=False)
    schema = pairs.schema.with_metadata({"numscope.report": text})
    with output(path) as file, arrow_parquet.ParquetWriter(str(file), schema, compression="zstd") as writer:
        for part in pairs.batches() if isinstance(pairs, Rows) else [pairs]:
            writer.write_table(part.cast(schema))
