"""Reads msprobe's dumps: `step{N}/rank{R}` with dump.json, stack.json, construct.json and dump_tensor_data.

Its names are numscope's own. `Module.x.parameters_grad.0` becomes a part of the module's backward call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numscope.core.dtypes import AnyArray
from numscope.core.errors import RunError
from numscope.core.json_value import Json, members, number, sizes
from numscope.store.formats import torch_file
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor, Frame, load_npy

TOOL = "msprobe"
_XOR = (
    "msprobe's xor checksums are left out: elements in another order or with other signs have the same one; "
    "dump with summary_mode statistics or md5 to compare values"
)
_RANK = re.compile(r"(?:rank|proc)(?P<number>\d*)")
_STEP = re.compile(r"step(?P<number>\d+)")
_GRADIENTS = re.compile(r"^(?P<head>Module\..+)\.parameters_grad(?:\.(?P<index>\d+))?$")
_FRAME = re.compile(r"File (?P<file>.+?), line (?P<line>\d+), in (?P<function>.+?), ?\n? ?(?P<code>.*)", re.DOTALL)


class StepFolder(NamedTuple):
    """The folder of one step of one rank."""

    rank: int
    step: int
    path: Path


def find(path: Path) -> list[StepFolder]:
    """Return the folders with a dump.json under a path; none where this is no msprobe dump."""
    candidates = [path / "dump.json"] if path.is_dir() else [path] if path.name == "dump.json" else []
    if path.is_dir():
        for pattern in ("*/dump.json", "*/*/dump.json"):
            candidates += sorted(path.glob(pattern))
    folders = []
    for file in candidates:
        if not file.is_file():
            continue
        folder = file.parent
        rank, step = _RANK.fullmatch(folder.name), _STEP.fullmatch(folder.name)
        if rank:
            step = _STEP.fullmatch(folder.parent.name)
        # `proc123` is a process without a group, named by its process id: that is no rank.
        is_rank = rank is not None and rank["number"] and not folder.name.startswith("proc")
        rank_number = int(rank["number"]) if rank is not None and is_rank else 0
        folders.append(StepFolder(rank_number, int(step["number"]) if step else 0, folder))
    return sorted(folders, key=lambda folder: (folder.rank, folder.step))


def read(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path."""
    folders = find(path)
    first = (folders[0].path if folders else path) / "dump.json"
    with first.open(encoding="utf-8") as stream:
        head = stream.read(1 << 16)
    xored = re.search(r'"md5": *"0x', head) is not None
    notes: dict[str, object] = {"warning": _XOR} if xored else {}

    def steps() -> Iterator[ForeignStep]:
        for rank, step, folder in folders:
            yield ForeignStep(rank, step, _calls(folder, trust_pickle))

    framework = str(_json(first).get("framework", "pytorch"))
    hashed = "msprobe" if '"md5"' in head and not xored else ""
    return Dump(TOOL, steps(), {"pytorch": "torch"}.get(framework, framework), hashed, notes)


def _json(file: Path) -> dict[str, Json]:
    try:
        content: Json = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} cannot be read ({error}): was the job stopped before debugger.stop()?") from None
    if not isinstance(content, dict):
        raise RunError(f"{file} is not a msprobe file: it holds no object")
    return content


def _calls(folder: Path, trust_pickle: bool) -> list[ForeignCall]:
    content = _json(folder / "dump.json")
    parents = _json(folder / "construct.json") if (folder / "construct.json").is_file() else {}
    stacks = _stacks(folder / "stack.json")
    reader = _SlotReader(folder / "dump_tensor_data", trust_pickle)
    calls: dict[str, ForeignCall] = {}
    gradients: list[tuple[str, int, dict[str, Json]]] = []
    for name, entry in members(content.get("data")).items():
        if not isinstance(entry, dict):
            continue
        if gradient := _GRADIENTS.match(name):
            gradients.append((gradient["head"], int(gradient["index"] or 0), entry))
            continue
        call = calls.setdefault(name, ForeignCall(name, parent=_parent(parents, name), stack=stacks.get(name)))
        reader.fill(call, entry)
    for head, index, entry in gradients:
        backward = _accumulating(calls, head, index)
        call = calls.setdefault(backward, ForeignCall(backward, parent=_parent(parents, backward)))
        for parameter, values in entry.items():
            first = values[0] if isinstance(values, list) and values else values
            call.slots.append((f"parameters_grad.{parameter}", reader.tensor(first)))
    for call in calls.values():
        if ".backward" in call.name:
            _in_argument_order(call, calls.get(call.name.replace(".backward", ".forward")))
    return list(calls.values())


def _accumulating(calls: dict[str, ForeignCall], head: str, index: int) -> str:
    """Return the backward call that a module's parameter gradients belong to: that of its last forward call."""
    if index == 0:
        while f"{head}.forward.{index + 1}" in calls:
            index += 1
    return f"{head}.backward.{index}"


def _parent(parents: dict[str, Json], name: str) -> str | None:
    parent = parents.get(name)
    if isinstance(parent, list):  # later releases: [parent, …]
        parent = parent[0] if parent else None
    return parent if isinstance(parent, str) else None


class _SlotReader:
    """Turns the entries of dump.json into slots."""

    def __init__(self, data: Path, trust_pickle: bool) -> None:
        self._data = data
        self._trust_pickle = trust_pickle

    def fill(self, call: ForeignCall, entry: dict[str, Json]) -> None:
        """Add the slots and the other arguments of a call."""
        positional: dict[str, Json] = {}
        named: dict[str, Json] = {}
        for group, slot, others in (
            ("input_args", "input", positional),
            ("input", "input", positional),
            ("input_kwargs", "kwargs", named),
            ("output", "output", {}),
            ("parameters", "parameters", {}),
        ):
            if group in entry:
                self._walk(slot, entry[group], call.slots, others, top=True)
        arguments = {**({"args": positional} if positional else {}), **({"kwargs": named} if named else {})}
        call.arguments = arguments or None

    def _walk(
        self,
        path: str,
        value: Json,
        slots: list[tuple[str, ForeignTensor | None]],
        others: dict[str, Json],
        top: bool = False,
    ) -> None:
        if isinstance(value, dict) and "type" in value and not top:
            if value["type"] in ("torch.Tensor", "numpy.ndarray", "mindspore.Tensor") or "shape" in value:
                slots.append((path, self.tensor(value)))
            else:
                others[_position(path)] = _argument(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                self._walk(f"{path}.{key}", item, slots, others)
        elif isinstance(value, list) and value and not top and _is_plain(value):
            others[_position(path)] = _argument(value)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                self._walk(f"{path}.{index}", item, slots, others)

    def tensor(self, value: Json) -> ForeignTensor | None:
        """Return the tensor that an entry describes, or None where it describes none."""
        if not isinstance(value, dict) or "shape" not in value:
            return None
        shape = sizes(value["shape"])
        dtype = str(value.get("dtype", "")).removeprefix("torch.").lower()
        name = value.get("data_name")
        file = self._data / str(name) if name and name != "-1" else None
        load = partial(self._load, file, shape) if file is not None and file.is_file() else None
        digest = value.get("md5")
        return ForeignTensor(
            dtype=dtype,
            shape=shape,
            load=load,
            min=number(value.get("Min")),
            max=number(value.get("Max")),
            mean=number(value.get("Mean")),
            l2=number(value.get("Norm")),
            digest=_digest(str(digest)) if digest and load is None else None,
        )

    def _load(self, file: Path, shape: tuple[int, ...]) -> AnyArray:
        value = load_npy(file) if file.suffix == ".npy" else torch_file.load(file, self._trust_pickle)
        if not isinstance(value, np.ndarray):
            raise RunError(f"{file} holds no tensor")
        return value


def _position(path: str) -> str:
    """Return the position or name of an argument in its group: `0.1` of `input.0.1`."""
    _, _, position = path.partition(".")
    return position


def _is_plain(value: Json) -> bool:
    """Tell whether a value holds no tensor."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, dict) and "type" in value and "shape" not in value


def _argument(value: Json) -> Json:
    """Convert an argument to the form that runs have."""
    if isinstance(value, list):
        return [_argument(item) for item in value]
    entry = members(value)
    return {"slice": entry.get("value")} if entry.get("type") == "slice" else entry.get("value")


def _digest(text: str) -> int | None:
    if text.startswith("0x"):
        return None  # an xor of the words: equal for contents that differ
    try:
        return int(text[:16], 16)
    except ValueError:
        return None


def _in_argument_order(call: ForeignCall, forward: ForeignCall | None) -> None:
    """Number the outgoing gradients by the arguments they belong to.

    msprobe lists them in the order of the autograd node (a linear's bias first). Where the shapes of the forward inputs
    identify the arguments, the numbers are corrected; otherwise the order of the dump stays.
    """
    if forward is None:
        return
    inputs = [(slot, tensor) for slot, tensor in forward.slots if slot.startswith("input.") and tensor is not None]
    outputs = {
        index: tensor
        for index, (slot, tensor) in enumerate(call.slots)
        if slot.startswith("output.") and tensor is not None
    }
    renamed: dict[int, tuple[str, ForeignTensor]] = {}
    for index, tensor in outputs.items():
        same = [slot for slot, other in inputs if other.shape == tensor.shape]
        transposed = [slot for slot, other in inputs if other.shape == tensor.shape[::-1] and len(tensor.shape) == 2]
        if len(same) == 1:
            renamed[index] = (f"output.{_position(same[0])}", tensor)
        elif not same and len(transposed) == 1:  # addmm's node gives the transposed weight's gradient
            renamed[index] = (f"output.{_position(transposed[0])}", _transposed(tensor))
        else:
            return
    if len({slot for slot, _ in renamed.values()}) == len(outputs):
        for index, item in renamed.items():
            call.slots[index] = item


def _transposed(tensor: ForeignTensor) -> ForeignTensor:
    load = tensor.load
    load_transposed = None if load is None else (lambda: np.ascontiguousarray(load().T))
    return replace(tensor, shape=tensor.shape[::-1], load=load_transposed, digest=None)


def _stacks(file: Path) -> dict[str, tuple[Frame, ...]]:
    """Return the stack of each call, outermost frame first."""
    if not file.is_file():
        return {}
    stacks: dict[str, tuple[Frame, ...]] = {}
    for key, value in _json(file).items():
        names, lines = [key], value  # early releases: name → frames
        if isinstance(value, list) and len(value) == 2:
            calls, shared = value  # later: number → [names, frames]
            if isinstance(calls, list):
                names, lines = [str(name) for name in calls], shared
        if isinstance(lines, list):
            frames = tuple(frame for line in reversed(lines) if (frame := _frame(str(line))))
            stacks.update(dict.fromkeys(names, frames))
    return stacks


def _frame(line: str) -> Frame | None:
    match = _FRAME.match(line)
    return Frame(match["file"], int(match["line"]), match["function"], match["code"].strip()) if match else None
