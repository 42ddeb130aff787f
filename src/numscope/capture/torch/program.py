"""A job in torch as a program: attributes of modules, configurations, sources (format: `core/job_files/program.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from numscope.capture.sites import Frame
from numscope.capture.source_texts import packages, source_texts
from numscope.capture.torch.module_description import name_of
from numscope.core.job_files.program import FORMAT, ModuleValues, ObjectValues, Program, Value
from numscope.store.manifest import is_secret

_LONGEST_TEXT = 200
_LONGEST_LIST = 16
_MOST_VALUES = 200  # of an object
_MOST_MODULES = 20_000
_UNKNOWN = object()


class Attributes:
    """The plain attributes of modules and of the configuration objects they hold, as they were when last looked at.

    Modules may be gone when a step ends, so that they are looked at when they get their paths, too.
    """

    def __init__(self) -> None:
        self.modules: dict[str, ModuleValues] = {}
        self.objects: list[ObjectValues] = []
        self.kinds: dict[type, None] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []  # an id belongs to an object only as long as that lives
        self._own = set(vars(torch.nn.Module()))

    def add(self, path: str, module: torch.nn.Module) -> None:
        """Look at a module."""
        if len(self.modules) >= _MOST_MODULES and path not in self.modules:
            return
        self.kinds[type(module)] = None
        holds: dict[str, int] = {}
        attributes = {name: value for name, value in vars(module).items() if name not in self._own}
        for name, value in attributes.items():
            if not _is_configuration(value):
                continue
            number = self._numbers.setdefault(id(value), len(self.objects))
            if number == len(self.objects):
                self._alive.append(value)
                self.kinds[type(value)] = None
                self.objects.append({"class_name": name_of(type(value)), "values": {}})
            self.objects[number]["values"] = _values(vars(value))
            holds[name] = number
        self.modules[path] = {
            "class_name": name_of(type(module)),
            "values": _values(attributes),
            "objects": holds,
        }


def attributes_of(optimizer: torch.optim.Optimizer) -> dict[str, Value]:
    """Return what `self.name` is in the step of an optimizer that is not torch's: its own attributes, and its classes'."""
    found: dict[str, object] = {}
    for kind in type(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim"):
            break
        for name, value in vars(kind).items():
            if not name.startswith("_"):
                found.setdefault(name, value)
    return _values({**found, **vars(optimizer)})


def program(attributes: Attributes, optimizers: Mapping[type, dict[str, Value]], frames: Iterable[Frame]) -> Program:
    """Return the program of a run."""
    kinds = {**attributes.kinds, **dict.fromkeys(optimizers)}
    return {
        "format": FORMAT,
        "modules": attributes.modules,
        "objects": attributes.objects,
        "optimizers": [name_of(kind) for kind in optimizers],
        "optimizer_values": {kind.__name__: values for kind, values in optimizers.items() if values},
        "sources": source_texts(frames, kinds),
        "packages": packages(kinds),
    }


def _is_configuration(value: object) -> bool:
    """Return whether an attribute is an object that holds values: not a module, a tensor, a function or a class."""
    plain = not isinstance(value, (torch.nn.Module, torch.Tensor, type)) and not callable(value)
    return (
        plain and type(value).__module__ not in ("builtins", "collections") and bool(getattr(value, "__dict__", None))
    )


def _values(attributes: Mapping[str, object]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in list(attributes.items())[:_MOST_VALUES]:
        plain = _plain(value)
        if plain is not _UNKNOWN and not is_secret(name):
            found[name] = plain  # type: ignore[assignment]
    return found


def _plain(value: object) -> object:
    """Return a value as JSON has it, or `_UNKNOWN`."""
    if value is None or type(value) in (bool, int) or (type(value) is str and len(value) <= _LONGEST_TEXT):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if type(value) in (list, tuple) and len(value) <= _LONGEST_LIST:  # type: ignore[arg-type]
        items = [_plain(item) for item in value]  # type: ignore[attr-defined]
        return _UNKNOWN if any(item is _UNKNOWN for item in items) else items
    if type(value) is dict and len(value) <= _LONGEST_LIST:
        pairs = {key: _plain(item) for key, item in value.items() if type(key) is str and not is_secret(key)}
        return _UNKNOWN if len(pairs) < len(value) or any(item is _UNKNOWN for item in pairs.values()) else pairs
    return _UNKNOWN
