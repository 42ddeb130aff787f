"""The pairs as Parquet, with the report's JSON in the file's metadata."""

from __future__ import annotations

import json
import os

import pyarrow as pa

from numscope.core.report import Report
from numscope.report.files import check_output


def write_parquet(pairs: pa.Table, report: Report, path: str | os.PathLike[str]) -> None:
    """Write the table of pairs; `numscope.report` in the schema's metadata is the report."""
    import pyarrow.parquet as arrow_parquet

    text = json.dumps(report.to_dict(), ensure_ascii=False)
    table = pairs.replace_schema_metadata({"numscope.report": text})
    arrow_parquet.write_table(table, str(check_output(path)), compression="zstd")
