"""Reads folders of tensors: Paddle's saving hook, hooktools, and plain folders of .npy, .npz, .pt and .safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.core.errors import RunError
from numscope.core.names import parse_call, split_tensor
from numscope.store.dtypes import SAFETENSORS, numpy_dtype
from numscope.store.formats import torch_file
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor

SAVING_HOOK, HOOKTOOLS, PLAIN = "saving_hook", "hooktools", "plain folder"
_TENSOR = re.compile(
    r"tensor_idx_(?P<idx>\d+)_layer_class_(?P<cls>.+?)_layer_name_(?P<name>.+)_micro_step_(?P<step>\d+)\.npy"
)
_GRAD = re.compile(r"grad_idx_(?P<idx>\d+)_of_param_name_(?P<name>.+)_micro_step_(?P<step>\d+)\.npy")
_RECORD = re.compile(r"(?P<kind>forward|backward|gradient)_(?P<n>\d+)\.pt")
_SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".safetensors")
_KINDS = ("forward", "backward", "gradient")


def array_tensor(load: Callable[[], NDArray[Any]], dtype: str, shape: tuple[int, ...]) -> ForeignTensor:
    """Return a tensor whose data is all there."""
    return ForeignTensor(dtype, shape, load)


def _npy(file: Path) -> ForeignTensor:
    try:
        head = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise RunError(f"{file} cannot be read ({error})") from None
    return ForeignTensor(head.dtype.name, head.shape, partial(np.load, file))


# Paddle's saving hook -----------------------------------------------------------------------------------------------


def find_saving_hook(path: Path) -> list[tuple[int, Path]]:
    """Return (rank, folder) of what register_saving_hook wrote under a path."""
    found = []
    for kind in ("tensors", "grads"):
        for folder in sorted((path / kind).glob("rank_*")):
            number = folder.name.removeprefix("rank_")
            if number.isdigit() and folder.is_dir():
                found.append((int(number), folder))
    return found


def read_saving_hook(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path; a micro-step is a step."""
    files: dict[tuple[int, int], list[tuple[int, int, ForeignCall]]] = {}
    for rank, folder in find_saving_hook(path):
        for file in folder.glob("*.npy"):
            if match := _TENSOR.fullmatch(file.name):
                call = ForeignCall(f"Module.{match['name']}.{match['cls']}.forward.0", [("output.0", _npy(file))])
                key, rest = (0, int(match["idx"])), match
            elif match := _GRAD.fullmatch(file.name):
                layer, _, parameter = match["name"].rpartition(".")
                name = f"Save.{match['name']}.0.backward" if not layer else f"Module.{layer}.Layer.backward.0"
                slot = "input.0" if not layer else f"parameters_grad.{parameter}"
                call = ForeignCall(name, [(slot, _npy(file))])
                key, rest = (1, int(match["idx"])), match
            else:
                continue
            files.setdefault((rank, int(rest["step"])), []).append((*key, call))

    def steps() -> Iterator[ForeignStep]:
        for (rank, step), calls in sorted(files.items(), key=lambda item: item[0]):
            yield ForeignStep(rank, step, _merged(call for *_, call in sorted(calls, key=lambda item: item[:2])))

    return Dump(SAVING_HOOK, steps(), "paddle")


def _merged(calls: Iterator[ForeignCall]) -> list[ForeignCall]:
    """Return the calls with those of one name put together; a second output of one name is a second call."""
    found: dict[str, ForeignCall] = {}
    for call in calls:
        name = call.name
        while name in found and set(dict(found[name].slots)) & set(dict(call.slots)):
            parts = parse_call(name)
            if parts is None:
                break
            name = str(type(parts)(parts.prefix, parts.op, parts.path, parts.phase, parts.index + 1))
        target = found.setdefault(name, ForeignCall(name))
        target.slots += call.slots
    return list(found.values())


# hooktools ----------------------------------------------------------------------------------------------------------


def find_hooktools(path: Path) -> list[Path]:
    """Return the folders of one step each under a hooktools folder."""
    for base in (path, *sorted(entry for entry in path.iterdir() if entry.is_dir())) if path.is_dir() else ():
        found = sorted(
            (folder for kind in _KINDS for folder in base.glob(f"{kind}/epoch*/step*") if folder.is_dir()),
            key=_epoch_and_step,
        )
        if found:
            return found
    return []


def _epoch_and_step(folder: Path) -> tuple[int, int]:
    numbers = [re.fullmatch(r"(?:epoch|step)(-?\d+)", part) for part in folder.parts[-2:]]
    epoch, step = (int(match[1]) if match else 0 for match in numbers)
    return epoch, step


def read_hooktools(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the dump under a path: forward, backward and gradient of an epoch's step are one step."""
    steps: dict[tuple[int, int], list[Path]] = {}
    for folder in find_hooktools(path):
        steps.setdefault(_epoch_and_step(folder), []).append(folder)
    one_epoch = len({epoch for epoch, _ in steps}) == 1

    def read() -> Iterator[ForeignStep]:
        for place, ((_, step), folders) in enumerate(sorted(steps.items())):
            naming: dict[str, int] = {}
            folders.sort(key=lambda folder: _KINDS.index(folder.parts[-3]))
            calls = [call for folder in folders for call in _records(folder, naming, trust_pickle)]
            yield ForeignStep(0, step if one_epoch and step >= 0 else place, calls)

    return Dump(HOOKTOOLS, read(), "torch", notes={"steps": [list(key) for key in sorted(steps)]})


def _records(folder: Path, naming: dict[str, int], trust_pickle: bool) -> Iterator[ForeignCall]:
    files = [
        (int(match["n"]), match["kind"], file) for file in folder.iterdir() if (match := _RECORD.fullmatch(file.name))
    ]
    for _, kind, file in sorted(files):
        record = torch_file.load(file, trust_pickle)
        if not isinstance(record, dict):
            raise RunError(f"{file} is not a hooktools record: it holds no dictionary")
        yield _record(record, kind, naming)


def _record(record: dict[str, Any], kind: str, naming: dict[str, int]) -> ForeignCall:
    name = str(record.get("module_name") or "unknown")
    head = _head(name)
    key = f"{head} {kind}"
    number = naming[key] = naming.get(key, -1) + 1
    phase = "forward" if kind == "forward" else "backward"
    call = ForeignCall(f"{head}.{phase}.{number}" if head.startswith("Module.") else f"{head}.{number}.{phase}")
    if kind == "gradient":
        call.name = f"Save.gradient.{name}.{number}.backward"
    # In backward their input is torch's grad_input, the gradient that goes out.
    roles = {"input": "output", "output": "input"} if kind == "backward" else {"input": "input", "output": "output"}
    for field, slot in (*roles.items(), ("gradient", "parameters.value"), ("gradient_grad", "parameters_grad.value")):
        call.slots += [(path, _value(value)) for path, value in _leaves(slot, record.get(field))]
    return call


def _head(name: str) -> str:
    if name.startswith("torch.nn.functional."):
        return f"Functional.{name.rpartition('.')[2]}"
    if name.startswith("torch.Tensor."):
        return f"Tensor.{name.rpartition('.')[2]}"
    if name.startswith("torch."):
        return f"Torch.{name.removeprefix('torch.')}"
    return f"Module.{name}"


def _value(array: NDArray[Any]) -> ForeignTensor:
    return ForeignTensor(array.dtype.name, array.shape, lambda: array)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, np.ndarray):
        yield (path if "." in path else f"{path}.0"), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}.{index}", item)


# Plain folders ------------------------------------------------------------------------------------------------------


def find_plain(path: Path) -> list[Path]:
    """Return the tensor files under a path, or the path itself where it is one."""
    if path.is_file():
        return [path] if path.suffix in _SUFFIXES else []
    return sorted((file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file()), key=_natural)


def _natural(file: Path) -> list[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", str(file)) if part]


def read_plain(path: Path, trust_pickle: bool = False) -> Dump:
    """Return the files under a path as calls: by a name that says call and slot, or as values the user saved."""
    root = path if path.is_dir() else path.parent
    places: dict[tuple[int, int], dict[str, ForeignCall]] = {}
    for file in find_plain(path):
        step, rank, parts = _place(file.relative_to(root))
        for label, tensor in _contents(file, ".".join(parts), trust_pickle):
            split = split_tensor(label)
            call, slot = split or (f"Save.{label}.0.forward", "output.0")
            calls = places.setdefault((rank, step), {})
            calls.setdefault(call, ForeignCall(call)).slots.append((slot, tensor))
    steps = [ForeignStep(rank, step, list(calls.values())) for (rank, step), calls in sorted(places.items())]
    return Dump(PLAIN, steps, notes={"source": path.name})


def _place(relative: Path) -> tuple[int, int, list[str]]:
    numbers = {"step": 0, "rank": 0}
    parts = []
    for part in relative.with_suffix("").parts:
        match = re.fullmatch(r"(step|rank)_?(\d+)", part)
        if match:
            numbers[match[1]] = int(match[2])
        else:
            parts.append(part)
    return numbers["step"], numbers["rank"], parts or [relative.stem]


def _contents(file: Path, label: str, trust_pickle: bool) -> Iterator[tuple[str, ForeignTensor]]:
    if file.suffix == ".npy":
        yield label, _npy(file)
    elif file.suffix == ".npz":
        with np.load(file) as archive:
            for key in archive.files:
                yield f"{label}.{key}", _value(archive[key])
    elif file.suffix == ".safetensors":
        yield from ((f"{label}.{key}", tensor) for key, tensor in _safetensors(file))
    else:
        value = torch_file.load(file, trust_pickle)
        if isinstance(value, np.ndarray):
            yield label, _value(value)
        else:
            yield from ((path, _value(array)) for path, array in _leaves(label, value))


def _safetensors(file: Path) -> Iterator[tuple[str, ForeignTensor]]:
    names = {code: name for name, code in SAFETENSORS.items()}
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            raise RunError(f"{file} is not a safetensors file") from None
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        dtype = numpy_dtype(names.get(entry["dtype"], ""))
        if dtype is None:
            raise RunError(f"{file} holds a {entry['dtype']} tensor, which numpy cannot hold")
        begin, shape = 8 + length + entry["data_offsets"][0], tuple(entry["shape"])
        yield key, ForeignTensor(dtype.name, shape, partial(_from_file, file, dtype, begin, shape))


def _from_file(file: Path, dtype: np.dtype[Any], begin: int, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape, dtype=np.int64))
    return np.fromfile(file, dtype, count, offset=begin).reshape(shape)
