"""Reads the Tracer's files: folders by epoch and step, files in order, and the values of two records side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from numscope.compat.measures import Array, measure
from numscope.core.errors import RunError, SettingsError
from numscope.store.formats import torch_file

KINDS = ("forward", "backward", "gradient")
_FILE = re.compile(r"(?P<kind>forward|backward|gradient)_(?P<number>\d+)\.pt")
_FOLDER = re.compile(r"(?:epoch|step)(?P<number>-?\d+)")

Record = dict[str, object]


@dataclass(frozen=True)
class StepFolder:
    """One `{kind}/epoch{E}/step{S}` of a traced folder."""

    kind: str
    epoch: int
    step: int
    path: Path

    def files(self) -> list[Path]:
        """Return its files, in order."""
        found = [(int(match["number"]), file) for file in self.path.iterdir() if (match := _FILE.fullmatch(file.name))]
        return [file for _, file in sorted(found)]


def step_folders(root: Path, kind: str) -> list[StepFolder]:
    """Return the steps of a traced folder, in order of epoch and step."""
    if kind not in KINDS:
        raise SettingsError(f"there is no folder {kind!r}: give one of {', '.join(KINDS)}")
    if not root.is_dir():
        raise RunError(f"{root} does not exist: give the folder {{tracer_name}}_{{time}} that the Tracer wrote")
    if not (root / kind).is_dir():
        found = ", ".join(sorted(entry.name for entry in root.iterdir())[:4]) or "nothing"
        raise RunError(f"{root} has no folder {kind}: was it traced with a trace_mode that writes it? (found: {found})")
    found_steps = []
    for path in (root / kind).glob("epoch*/step*"):
        epoch, step = (_FOLDER.fullmatch(part) for part in path.parts[-2:])
        if epoch and step:
            found_steps.append(StepFolder(kind, int(epoch["number"]), int(step["number"]), path))
    return sorted(found_steps, key=lambda folder: (folder.epoch, folder.step))


@lru_cache(maxsize=256)
def _read(path: str, mtime: int, trust_pickle: bool) -> Record:
    record = torch_file.load(Path(path), trust_pickle)
    if not isinstance(record, dict):
        raise RunError(f"{path} is not a file of the Tracer's: it holds no record")
    return record


def read(path: Path, trust_pickle: bool = False) -> Record:
    """Return the record of a file."""
    if not path.is_file():
        raise RunError(f"{path} does not exist: give a .pt file that the Tracer wrote")
    return _read(str(path), path.stat().st_mtime_ns, trust_pickle)


@dataclass(frozen=True)
class Value:
    """A tensor of a record."""

    place: str  # "input", "output", "gradient" or "gradient_grad"
    index: str  # its path there, such as `0.weight`
    array: Array


def values(record: Record) -> Iterator[Value]:
    """Yield the tensors of a record."""
    for place in ("input", "output", "gradient", "gradient_grad"):
        for path, array in torch_file.arrays_in(record.get(place)):
            yield Value(place, path or "0", array)


def error_of(first: Array, second: Array, metric: str) -> float | None:
    """Return one metric of two values, or None where their sizes differ."""
    if first.size != second.size:
        return None
    found = measure(first, second)
    return {
        "L1": found.l1,
        "AE": found.max_abs_err,
        "MAE": found.mae,
        "CS": found.cosine,
        "MSE": found.mse,
        "RMSE": found.rmse,
        "MAPE": found.mape,
    }[metric]


def describe(array: Array) -> str:
    """Return a value as one line: dtype, shape, and its first elements."""
    flat = np.ascontiguousarray(array).reshape(-1)[:6]
    shown = ", ".join(f"{value:.6g}" if flat.dtype.kind not in "bc" else str(value) for value in flat.tolist())
    more = ", …" if array.size > 6 else ""
    return f"{array.dtype.name} {list(array.shape)} [{shown}{more}]"


def neighbour(path: Path, direction: int) -> Path:
    """Return the file after (1) or before (-1) one, running on into the neighbouring step."""
    match = _FILE.fullmatch(path.name)
    if match is None or len(path.parts) < 4:
        raise SettingsError(f"{path} is not a file of the Tracer's")
    _step, _epoch, _kind, root, *_ = path.parents
    every = [file for folder in step_folders(root, match["kind"]) for file in folder.files()]
    if path not in every:
        raise RunError(f"{path} does not exist: give a .pt file that the Tracer wrote")
    place = every.index(path) + (1 if direction > 0 else -1)
    if not 0 <= place < len(every):
        raise SettingsError(f"{path} is the {'last' if direction > 0 else 'first'} file")
    return every[place]
