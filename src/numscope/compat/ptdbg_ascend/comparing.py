"""`compare`: compares two dumps, operator by operator, and writes compare_result_{time}.csv."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numscope.compat.measures import Array, measure
from numscope.compat.ptdbg_ascend.names import unused
from numscope.compat.sequences import paired
from numscope.core.errors import SettingsError
from numscope.core.json_value import Json
from numscope.store.formats.ptdbg import Line, data_folder, is_json_lines, lines_of

COLUMNS = tuple(
    name.strip()
    for name in """
    NPU Name, Bench Name, NPU Tensor Dtype, Bench Tensor Dtype, NPU Tensor Shape, Bench Tensor Shape, Cosine, RMSE,
    MAPE, MaxAbsErr, MaxRelativeErr, NPU max, NPU min, NPU mean, Bench max, Bench min, Bench mean, Err_message
    """.split(",")
)
KEYS = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")


@dataclass(frozen=True)
class Operator:
    """The tensors of one call."""

    lines: tuple[Line, ...]

    def key(self, with_shapes: bool) -> tuple[object, ...]:
        """Return what pairs the operator with the same one of another dump: names without their leading number, shapes.

        Never dtypes: float16 on an NPU against float32 on a CPU is what these dumps are compared for most.
        """
        return tuple((line.text, line.shape) if with_shapes else line.text for line in self.lines)


def operators(path: Path) -> list[Operator]:
    """Return the operators of a dump, in order."""
    found: list[list[Line]] = []
    last: tuple[object, ...] = ()
    for line in lines_of(path):
        if line.role == "stack_info":
            continue
        call = (line.number, line.prefix, line.op, line.phase)
        if call != last:
            found.append([])
            last = call
        found[-1].append(line)
    return [Operator(tuple(lines)) for lines in found]


def compare(input_param: Mapping[str, str], output_dir: str, shape_flag: bool = True) -> None:
    """Compare two dumps and write compare_result_{time}.csv into a folder that is there."""
    _compare(input_param, Path(output_dir), shape_flag, "")


def _compare(parameters: Mapping[str, str], output: Path, shape_flag: bool, label: str) -> Path:
    for key in KEYS:
        if key not in parameters:
            raise SettingsError(f"compare: {key!r} is missing from the first argument; it needs {', '.join(KEYS)}")
        if not Path(parameters[key]).exists():
            raise SettingsError(f"compare: {key} is {parameters[key]}, which does not exist")
    if not output.is_dir():
        raise SettingsError(f"compare: the folder {output} does not exist: make it first")
    npu, bench = operators(Path(parameters["npu_pkl_path"])), operators(Path(parameters["bench_pkl_path"]))
    pairs = paired([one.key(shape_flag) for one in npu], [one.key(shape_flag) for one in bench])
    if not pairs:
        raise SettingsError("compare: the two dumps have no operator in common: were they made from the same model?")
    file = unused(output, f"compare_result_{label}{{}}.csv", "%Y%m%d%H%M%S")
    folders = Path(parameters["npu_dump_data_dir"]), Path(parameters["bench_dump_data_dir"])
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for a, b in pairs:
            for one, other in zip(npu[a].lines, bench[b].lines):
                writer.writerow(_row(one, other, *folders))
    print(f"compare: {len(pairs)} operators, {file}")
    return file


def _row(npu: Line, bench: Line, npu_folder: Path, bench_folder: Path) -> list[object]:
    a, b = _data(npu, npu_folder), _data(bench, bench_folder)
    numbers: list[float | None] = [None] * 5
    message = ""
    if a is None or b is None:
        missing = [line.name for line, data in ((npu, a), (bench, b)) if data is None]
        message = "no dumped data: " + " and ".join(missing)
    elif a.size != b.size:
        message = f"the number of elements differs: {a.size} against {b.size}"
    else:
        found = measure(a, b)
        numbers = [found.cosine, found.rmse, found.mape, found.max_abs_err, found.max_rel_err]
        if found.zeros:
            message = f"{found.zeros} zeros of the bench are left out of MAPE"
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            message = "; ".join(filter(None, [message, "not all elements are finite"]))
    sides = [npu.name, bench.name, npu.dtype, bench.dtype, list(npu.shape), list(bench.shape)]
    return [*sides, *numbers, *three_statistics(npu), *three_statistics(bench), message]


def three_statistics(line: Line) -> list[Json]:
    """Return max, min and mean of a line; None where it has none."""
    return [*line.statistics, None, None, None][:3]


def _data(line: Line, folder: Path) -> Array | None:
    file = folder / f"{line.name}.npy"
    return np.load(file) if file.is_file() else None


def compare_distributed(npu_dump_dir: str, bench_dump_dir: str, output_path: str, **options: object) -> None:
    """Compare the dumps of several ranks: folders rank0, rank1 … of two folders, each with a .pkl and its data."""
    npu_ranks, bench_ranks = _ranks(Path(npu_dump_dir)), _ranks(Path(bench_dump_dir))
    if not npu_ranks or npu_ranks.keys() != bench_ranks.keys():
        have = f"{sorted(npu_ranks)} and {sorted(bench_ranks)}"
        raise SettingsError(f"compare_distributed: the ranks of the two folders differ: {have}")
    for rank in sorted(npu_ranks):
        npu, bench = npu_ranks[rank], bench_ranks[rank]
        parameters = {
            "npu_pkl_path": str(npu.lines),
            "bench_pkl_path": str(bench.lines),
            "npu_dump_data_dir": str(npu.data),
            "bench_dump_data_dir": str(bench.data),
        }
        _compare(parameters, Path(output_path), bool(options.get("shape_flag", True)), f"rank{rank}-rank{rank}_")


class _RankDump(NamedTuple):
    """The dump of one rank."""

    lines: Path  # the .pkl file
    data: Path  # the folder of .npy files


def _ranks(folder: Path) -> dict[int, _RankDump]:
    if not folder.is_dir():
        raise SettingsError(f"compare_distributed: {folder} is not a folder")
    found: dict[int, _RankDump] = {}
    for entry in sorted(folder.iterdir()):
        match = re.fullmatch(r"rank_?(?P<rank>\d*)", entry.name)
        for file in sorted(entry.glob("*.pkl")) if match and entry.is_dir() else []:
            data = data_folder(file)
            if match and data is not None and is_json_lines(file):
                found[int(match["rank"] or 0)] = _RankDump(file, data)
    return found
