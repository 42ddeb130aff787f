"""The program of a run in torch: modules' plain attributes, configuration objects, sources (format: `core/program.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from numscope.capture.sites import Frame
from numscope.capture.source_texts import packages, source_texts
from numscope.capture.torch.module_description import name_of
from numscope.core.program import FORMAT, ModuleValues, ObjectValues, Program, Value
from numscope.store.manifest import is_secret

_LONGEST_TEXT = 200
_LONGEST_LIST = 16
_MOST_VALUES = 200  # of an object
_MOST_MODULES = 20_000
_UNKNOWN = object()


def program(modules: Mapping[str, torch.nn.Module], optimizers: Iterable[type], frames: Iterable[Frame]) -> Program:
    """Return the program of a run, from what is alive when its first step ends."""
    described: dict[str, ModuleValues] = {}
    objects: list[ObjectValues] = []
    numbers: dict[int, int] = {}
    kinds: dict[type, None] = dict.fromkeys(optimizers)
    optimizer_names = [name_of(kind) for kind in kinds]
    own = set(vars(torch.nn.Module()))
    for path, module in list(modules.items())[:_MOST_MODULES]:
        kinds[type(module)] = None
        holds: dict[str, int] = {}
        for name, value in vars(module).items():
            if name not in own and _is_configuration(value):
                if id(value) not in numbers:
                    numbers[id(value)] = len(objects)
                    objects.append({"class_name": name_of(type(value)), "values": _values(vars(value))})
                    kinds[type(value)] = None
                holds[name] = numbers[id(value)]
        values = _values({name: value for name, value in vars(module).items() if name not in own})
        described[path] = {"class_name": name_of(type(module)), "values": values, "objects": holds}
    return {
        "format": FORMAT,
        "modules": described,
        "objects": objects,
        "optimizers": optimizer_names,
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
    return _UNKNOWN
