"""The pairs as CSV: a row per pair of tensors; what cannot be known is empty."""

from __future__ import annotations

import os

import pyarrow as pa

from numscope.report.files import check_output


def write_csv(pairs: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write the table of pairs."""
    import pyarrow.csv as arrow_csv

    arrow_csv.write_csv(pairs, str(check_output(path)))
