"""The table of accuracy of samples: the error of each operator in units of its rule's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.compare.judge.rounding.accuracy import Row
from numscope.diagnose.accuracy.measured import rows_of

Columns = Mapping[str, NDArray[Any]]


def read(*folders: Path) -> Columns:
    """Return the samples of recorded folders."""
    parts = [dict(np.load(path)) for folder in folders for path in sorted(folder.glob("samples-*.npz"))]
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in shared}


def rows(*folders: Path) -> Iterator[Row]:
    """Yield the rows of recorded folders; TF32 is a setting of its own, and no rounding of float32."""
    columns = read(*folders)
    return rows_of({name: column[columns["way"] != "tf32"] for name, column in columns.items()})
