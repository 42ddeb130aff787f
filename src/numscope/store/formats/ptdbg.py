"""Reads the dumps of ptdbg_ascend and torch_npu.hooks: ".pkl" files of JSON lines, and ptdbg's folders of .npy files.

    ptdbg       ["21_Torch_norm_forward_input.0", 1, [], "torch.float32", [2, 3], [max, min, mean]]
                ["21_Torch_norm_forward_stack_info", [[file, line, function, code], …]]
    torch_npu   ["21_Torch_norm_forward_input", [values …], "torch.float32", [2, 3]]

Their backward `input` is the gradient that goes out (torch's grad_input) and `output` the one that comes in; in a run, they
are the other way round. The number in front counts calls (ptdbg) or tensors (torch_npu) over all operators; a run counts per
operator, and pairs a backward call with the last forward call of its operator that has none yet.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np

from numscope.core.dtypes import AnyArray, AnyDtype
from numscope.core.errors import RunError
from numscope.core.json_value import Json, items, number, sizes
from numscope.core.names import natural_key
from numscope.store.dtypes import numpy_dtype
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor, Frame, load_npy

PTDBG, TORCH_NPU, ASYNC = "ptdbg_ascend", "torch_npu.hooks", "torch_npu.hooks async"
_NAME = re.compile(
    r"^(?P<n>\d+)_(?P<prefix>[A-Za-z]+)_(?P<op>.+)_(?P<phase>forward|backward)"
    r"_(?P<role>input|output|stack_info)(?P<tail>\d*|(?:\.\w+)+)$"
)
_ASYNC = re.compile(
    r"^(?P<name>\d+_.+?)_shape\[(?P<shape>[\d,]*)\]_stride\[[\d,]*\]_offset\[\d*\]_format\[-?\d*\]\.npy$"
)
_STAMP = r"_\d{8}_?\d{5,6}"


@dataclass(frozen=True)
class Line:
    """One line of a file: a tensor or a stack. In an asynchronous dump of torch_npu, one .npy file."""

    name: str  # as in the file: 21_Torch_norm_forward_input.0
    number: int
    prefix: str
    op: str
    phase: str
    role: str
    tail: str
    dtype: str = ""  # with its "torch."
    shape: tuple[int, ...] = ()
    statistics: tuple[Json, ...] = ()  # ptdbg: max, min, mean
    values: Json = None  # torch_npu: all elements, or ten and max, min, mean
    frames: tuple[Json, ...] = ()  # of a stack, innermost first
    file: Path | None = None

    @property
    def text(self) -> str:
        """The name without its number."""
        return f"{self.prefix}_{self.op}_{self.phase}_{self.role}{self.tail}"


def parse_name(name: str) -> Line | None:
    """Return a line of this name, or None where the name has another form."""
    match = _NAME.match(name)
    if not match:
        return None
    number, tail = int(match["n"]), match["tail"].strip(".")
    return Line(name, number, match["prefix"], match["op"], match["phase"], match["role"], tail)


def lines_of(path: Path) -> Iterator[Line]:
    """Return the lines of a JSON-lines file."""
    with path.open(encoding="utf-8", errors="strict") as stream:
        for number, text in enumerate(stream, 1):
            if not text.strip():
                continue
            try:
                fields = json.loads(text)
                line = parse_name(str(fields[0]))
                if line is not None:
                    line = _filled(line, fields)
            except (ValueError, IndexError, TypeError, KeyError):
                raise RunError(f"{path} line {number} is not what ptdbg_ascend or torch_npu.hooks write") from None
            if line is not None:
                yield line


def _filled(line: Line, fields: list[Json]) -> Line:
    """Return a line with the fields that follow its name."""
    if line.role == "stack_info":
        _, frames, *_ = fields
        return replace(line, frames=tuple(items(frames)))
    if len(fields) == 4:
        _, values, dtype, shape = fields
        return replace(line, values=values, dtype=str(dtype), shape=sizes(shape))
    _, _, _, dtype, shape, *rest = fields
    statistics = tuple(items(rest[0])) if rest else ()
    return replace(line, dtype=str(dtype), shape=sizes(shape), statistics=statistics)


def is_json_lines(path: Path) -> bool:
    """Tell whether one of these tools wrote a file, by its first line."""
    try:
        with path.open("rb") as stream:
            fields = json.loads(stream.readline(1 << 24))
        return isinstance(fields, list) and isinstance(fields[0], str) and parse_name(fields[0]) is not None
    except (OSError, ValueError, IndexError):
        return False


class RankFile(NamedTuple):
    """A file that one rank wrote."""

    rank: int
    path: Path


def files_of(path: Path) -> list[RankFile]:
    """Return the JSON-lines files under a path."""
    if path.is_file():
        return [RankFile(0, path)] if is_json_lines(path) else []
    files = []
    for pattern in ("*.pkl", "rank*/*.pkl"):
        for file in sorted(path.glob(pattern), key=lambda file: natural_key(str(file))):
            rank = re.fullmatch(r"rank_?(?P<number>\d+)", file.parent.name)
            if is_json_lines(file):
                files.append(RankFile(int(rank["number"]) if rank else 0, file))
    return files


def async_files(path: Path) -> list[tuple[str, Path]]:
    """Return (name, file) of the files that wrap_async_datadump_hook writes, in their order."""
    if not path.is_dir():
        return []
    files = [(match["name"], file) for file in path.glob("*.npy") if (match := _ASYNC.match(file.name))]
    return sorted(files, key=lambda item: int(item[0].partition("_")[0]))


def data_folder(file: Path) -> Path | None:
    """Return the newest folder of .npy files that belongs to a ".pkl", or None."""
    pattern = re.compile(re.escape(file.stem) + f"(?:{_STAMP})?")
    folders = [entry for entry in file.parent.iterdir() if entry.is_dir() and pattern.fullmatch(entry.name)]
    return max(folders, key=lambda folder: folder.name) if folders else None


def read(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path; several files of one rank become its steps."""
    files = files_of(path)
    if not files:
        return Dump(ASYNC, [ForeignStep(0, 0, _calls(list(_async_lines(path)), TORCH_NPU))], "torch")
    with files[0].path.open(encoding="utf-8") as stream:
        tool = TORCH_NPU if len(json.loads(stream.readline())) == 4 else PTDBG

    def steps() -> Iterator[ForeignStep]:
        seen: dict[int, int] = {}
        for rank, file in files:
            step = seen[rank] = seen.get(rank, -1) + 1
            lines = list(lines_of(file))
            folder = data_folder(file) if tool == PTDBG else None
            yield ForeignStep(rank, step, _calls(lines, tool, folder))

    return Dump(tool, steps(), "torch", notes={"files": [file.name for _, file in files]})


def _async_lines(path: Path) -> Iterator[Line]:
    for name, file in async_files(path):
        line = parse_name(name)
        if line is not None:
            yield replace(line, file=file)


def _calls(lines: list[Line], tool: str, folder: Path | None = None) -> list[ForeignCall]:
    make = partial(_ptdbg_tensor, folder) if tool == PTDBG else partial(_npu_tensor, _is_sampled(lines))
    naming = _Naming()
    calls: list[ForeignCall] = []
    previous: Line | None = None
    for line in lines:
        if previous is None or _begins_call(previous, line, tool):
            calls.append(ForeignCall(naming.next(line)))
            position = {"input": 0, "output": 0}
        previous = line
        call = calls[-1]
        if line.role == "stack_info":
            call.stack = tuple(_frame(frame) for frame in reversed(line.frames))
            continue
        index = line.tail or str(position[line.role])
        position[line.role] += 1
        role = line.role
        if line.phase == "backward":
            role = {"input": "output", "output": "input"}[role]
        elif not index[0].isdecimal():
            role = "kwargs"  # an argument by its name: input.weight
        call.slots.append((f"{role}.{index}", make(line)))
    return calls


def _begins_call(previous: Line, line: Line, tool: str) -> bool:
    same = (previous.prefix, previous.op, previous.phase) == (line.prefix, line.op, line.phase)
    if tool == PTDBG:
        return previous.number != line.number or not same
    return not same or (previous.role == "output" and line.role == "input")


class _Naming:
    """Numbers the calls per operator."""

    def __init__(self) -> None:
        self._forward: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}

    def next(self, line: Line) -> str:
        head = f"{line.prefix}.{line.op}"
        if line.phase == "forward":
            number = self._forward.get(head, 0)
            self._forward[head] = number + 1
            self._open.setdefault(head, []).append(number)
        else:
            waiting = self._open.get(head)
            number = waiting.pop() if waiting else self._forward.setdefault(head, 0)
        return f"{head}.{number}.{line.phase}"


def _frame(fields: Json) -> Frame:
    file, line, function, code = [*items(fields), "", 0, "", ""][:4]
    if isinstance(code, list):
        code = "".join(map(str, code))
    return Frame(str(file), int(number(line) or 0), str(function), str(code or "").strip())


def _dtype(line: Line) -> str:
    return line.dtype.removeprefix("torch.")


def _ptdbg_tensor(folder: Path | None, line: Line) -> ForeignTensor:
    dtype, shape = _dtype(line), line.shape
    high, low, mean = (number(value) for value in (*line.statistics, None, None, None)[:3])
    file = folder / f"{line.name}.npy" if folder else None
    if file is None or not file.is_file():
        return ForeignTensor(dtype, shape, min=low, max=high, mean=mean)
    whole = np.load(file, mmap_mode="r").size == int(np.prod(shape, dtype=np.int64))
    load = partial(_array, file, dtype, shape if whole else None)
    return ForeignTensor(dtype, shape, load, not whole, min=low, max=high, mean=mean)


def _array(file: Path, dtype: str, shape: tuple[int, ...] | None) -> AnyArray:
    """Return the data in the tensor's own dtype; the files hold it in float32, which is exact."""
    array = load_npy(file)
    kind = numpy_dtype(dtype)
    if kind is not None and array.dtype != kind:
        with np.errstate(invalid="ignore", over="ignore"):
            array = array.astype(kind)
    return array if shape is None else array.reshape(shape)


def _is_sampled(lines: list[Line]) -> bool:
    """Tell whether a torch_npu file has only ten elements and three statistics of each tensor, by its first clear line."""
    told = (_sampling(line) for line in lines if line.values is not None)
    return next((sampled for sampled in told if sampled is not None), True)


def _sampling(line: Line) -> bool | None:
    """Tell whether a line has up to ten elements and three statistics, or all elements; None where it could be either."""
    size, count = int(np.prod(line.shape, dtype=np.int64)), len(_flat(line.values))
    if count not in (size, min(10, size) + 3):
        raise RunError(f"{line.name} has {count} values of a tensor of {size}: neither all, nor ten and statistics")
    return None if size == min(10, size) + 3 else count != size


def _flat(value: Json) -> list[Json]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list) else [value]


def _npu_tensor(sampled: bool, line: Line) -> ForeignTensor:
    if line.file is not None:
        return ForeignTensor.of_npy(line.file)
    values = [math.nan if (value := number(item)) is None else value for item in _flat(line.values)]
    dtype, shape = _dtype(line), line.shape
    kind = numpy_dtype(dtype) or np.dtype("float32")
    own = _sampling(line)  # lines of one file may differ: a later registration with another sample appends to it
    if not (sampled if own is None else own):
        return ForeignTensor(dtype, shape, lambda: _of(values, kind).reshape(shape))
    if len(values) - 3 == int(np.prod(shape, dtype=np.int64)):  # ten elements or fewer: all of them
        return ForeignTensor(dtype, shape, lambda: _of(values[:-3], kind).reshape(shape))
    high, low, mean = values[-3:]
    return ForeignTensor(dtype, shape, lambda: _of(values[:-3], kind), True, min=low, max=high, mean=mean)


def _of(values: list[float], kind: AnyDtype) -> AnyArray:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.array(values, np.float64).astype(kind)
