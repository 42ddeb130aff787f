"""Finds what `to_cpu` reroutes: torch functions, modules, or Python functions and where they are bound."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch

from numscope.core.errors import SettingsError
from numscope.core.names import parse_call
from numscope.diagnose.intervene.reroute_patterns import Pattern

_NAMESPACES: dict[str, tuple[object, ...]] = {
    "Functional": (torch.nn.functional, torch._C._nn),
    "Torch": (torch, torch.functional),
    "Tensor": (torch.Tensor,),
    "Linalg": (torch.linalg,),
    "Fft": (torch.fft,),
    "Special": (torch.special,),
    "Sparse": (torch.sparse,),
    "VF": (torch._C._VariableFunctions,),
}
_DOTTED: tuple[tuple[str, object], ...] = (
    ("torch.nn.functional", torch.nn.functional),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
    ("torch.Tensor", torch.Tensor),
    ("torch", torch),
)


@dataclass(frozen=True)
class Binding:
    """One name that a Python function is bound to: a module's global, or a class's attribute."""

    owner: object
    name: str
    value: object
    wanted: str = ""  # as whose target it was found


@dataclass
class Targets:
    """All that one `to_cpu` reroutes."""

    functions: dict[Callable[..., object], str] = field(default_factory=dict)  # torch functions, and as what
    modules: list[torch.nn.Module] = field(default_factory=list)
    patterns: list[Pattern] = field(default_factory=list)  # of operators and modules, known when they are called
    bindings: list[Binding] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)  # functions of the script, which has not defined them yet


def find(what: object) -> Targets:
    """Return the targets that a function, module, name, pattern or list of them stands for."""
    targets = Targets()
    items = what if isinstance(what, (list, tuple)) and not callable(what) else [what]
    for item in items:
        if isinstance(item, str):
            _find_name(item, targets)
        elif isinstance(item, torch.nn.Module):
            targets.modules.append(item)
        elif callable(item):
            _find_callable(item, targets, "")
        else:
            raise SettingsError(f"to_cpu({item!r}): give a function, a module, or a name")
    return targets


def torch_functions(head: str) -> list[Callable[..., object]]:
    """Return the torch functions that a call's head names: `Functional.softmax`."""
    prefix, _, op = head.partition(".")
    found = []
    for namespace in _NAMESPACES.get(prefix, ()):
        value = getattr(namespace, op, None)
        if callable(value) and not isinstance(value, type):
            found.append(value)
    return found


def _find_callable(function: Callable[..., object], targets: Targets, wanted: str) -> None:
    if _is_torch(function):
        targets.functions[function] = wanted
        return
    bound = getattr(function, "__self__", None)
    if isinstance(bound, torch.nn.Module) and getattr(function, "__name__", "") in ("forward", "__call__"):
        targets.modules.append(bound)
        return
    bindings = list(_bindings(function))
    if not bindings:
        name = getattr(function, "__qualname__", repr(function))
        raise SettingsError(
            f"to_cpu({name}): no module or class holds it, so it can't be rerouted from outside; "
            f"call it as ns.to_cpu({name})(…)"
        )
    targets.bindings.extend(replace(binding, wanted=wanted) for binding in bindings)


def _find_name(name: str, targets: Targets) -> None:
    if any(mark in name for mark in "*?[") or name.startswith("/"):
        targets.functions.update(dict.fromkeys(_matching(name), name))
        targets.patterns.append(Pattern(name))
        return
    if functions := torch_functions(name):
        targets.functions.update(dict.fromkeys(functions, name))
        return
    found = _resolve(name)
    is_torchs = name.partition(".")[0] in ("torch", *_NAMESPACES)
    if found is None and name.startswith("__main__."):
        targets.pending.append(name)
    elif found is None and is_torchs and not _is_call_of_torchs(name):
        raise SettingsError(f"to_cpu({name!r}): torch has no function of that name{_near(name)}")
    elif found is None:
        targets.patterns.append(Pattern(name))  # known only when the model runs
    elif isinstance(found, type) and issubclass(found, torch.nn.Module):
        targets.bindings.append(Binding(found, "forward", found.forward, name))
    else:
        _find_callable(found, targets, name)


def _is_call_of_torchs(name: str) -> bool:
    """Tell whether a name is that of a call, or of a tensor of it, of a function that torch has."""
    parts = parse_call(".".join(name.split(".")[:4]))
    return parts is not None and bool(torch_functions(f"{parts.prefix}.{parts.op}"))


def _near(name: str) -> str:
    """Return a hint at the most similar name in the namespace of a name that does not exist; empty where there is none."""
    home, _, last = name.rpartition(".")
    spaces = [space for dotted, space in _DOTTED if dotted == home] or list(_NAMESPACES.get(home, ()))
    near = difflib.get_close_matches(last, [item for space in spaces for item in dir(space)], 1)
    return f": did you mean {home}.{near[0]}?" if near and near[0] != last else ""


def _matching(pattern: str) -> Iterable[Callable[..., object]]:
    """Yield the torch functions whose dotted Python name matches a pattern."""
    for dotted, namespace in _DOTTED:
        if pattern.startswith(f"{dotted}."):
            yield from _members(namespace, pattern.removeprefix(f"{dotted}."))
            return


def _members(namespace: object, pattern: str) -> Iterable[Callable[..., object]]:
    for name in fnmatch.filter(dir(namespace), pattern):
        value = getattr(namespace, name, None)
        if not name.startswith("_") and callable(value) and not isinstance(value, type) and _is_torch(value):
            yield value


def _resolve(name: str) -> Callable[..., object] | None:
    """Return the callable that a dotted name leads to, importing the longest part of it that is a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = _module(".".join(parts[:length]))
        if module is None:
            continue
        value: object = module
        for part in parts[length:]:
            value = getattr(value, part, None)
            if value is None:
                break
        else:
            return value if callable(value) else None
    return None


def _module(name: str) -> types.ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _is_torch(function: object) -> bool:
    """Tell whether a torch function mode sees the calls of this callable."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    module = str(getattr(function, "__module__", "") or getattr(function, "__objclass__", ""))
    if isinstance(function, types.FunctionType):
        return module.partition(".")[0] == "torch" and any(
            name.startswith("has_torch_function") for name in function.__code__.co_names
        )
    return callable(function) and any(
        getattr(namespace, getattr(function, "__name__", ""), None) is function
        for namespaces in _NAMESPACES.values()
        for namespace in namespaces
    )


def _bindings(function: object) -> Iterable[Binding]:
    """Yield every binding of a Python function: globals of modules, and attributes of the classes among them."""
    seen: set[tuple[int, str]] = set()
    home = getattr(function, "__module__", None)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(module, types.ModuleType) or not names:
            continue
        for name, value in list(names.items()):
            if value is function:
                yield Binding(module, name, value)
            elif issubclass(type(value), type) and vars(value).get("__module__") == home:
                for attribute, member in list(vars(value).items()):
                    plain = getattr(member, "__func__", member)
                    if (plain is function or member is function) and (id(value), attribute) not in seen:
                        seen.add((id(value), attribute))
                        yield Binding(value, attribute, member)
