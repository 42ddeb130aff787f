"""The description of a model's modules as plain JSON: enough to build a module again without its constructor.

A module is its class, its children, its parameters and buffers (whose values the calls show), and its attributes:
numbers, texts, functions that can be imported, configuration objects. The description is written once a run, to
`rank0/modules.json` (its format: `core/job_files/modules.py`). Nothing is pickled; a value without a plain form is named by its
type.
"""

from __future__ import annotations

import enum
import inspect
import math
import sys
from collections.abc import Collection, Container, Mapping
from types import BuiltinFunctionType, FunctionType

import torch

from numscope.core.job_files.modules import FORMAT
from numscope.core.json_value import Json
from numscope.store.manifest import is_secret

_LONGEST = 512  # items of a list or dict
_DEEPEST = 6
_MOST = 100_000  # values in all: an attribute may lead to half of the program
_LONGEST_TEXT = 300
_SEQUENCES: dict[type, str] = {torch.Size: "size", list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_OF_TORCH = {"_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"}

Importable = type | FunctionType | BuiltinFunctionType


def describe(modules: Mapping[str, torch.nn.Module], script: str) -> dict[str, Json]:
    """Return the description of the modules, by path."""
    return _Describer(modules, script).document()


class _Describer:
    def __init__(self, modules: Mapping[str, torch.nn.Module], script: str) -> None:
        self._modules = modules
        self._script = script
        self._paths = {id(module): path for path, module in modules.items()}
        self._tensors: dict[int, Json] = {
            id(tensor): [path, name]
            for path, module in modules.items()
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
        }
        self._objects: list[Json] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []  # an id belongs to an object only as long as that lives
        self._count = 0

    def document(self) -> dict[str, Json]:
        modules: dict[str, Json] = {path: self._module(module) for path, module in self._modules.items()}
        return {"format": FORMAT, "script": self._script, "modules": modules, "objects": self._objects}

    def _module(self, module: torch.nn.Module) -> Json:
        own = set(vars(torch.nn.Module())) | _OF_TORCH
        return {
            "class": name_of(type(module)),
            "file": file_of(type(module)),
            "training": module.training,
            "children": {name: self._paths.get(id(child)) for name, child in module._modules.items()},
            "parameters": {name: value is not None for name, value in module._parameters.items()},
            "buffers": {name: value is not None for name, value in module._buffers.items()},
            "hooks": len(module._forward_hooks) + len(module._forward_pre_hooks),
            "attributes": self._state(module, 0, own),
        }

    def _value(self, value: object, depth: int = 0) -> Json:
        self._count += 1
        if value is None or type(value) is bool or type(value) is int:
            return value
        if type(value) is str and len(value) <= _LONGEST_TEXT:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if depth > _DEEPEST or self._count > _MOST or type(value) is str:
            return {"not": type(value).__name__}
        try:
            return self._structure(value, depth + 1)
        except Exception:  # an attribute of an object may raise anything
            return {"not": type(value).__name__}

    def _structure(self, value: object, depth: int) -> Json:
        if isinstance(value, torch.nn.Module):
            path = self._paths.get(id(value))
            return {"module": path} if path is not None else {"not": f"module {type(value).__name__}"}
        if isinstance(value, torch.Tensor):
            state = self._tensors.get(id(value))
            return {"tensor": state} if state else {"not": "tensor that is no parameter and no buffer"}
        if isinstance(value, (torch.dtype, torch.device)):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if isinstance(value, enum.Enum):
            return {"enum": name_of(type(value)), "name": value.name}
        kind = _SEQUENCES.get(type(value))
        if kind is not None and isinstance(value, Collection):
            if len(value) > _LONGEST:
                return {"not": f"{type(value).__name__} of {len(value)} items"}
            return {kind: [self._value(item, depth) for item in value]}
        if isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
            if len(value) > _LONGEST:
                return {"not": f"dict of {len(value)} items"}
            return {"items": [[self._value(key, depth), self._value(item, depth)] for key, item in value.items()]}
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            name = name_of(value)
            return {"import": name, "file": file_of(value)} if _imported(name) is value else {"not": f"function {name}"}
        return self._object(value, depth)

    def _object(self, value: object, depth: int) -> Json:
        """Return a reference to an object that consists of its class and `__dict__` alone; each is described once."""
        number = self._numbers.get(id(value))
        if number is None:
            if not hasattr(value, "__dict__") or _reduces(type(value)):
                return {"not": type(value).__name__}
            number = self._numbers[id(value)] = len(self._objects)
            self._alive.append(value)
            entry: dict[str, Json] = {"class": name_of(type(value)), "file": file_of(type(value))}
            self._objects.append(entry)
            entry["state"] = self._state(value, depth)
        return {"object": number}

    def _state(self, value: object, depth: int, leave_out: Container[str] = ()) -> dict[str, Json]:
        return {
            name: {"not": "secret"} if is_secret(name) else self._value(item, depth)
            for name, item in vars(value).items()
            if name not in leave_out
        }


def _reduces(kind: type) -> bool:
    """Tell whether objects of a class hold more than their `__dict__`."""
    return kind.__reduce__ is not object.__reduce__  # type: ignore[comparison-overlap]


def name_of(value: Importable) -> str:
    """Return where a class or function is imported from: `package.module:Outer.Inner`."""
    return f"{value.__module__}:{value.__qualname__}"


def file_of(value: Importable) -> str | None:
    """Return the source file of a class or function, or None where it has none."""
    try:
        return inspect.getsourcefile(value)
    except (TypeError, OSError):
        return None


def _imported(name: str) -> object:
    """Return the object of a name that `name_of` returned, or None where the name leads to none."""
    module, _, path = name.partition(":")
    value: object = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
