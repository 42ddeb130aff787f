"""What the modules of a model are made of, as plain JSON: enough to build one again without its constructor.

A module is its class, its children, its parameters and buffers (whose values the calls show), and a few attributes:
numbers, words, functions that can be imported, a configuration object. That is written down once a run, in
`rank0/modules.json`. Nothing is pickled, and what has no plain form is said to have none, by its type.
"""

from __future__ import annotations

import enum
import inspect
import math
import sys
from collections.abc import Container, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from numscope.core.description import FORMAT
from numscope.store.manifest import is_secret

_LONGEST = 512  # items of a list or dict
_DEEPEST = 6
_MOST = 100_000  # values in all: an attribute may lead to half of the program
_LONGEST_WORD = 300
_NOT_OURS = {"_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set"}


def describe(modules: Mapping[str, torch.nn.Module], script: str) -> dict[str, Any]:
    """Return the description of modules by path."""
    return _Describer(modules, script).document()


class _Describer:
    def __init__(self, modules: Mapping[str, torch.nn.Module], script: str) -> None:
        self._modules = modules
        self._script = script
        self._paths = {id(module): path for path, module in modules.items()}
        self._tensors = {
            id(tensor): [path, name]
            for path, module in modules.items()
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
        }
        self._objects: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is one object's only as long as that lives
        self._count = 0

    def document(self) -> dict[str, Any]:
        found = {path: self._module(module) for path, module in self._modules.items()}
        return {"format": FORMAT, "script": self._script, "modules": found, "objects": self._objects}

    def _module(self, module: torch.nn.Module) -> dict[str, Any]:
        own = set(vars(torch.nn.Module())) | _NOT_OURS
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

    def _value(self, value: Any, depth: int = 0) -> Any:
        self._count += 1
        if value is None or type(value) in (bool, int) or (type(value) is str and len(value) <= _LONGEST_WORD):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if depth > _DEEPEST or self._count > _MOST or type(value) is str:
            return {"not": type(value).__name__}
        try:
            return self._structure(value, depth + 1)
        except Exception:  # an object may raise whatever it likes when it is looked at
            return {"not": type(value).__name__}

    def _structure(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.nn.Module):
            path = self._paths.get(id(value))
            return {"module": path} if path is not None else {"not": f"module {type(value).__name__}"}
        if isinstance(value, torch.Tensor):
            place = self._tensors.get(id(value))
            return {"tensor": place} if place else {"not": "tensor that is no parameter and no buffer"}
        if isinstance(value, (torch.dtype, torch.device)):
            kind = "dtype" if isinstance(value, torch.dtype) else "device"
            return {kind: str(value).removeprefix("torch.")}
        if isinstance(value, enum.Enum):
            return {"enum": name_of(type(value)), "name": value.name}
        kinds: dict[Any, str] = {torch.Size: "size", list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
        if type(value) in kinds:
            if len(value) > _LONGEST:
                return {"not": f"{type(value).__name__} of {len(value)} items"}
            return {kinds[type(value)]: [self._value(item, depth) for item in value]}
        if isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
            if len(value) > _LONGEST:
                return {"not": f"dict of {len(value)} items"}
            return {"items": [[self._value(key, depth), self._value(item, depth)] for key, item in value.items()]}
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            name = name_of(value)
            return {"import": name, "file": file_of(value)} if _found(name) is value else {"not": f"function {name}"}
        return self._object(value, depth)

    def _object(self, value: Any, depth: int) -> Any:
        """Return a reference to an object that is nothing but its class and what it has; each is described once."""
        number = self._numbers.get(id(value))
        if number is None:
            if not hasattr(value, "__dict__") or _reduces(type(value)):
                return {"not": type(value).__name__}
            number = self._numbers[id(value)] = len(self._objects)
            self._alive.append(value)
            entry: dict[str, Any] = {"class": name_of(type(value)), "file": file_of(type(value))}
            self._objects.append(entry)
            entry["state"] = self._state(value, depth)
        return {"object": number}

    def _state(self, value: Any, depth: int, leave_out: Container[str] = ()) -> dict[str, Any]:
        return {
            name: {"not": "secret"} if is_secret(name) else self._value(item, depth)
            for name, item in vars(value).items()
            if name not in leave_out
        }


def _reduces(kind: Any) -> bool:
    """Tell whether objects of a class are more than what they have in `__dict__`."""
    return kind.__reduce__ is not object.__reduce__


def name_of(value: Any) -> str:
    """Return where a class or function is imported from: `package.module:Outer.Inner`."""
    return f"{value.__module__}:{value.__qualname__}"


def file_of(value: Any) -> str | None:
    """Return the source file of a class or function, or None where it has none."""
    try:
        return inspect.getsourcefile(value)
    except (TypeError, OSError):
        return None


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
