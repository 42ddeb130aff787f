"""Writes a run as msprobe's dump, which msprobe's own `compare` and `graph_visualize` read.

Calls that msprobe's format does not have are left out: the root module, optimizer steps, the data that entered, and buffers.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from numscope.core.json_value import Json
from numscope.store.formats import torch_file
from numscope.store.formats.step_calls import StepCall, StepTensor, step_calls
from numscope.store.reader import Run

_SKIPPED = {"optimizer", "data", "parameter"}


def export(run: Run, destination: Path) -> int:
    """Write every step and rank; return the number of files."""
    world = int(run.manifest.get("world_size") or len(run.ranks))
    kept = any(run.tensors["kept"].to_pylist()) if run.tensors.num_rows else False
    task = "tensor" if kept else "statistics"
    level = {"module": "L0", "api": "L1", "mix": "mix"}.get(
        str((run.manifest.get("settings") or {}).get("level")), "mix"
    )
    count = 0
    for rank in run.ranks:
        for step in run.written_steps(rank):
            folder = destination / f"step{step}" / (f"rank{rank}" if world > 1 else "rank")
            count += write_step(run, step, rank, folder, task, level)
    return count


def write_step(
    run: Run,
    step: int,
    rank: int,
    folder: Path,
    task: str,
    level: str,
    *,
    digest: bool = False,
    data_mode: frozenset[str] = frozenset(),
    choose: Callable[[list[StepCall]], list[StepCall]] = list,
) -> int:
    """Write one step of one rank; return the number of files.

    `data_mode` names the phases and sides that are written, of forward and backward, of input and output; `choose`
    selects the calls whose values are written: the structure is always whole.
    """
    calls = [call for call in step_calls(run, step, rank) if _is_wanted(call)]
    writer = _Writer(folder, task, digest, data_mode)
    writer.learn_gradients(calls)
    for call in choose(calls):
        writer.add(call)
    names = {call.order: call.name for call in calls}
    parents = _parents(run, step, rank, names)
    for name in writer.extra:
        parents[name] = None
    data_folder = str(folder / "dump_tensor_data") if task == "tensor" else None
    head = {"task": task, "level": level, "framework": "pytorch", "dump_data_dir": data_folder}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "dump.json", {**head, "data": writer.data if task != "structure" else {}})
    _write(folder / "stack.json", _stacks(calls))
    _write(folder / "construct.json", parents)
    return 3 + writer.files


def _is_wanted(call: StepCall) -> bool:
    return call.kind not in _SKIPPED and not (call.kind == "module" and call.module == "")


def _parents(run: Run, step: int, rank: int, names: dict[int, str]) -> dict[str, str | None]:
    """Return for each call the nearest enclosing call that is written."""
    calls = run.step_tables(step, rank).calls
    above = dict(zip(calls["order"].to_pylist(), calls["parent"].to_pylist()))
    parents: dict[str, str | None] = {}
    for order, name in names.items():
        parent = above.get(order)
        while parent is not None and parent not in names:
            parent = above.get(parent)
        parents[name] = names[parent] if parent is not None else None
    return parents


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def _stacks(calls: list[StepCall]) -> dict[str, list[list[str]]]:
    """Return msprobe's table of stacks: by number, the calls that share a stack and its frames, innermost first."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for call in calls:
        if call.phase != "backward" and call.frames:
            lines = tuple(
                f"File {f['file']}, line {f['line']}, in {f['function']}, \n {f['code']}" for f in reversed(call.frames)
            )
            shared.setdefault(lines, []).append(call.name)
    return {str(number): [names, list(lines)] for number, (lines, names) in enumerate(shared.items())}


class _Writer:
    """Builds dump.json's data, and writes the tensors beside it."""

    def __init__(self, folder: Path, task: str, digest: bool, data_mode: frozenset[str]) -> None:
        self._folder = folder / "dump_tensor_data"
        self._task = task
        self._digest = digest
        self._mode = data_mode
        self._gradients: set[int] = set()  # tensors for which a gradient was seen
        self._counts: dict[str, int] = {}
        self.data: dict[str, dict[str, Json]] = {}
        self.extra: list[str] = []
        self.files = 0

    def learn_gradients(self, calls: list[StepCall]) -> None:
        """Find the tensors that require a gradient: those whose gradient a backward call shows."""
        by_order = {call.order: call for call in calls}
        for call in calls:
            if call.phase != "backward":
                continue
            forward = by_order.get(call.forward) if call.forward is not None else None
            slots = dict(forward.slots) if forward else {}
            for slot, _ in call.slots:
                group, _, tail = slot.partition(".")
                seen = {"input": f"output.{tail}", "output": f"input.{tail}", "parameters_grad": f"parameters.{tail}"}
                tensor = slots.get(seen.get(group, ""))
                if tensor is not None:
                    self._gradients.add(tensor.number)

    def add(self, call: StepCall) -> None:
        """Add one call."""
        if self._mode & {"forward", "backward"} and call.phase not in self._mode:
            return
        if call.phase == "backward":
            self._backward(call)
            return
        groups: dict[str, dict[str, Json]] = {"input": {}, "kwargs": {}, "output": {}, "parameters": {}}
        for slot, tensor in call.slots:
            group, _, tail = slot.partition(".")
            if group in groups and self._shows("output" if group == "output" else "input"):
                groups[group][tail] = self._entry(call.name, slot, tensor)
        arguments = call.arguments
        positional = {**groups["input"], **{key: _plain(value) for key, value in arguments.get("args", {}).items()}}
        named = {**groups["kwargs"], **{key: _plain(value) for key, value in arguments.get("kwargs", {}).items()}}
        entry: dict[str, Json] = {}
        if self._shows("input"):
            entry = {"input_args": _nested(positional), "input_kwargs": _nested_dict(named)}
        if self._shows("output"):
            entry["output"] = _nested(groups["output"])
        if groups["parameters"]:
            entry["parameters"] = groups["parameters"]
        self.data[call.name] = entry

    def _shows(self, group: str) -> bool:
        return not self._mode & {"input", "output"} or group in self._mode

    def _backward(self, call: StepCall) -> None:
        groups: dict[str, dict[str, Json]] = {"input": {}, "output": {}}
        gradients: dict[str, Json] = {}
        head = re.sub(r"\.backward\.\d+$", "", call.name)
        for slot, tensor in call.slots:
            group, _, tail = slot.partition(".")
            if group == "parameters_grad":
                name = f"{head}.parameters_grad.{self._counts.get(head, 0)}"
                gradients[tail] = [self._entry(name, tail, tensor)]
            elif group in groups and self._shows(group):
                if tail.startswith("kwargs."):  # msprobe numbers all gradients, those of named arguments too
                    tail = str(1 + max((int(other.partition(".")[0]) for other in groups[group]), default=-1))
                groups[group][tail] = self._entry(call.name, f"{group}.{tail}", tensor)
        if groups["input"] or groups["output"]:
            self.data[call.name] = {group: _nested(values) for group, values in groups.items() if self._shows(group)}
        if gradients:
            number = self._counts.get(head, 0)
            self._counts[head] = number + 1
            self.data[f"{head}.parameters_grad.{number}"] = gradients
            self.extra.append(f"{head}.parameters_grad.{number}")

    def _entry(self, call: str, slot: str, tensor: StepTensor | None) -> Json:
        if tensor is None:
            return None
        all_elements = tensor.statistics()
        is_bool = tensor.dtype == "bool" and all_elements.max is not None
        entry: dict[str, Json] = {
            "type": "torch.Tensor",
            "dtype": f"torch.{tensor.dtype}",
            "shape": list(tensor.shape),
            "Max": bool(all_elements.max) if is_bool else all_elements.max,
            "Min": bool(all_elements.min) if is_bool else all_elements.min,
            "Mean": None if is_bool else all_elements.mean,
            "Norm": None if is_bool else all_elements.l2,
            "requires_grad": tensor.number in self._gradients,
        }
        if self._digest:
            entry["md5"] = _crc(tensor)
        elif self._task == "tensor":
            entry["data_name"] = self._save(f"{call}.{slot}", tensor)
        return entry

    def _save(self, name: str, tensor: StepTensor) -> str:
        if tensor.load is None:
            return "-1"
        file = re.sub(r"[^\w.\-]", "_", name) + ".pt"
        self._folder.mkdir(parents=True, exist_ok=True)
        torch_file.save(self._folder / file, tensor.load())
        self.files += 1
        return file


def _crc(tensor: StepTensor) -> str:
    """Return the CRC-32 that msprobe calls md5, or the fingerprint's hash where there is no data."""
    if tensor.load is None:
        return f"{tensor.hash:016x}" if tensor.hash is not None else ""
    return f"{zlib.crc32(np.ascontiguousarray(tensor.load()).tobytes()):08x}"


def _plain(value: Json) -> Json:
    """Return a non-tensor argument in msprobe's form: a list item by item, NaN and infinities as numbers."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and list(value) == ["slice"]:
        return {"type": "slice", "value": value["slice"]}
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        value = float(value)
    return {"type": type(value).__name__, "value": value}


def _nested(flat: dict[str, Json]) -> list[Json]:
    """Return {"0": a, "1.0": b, "1.1": c} as [a, [b, c]]; a gap is null, and a key that is no number makes a dict."""
    leaves: dict[str, Json] = {}
    groups: dict[str, dict[str, Json]] = {}
    for key, value in flat.items():
        first, _, rest = key.partition(".")
        if not rest:
            leaves[first] = value
            groups.pop(first, None)
        elif first not in leaves:
            groups.setdefault(first, {})[rest] = value
    if not all(key.isdecimal() for key in (*leaves, *groups)):
        return [_nested_dict(flat)]
    result: list[Json] = []
    for key in sorted((*leaves, *groups), key=int):
        result += [None] * (int(key) - len(result))
        result.append(leaves[key] if key in leaves else _nested(groups[key]))
    return result


def _nested_dict(flat: dict[str, Json]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for key, value in flat.items():
        first, _, rest = key.partition(".")
        inner = result.setdefault(first, {}) if rest else None
        if isinstance(inner, dict):
            inner[rest] = value
        else:
            result[first] = value
    return result
