"""Reads hooktools' folders: `{forward,backward,gradient}/epoch{E}/step{S}`, a .pt file per module call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from numscope.core.errors import RunError
from numscope.store.formats import torch_file
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor

TOOL = "hooktools"
_FILE = re.compile(r"(?P<kind>forward|backward|gradient)_(?P<n>\d+)\.pt")
_KINDS = ("forward", "backward", "gradient")


def find(path: Path) -> list[Path]:
    """Return the folders of one step each under a hooktools folder."""
    for base in (path, *sorted(entry for entry in path.iterdir() if entry.is_dir())) if path.is_dir() else ():
        folders = [folder for kind in _KINDS for folder in base.glob(f"{kind}/epoch*/step*") if folder.is_dir()]
        if folders:
            return sorted(folders, key=_epoch_and_step)
    return []


def _epoch_and_step(folder: Path) -> tuple[int, int]:
    numbers = [re.fullmatch(r"(?:epoch|step)(?P<number>-?\d+)", part) for part in folder.parts[-2:]]
    epoch, step = (int(match["number"]) if match else 0 for match in numbers)
    return epoch, step


def read(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path: forward, backward and gradient of an epoch's step are one step."""
    steps: dict[tuple[int, int], list[Path]] = {}
    for folder in find(path):
        steps.setdefault(_epoch_and_step(folder), []).append(folder)
    one_epoch = len({epoch for epoch, _ in steps}) == 1

    def read_steps() -> Iterator[ForeignStep]:
        for count, ((_, step), folders) in enumerate(sorted(steps.items())):
            naming: dict[str, int] = {}
            folders.sort(key=lambda folder: _KINDS.index(folder.parts[-3]))
            calls = [call for folder in folders for call in _calls(folder, naming, trust_pickle)]
            yield ForeignStep(0, step if one_epoch and step >= 0 else count, calls)

    return Dump(TOOL, read_steps(), "torch", notes={"steps": [list(key) for key in sorted(steps)]})


def _calls(folder: Path, naming: dict[str, int], trust_pickle: bool) -> Iterator[ForeignCall]:
    files = [
        (int(match["n"]), match["kind"], file) for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))
    ]
    for _, kind, file in sorted(files):
        record = torch_file.load(file, trust_pickle)
        if not isinstance(record, dict):
            raise RunError(f"{file} is not a hooktools record: it holds no dictionary")
        yield _call(record, kind, naming)


def _call(record: dict[object, object], kind: str, naming: dict[str, int]) -> ForeignCall:
    name = str(record.get("module_name") or "unknown")
    head = _head(name)
    key = f"{head} {kind}"
    number = naming[key] = naming.get(key, -1) + 1
    phase = "forward" if kind == "forward" else "backward"
    call = ForeignCall(f"{head}.{phase}.{number}" if head.startswith("Module.") else f"{head}.{number}.{phase}")
    if kind == "gradient":
        call.name = f"Save.gradient.{name}.{number}.backward"
    # In backward their input is torch's grad_input, the gradient that goes out.
    input_slot, output_slot = ("output", "input") if kind == "backward" else ("input", "output")
    slots = {"input": input_slot, "output": output_slot}
    for field, slot in {**slots, "gradient": "parameters.value", "gradient_grad": "parameters_grad.value"}.items():
        for path, array in torch_file.arrays_in(record.get(field)):
            tail = path or ("" if "." in slot else "0")
            call.slots.append((f"{slot}.{tail}" if tail else slot, ForeignTensor.of_array(array)))
    return call


def _head(name: str) -> str:
    _, _, function = name.rpartition(".")
    if name.startswith("torch.nn.functional."):
        return f"Functional.{function}"
    if name.startswith("torch.Tensor."):
        return f"Tensor.{function}"
    if name.startswith("torch."):
        return f"Torch.{name.removeprefix('torch.')}"
    return f"Module.{name}"
