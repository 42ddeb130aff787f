"""Writes the pairs of `numscope weights` as CSV."""

from __future__ import annotations

import os

import pyarrow as pa

from numscope.report.csv import write_csv
from numscope.weights.pair import Weights

_COLUMNS = ("a", "b", "relation", "relative", "verdict", "fault", "reason", "repair")


def write_weights_csv(answer: Weights, path: str | os.PathLike[str]) -> None:
    """Write a row per pair; unknown values are empty."""
    rows = [pair.to_dict() for pair in answer.pairs]
    columns: dict[str, pa.Array] = {}
    for name in _COLUMNS:
        values = [" ".join(row[name]) if name in ("a", "b") else row[name] for row in rows]
        if name == "relative":
            columns[name] = pa.array([None if isinstance(v, str) else v for v in values], pa.float64())
        else:
            columns[name] = pa.array(values, pa.string())
    write_csv(pa.table(columns), path)
