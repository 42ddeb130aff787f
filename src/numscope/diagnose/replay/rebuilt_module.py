"""Builds a recorded module again: its class comes from the job's code, everything else from the run.

The constructor is not called, because its arguments are not known, and it may load files or draw numbers. The module gets
the children, attributes, parameters and buffers that the run recorded. `module_replay` uses it only if it gives the
recorded output.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from numscope.core.errors import RunError
from numscope.core.job_files.modules import FILE, FORMAT, ModuleEntry, ObjectEntry
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.replay.calls import operator_errors
from numscope.diagnose.replay.job_code import CodeOrigin, JobCode
from numscope.store.reader import Run
from numscope.store.rundir import read_document

T = TypeVar("T")


class StateName(NamedTuple):
    """The name of a parameter or buffer: the path of its module, and its name there."""

    path: str
    name: str


class RecordedModules:
    """The descriptions of a run's modules on one rank, and the job's code that has their classes."""

    def __init__(self, run: Run, rank: int) -> None:
        try:
            document = read_document(Path(run.path) / f"rank{rank}", FILE)
        except RunError as error:
            raise CannotReplay(str(error)) from error
        if document is None:
            raise CannotReplay("the run does not say what its modules are made of")
        if document.get("format") != FORMAT:
            raise CannotReplay(f"{FILE} has the format {document.get('format')!r}: this numscope reads {FORMAT}")
        self.modules: dict[str, ModuleEntry] = document["modules"]
        self.objects: list[ObjectEntry] = document["objects"]
        self.code = JobCode(document["script"], run.manifest.get("argv") or (), Path(run.path))

    def tree(self, path: str) -> Iterator[str]:
        """Yield the paths of a module and of everything below it, each once."""
        waiting, seen = [path], set[str]()
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            yield here
            waiting += [child for child in self.entry(here)["children"].values() if child is not None]

    def code_origin(self, path: str) -> CodeOrigin:
        """Return where a module's class comes from."""
        entry = self.entry(path)
        return self.code.origin_of(entry["class"], entry["file"])

    def entry(self, path: str) -> ModuleEntry:
        """Return the description of a module, or raise CannotReplay."""
        if path not in self.modules:
            raise CannotReplay(f"the run does not say what {path or 'the model'} is made of")
        return self.modules[path]

    def build(self, path: str, tensor: Callable[[str, str], torch.Tensor]) -> torch.nn.Module:
        """Return a module; `tensor` gives the parameter or buffer of a path and a name."""
        return _Builder(self, tensor).module(path)


class _Builder:
    def __init__(self, recorded: RecordedModules, tensor: Callable[[str, str], torch.Tensor]) -> None:
        self._recorded = recorded
        self._tensor = tensor
        self._modules: dict[str, torch.nn.Module] = {}
        self._objects: dict[int, object] = {}
        self._parameters: dict[int, torch.nn.Parameter] = {}  # by the id of the tensor: tied ones stay one

    def module(self, path: str) -> torch.nn.Module:
        if path in self._modules:
            return self._modules[path]
        entry = self._recorded.entry(path)
        kind = self._recorded.code.find(entry["class"], entry["file"])
        if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
            raise CannotReplay(f"{entry['class']} is no module class")
        made = _new(kind)
        torch.nn.Module.__init__(made)
        self._modules[path] = made
        made.training = entry["training"]
        for name, there in entry["parameters"].items():
            made._parameters[name] = self._parameter(self._tensor(path, name)) if there else None
        for name, there in entry["buffers"].items():
            made._buffers[name] = self._tensor(path, name) if there else None
        for name, child in entry["children"].items():
            made._modules[name] = None if child is None else self.module(child)
        for name, value in entry["attributes"].items():
            if not _is_lost(value):
                vars(made)[name] = self.value(value)
        return made

    def _parameter(self, value: torch.Tensor) -> torch.nn.Parameter:
        if id(value) not in self._parameters:
            self._parameters[id(value)] = torch.nn.Parameter(value, value.is_floating_point())
        return self._parameters[id(value)]

    def value(self, value: object) -> object:
        """Return a value from its description."""
        if not isinstance(value, dict):
            return value
        kind, content = next(iter(value.items()))
        if kind in _PLAIN:
            return _PLAIN[kind](content)
        if kind in _SEQUENCES:
            return _SEQUENCES[kind]([self.value(item) for item in content])
        if kind == "items":
            return {self.value(key): self.value(item) for key, item in content}
        if kind == "module":
            return self.module(content)
        if kind == "tensor":
            path, name = content
            owner = self.module(path)
            return owner._parameters.get(name, owner._buffers.get(name))
        if kind == "import":
            return self._recorded.code.find(content, value.get("file"))
        if kind == "enum":
            members = self._recorded.code.find(content, None)
            if (
                not (isinstance(members, type) and issubclass(members, enum.Enum))
                or value["name"] not in members.__members__
            ):
                raise CannotReplay(f"{content} has no {value['name']}")
            return members.__members__[value["name"]]
        if kind == "object":
            return self._object(content)
        raise CannotReplay(f"a {content} has no plain form")

    def _object(self, number: int) -> object:
        if number not in self._objects:
            entry = self._recorded.objects[number]
            kind = self._recorded.code.find(entry["class"], entry["file"])
            if not isinstance(kind, type):
                raise CannotReplay(f"{entry['class']} is no class")
            made: object = _new(kind)
            self._objects[number] = made
            for name, value in entry["state"].items():
                if not _is_lost(value):
                    vars(made)[name] = self.value(value)
        return self._objects[number]


def _new(kind: type[T]) -> T:
    """Return an instance without calling its constructor."""
    with operator_errors():
        return kind.__new__(kind)


_SEQUENCES: dict[str, Callable[[list[Any]], object]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_PLAIN: dict[str, Callable[[str], object]] = {
    "float": float,
    "dtype": lambda name: getattr(torch, name),
    "device": lambda name: torch.device("cpu"),
}


def _is_lost(value: object) -> bool:
    """Tell whether a value, or a part of it, could not be recorded; the rebuilt module then lacks the attribute."""
    if isinstance(value, dict):
        return "not" in value or any(map(_is_lost, value.values()))
    return isinstance(value, list) and any(map(_is_lost, value))


def lost_attributes(entry: ModuleEntry) -> dict[str, str]:
    """Return the attributes of a module that could not be recorded, with their kinds in words."""
    return {name: _word(value) for name, value in entry["attributes"].items() if _is_lost(value)}


def _word(value: object) -> str:
    return str(value["not"]) if isinstance(value, dict) and "not" in value else "structure that holds more than values"


def state_numbers(graph: StepGraph, paths: list[str], order: int) -> dict[StateName, int]:
    """Return the tensor that each parameter and buffer below a module had when the module was called."""
    found: dict[StateName, int] = {}
    found_after: set[StateName] = set()
    wanted = set(paths)
    for call in graph.calls.values():
        if call.kind == "module" and call.phase == "forward" and call.module in wanted and not call.recompute:
            for slot, number in graph.slots(call.order, "parameters", "buffers").items():
                _, _, name = slot.partition(".")
                key = StateName(call.module, name)
                # Taken from the first call at or after this one, else from the last call before it.
                if number is not None and key not in found_after:
                    found[key] = number
                    if call.order >= order:
                        found_after.add(key)
    for call in graph.calls.values():
        if call.kind == "optimizer":  # parameters of modules that are never called themselves
            for slot, number in graph.slots(call.order, "parameters").items():
                path, _, name = slot.removeprefix("parameters.").rpartition(".")
                if number is not None and path in wanted:
                    found.setdefault(StateName(path, name), number)
    return found
