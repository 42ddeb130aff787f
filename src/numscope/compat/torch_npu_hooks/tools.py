"""`compare`: compares two dumps, operator by operator, and writes a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from numscope.compat.measures import measure
from numscope.compat.sequences import paired
from numscope.compat.torch_npu_hooks.hooks import flush
from numscope.core.errors import SettingsError
from numscope.store.formats.ptdbg import Line, lines_of

COLUMNS = tuple(
    name.strip()
    for name in """
    NPU Name, Bench Name, NPU Tensor Dtype, Bench Tensor Dtype, NPU Tensor Shape, Bench Tensor Shape, Cosine, RMSE,
    MAPE
    """.split(",")
)

__all__ = ["compare"]


def compare(pkl_path1: str, pkl_path2: str, output_path: str, shape_flag: bool = False) -> None:
    """Compare a dump with its reference; with shape_flag, only operators of equal shapes are paired."""
    flush()
    for path in (pkl_path1, pkl_path2):
        if not Path(path).is_file():
            raise SettingsError(f"compare: {path} does not exist: give the file that set_dump_path named")
    output = Path(output_path)
    if not output.parent.is_dir():
        raise SettingsError(f"compare: the folder {output.parent} does not exist: make it first")
    target, reference = _operators(Path(pkl_path1)), _operators(Path(pkl_path2))
    pairs = paired([_key(one, shape_flag) for one in target], [_key(one, shape_flag) for one in reference])
    if not pairs:
        raise SettingsError("compare: the two dumps have no operator in common: were they made from the same model?")
    with output.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for a, b in pairs:
            for one, other in zip(target[a], reference[b]):
                writer.writerow(_row(one, other))


def _operators(path: Path) -> list[list[Line]]:
    """Return the tensors of each call: the number counts tensors, so a new call begins where the name or role says so."""
    found: list[list[Line]] = []
    for line in lines_of(path):
        last = found[-1][-1] if found else None
        same = last is not None and (last.prefix, last.op, last.phase) == (line.prefix, line.op, line.phase)
        if not same or (last is not None and last.role == "output" and line.role == "input"):
            found.append([])
        found[-1].append(line)
    return found


def _key(lines: list[Line], with_shapes: bool) -> tuple[object, ...]:
    return tuple((line.text, line.shape) if with_shapes else line.text for line in lines)


def _row(npu: Line, bench: Line) -> list[object]:
    a, b = (np.array(line.values, np.float64).reshape(-1) for line in (npu, bench))
    numbers: list[float | None] = [None] * 3
    if a.size == b.size:
        found = measure(a, b)
        numbers = [found.cosine, found.rmse, found.mape]
    return [npu.name, bench.name, npu.dtype, bench.dtype, list(npu.shape), list(bench.shape), *numbers]
