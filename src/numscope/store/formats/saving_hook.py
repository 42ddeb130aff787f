"""Reads the folders of Paddle's saving hook: a .npy file per output and per gradient, under `tensors/` and `grads/`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from numscope.core.names import CallName, parse_call
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor

TOOL = "saving_hook"
_TENSOR = re.compile(
    r"tensor_idx_(?P<idx>\d+)_layer_class_(?P<cls>.+?)_layer_name_(?P<name>.+)_micro_step_(?P<step>\d+)\.npy"
)
_GRAD = re.compile(r"grad_idx_(?P<idx>\d+)_of_param_name_(?P<name>.+)_micro_step_(?P<step>\d+)\.npy")


class RankFolder(NamedTuple):
    """A folder that one rank wrote."""

    rank: int
    path: Path


def find(path: Path) -> list[RankFolder]:
    """Return the folders that register_saving_hook wrote under a path."""
    folders = []
    for kind in ("tensors", "grads"):
        for folder in sorted((path / kind).glob("rank_*")):
            rank = folder.name.removeprefix("rank_")
            if rank.isdecimal() and folder.is_dir():
                folders.append(RankFolder(int(rank), folder))
    return folders


class _Recorded(NamedTuple):
    """A call of one file, and the order within its micro-step: outputs before gradients, each by number."""

    is_gradient: bool
    number: int
    call: ForeignCall


def read(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path; a micro-step is a step."""
    files: dict[tuple[int, int], list[_Recorded]] = {}
    for rank, folder in find(path):
        for file in folder.glob("*.npy"):
            if match := _TENSOR.fullmatch(file.name):
                call = ForeignCall(f"Module.{match['name']}.{match['cls']}.forward.0")
                slot = "output.0"
            elif match := _GRAD.fullmatch(file.name):
                layer, _, parameter = match["name"].rpartition(".")
                call = ForeignCall(f"Module.{layer}.Layer.backward.0" if layer else f"Save.{match['name']}.0.backward")
                slot = f"parameters_grad.{parameter}" if layer else "input.0"
            else:
                continue
            call.slots.append((slot, ForeignTensor.of_npy(file)))
            recorded = _Recorded(slot != "output.0", int(match["idx"]), call)
            files.setdefault((rank, int(match["step"])), []).append(recorded)

    def steps() -> Iterator[ForeignStep]:
        for (rank, step), recorded in sorted(files.items(), key=lambda item: item[0]):
            ordered = sorted(recorded, key=lambda one: (one.is_gradient, one.number))
            yield ForeignStep(rank, step, _merged(one.call for one in ordered))

    return Dump(TOOL, steps(), "paddle")


def _merged(calls: Iterable[ForeignCall]) -> list[ForeignCall]:
    """Merge the calls of one name; a second output of one name is a second call."""
    merged: dict[str, ForeignCall] = {}
    for call in calls:
        name = call.name
        while name in merged and set(dict(merged[name].slots)) & set(dict(call.slots)):
            parts = parse_call(name)
            if parts is None:
                break
            name = str(CallName(parts.prefix, parts.op, parts.path, parts.phase, parts.index + 1))
        merged.setdefault(name, ForeignCall(name)).slots += call.slots
    return list(merged.values())
