"""Reads a recorded call back: its torch function, its arguments in their places, and what those are called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from numscope.diagnose.recorded.step_graph import Call, Record

Function = Callable[..., Any]

_NAMESPACES: dict[str, tuple[Any, ...]] = {
    "Functional": (torch.nn.functional, torch._C._nn),
    "Torch": (torch, torch.functional, torch._C._VariableFunctions, torch.nn.init),
    "Tensor": (torch.Tensor,),
    "Linalg": (torch.linalg,),
    "Fft": (torch.fft,),
    "Special": (torch.special,),
    "Sparse": (torch.sparse,),
    "VF": (torch._C._VariableFunctions,),
    "Aten": (torch.ops.aten,),
}
_RANDOM = re.compile(
    r"(^|_)(rand|randn|randint|randperm|bernoulli|multinomial|normal|uniform|exponential|poisson|cauchy|geometric"
    r"|log_normal|random|rrelu|gumbel_softmax|feature_alpha_dropout|trunc_normal|kaiming|xavier|orthogonal)(_|$)"
)
_DROPOUT = re.compile(r"dropout")
_DEVICE = re.compile(r"^(cpu|cuda|npu|xpu|mps|meta|hpu|mlu)(:\d+)?$")
_SPECIAL = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "...": Ellipsis}
_FORMATS = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d", "strided", "sparse_coo"}


_VARIADIC = {"permute", "view", "reshape", "repeat", "expand", "flip", "tile"}  # x.permute(2, 0, 1) or ([2, 0, 1])
NO_DEFAULT = object()


class CannotReplay(Exception):
    """A call can't be replayed; the message says why."""


class Given:
    """Stands in an argument for a recorded tensor."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"Given({self.number})"


@dataclass(frozen=True)
class Invocation:
    """A call that can be made again: tensors stand in it by number."""

    call: Call
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def parameters(self) -> dict[str, Any]:
        """Return what the function's parameters are called, with their defaults, in the form that takes these arguments."""
        return parameters(self.call.head, tuple(map(_kind, self.args)), frozenset(self.kwargs))

    def named(self) -> dict[str, Any]:
        """Return the arguments by name; one whose name is not known has its position for a name."""
        names = tuple(self.parameters())
        found = {names[index] if index < len(names) else str(index): value for index, value in enumerate(self.args)}
        return {**found, **self.kwargs}

    def changed(self, name: str, value: Any) -> Invocation:
        """Return the same invocation with one argument changed."""
        names = tuple(self.parameters())
        if name in names[: len(self.args)]:
            index = names.index(name)
        elif name.isdigit() and int(name) < len(self.args):
            index = int(name)
        else:
            return Invocation(self.call, self.function, self.args, {**self.kwargs, name: value})
        args = (*self.args[:index], value, *self.args[index + 1 :])
        return Invocation(self.call, self.function, args, self.kwargs)

    def without(self, name: str) -> Invocation:
        """Return the same invocation with one argument left out, where that can be."""
        if name in self.kwargs:
            rest = {key: value for key, value in self.kwargs.items() if key != name}
            return Invocation(self.call, self.function, self.args, rest)
        names = tuple(self.parameters())
        if name in names and names.index(name) == len(self.args) - 1:
            return Invocation(self.call, self.function, self.args[:-1], self.kwargs)
        raise CannotReplay(f"{name} can't be left out")


def decode(record: Record, call: Call, random: bool = False) -> Invocation:
    """Return a recorded call as it can be made again, or raise CannotReplay; with `random` one that draws numbers too."""
    if call.kind == "collective":
        raise CannotReplay("it is a collective: its result needs the other ranks")
    if record.run.manifest.get("framework") == "paddle":
        raise CannotReplay("it is Paddle's: torch's calls alone are made again")
    function = function_of(call)
    args, kwargs = arguments_of(record, call)
    if not random:
        _refuse_random(call, args, kwargs)
    if call.op in ("__getitem__", "__setitem__") and len(args) > 1 and isinstance(args[1], list):
        # A tuple and a list are recorded alike; a list of plain numbers alone is tried as a tuple by `replay`.
        args = (args[0], tuple(args[1]), *args[2:])
    if call.op in _VARIADIC and len(args) > 2 and all(isinstance(item, int) for item in args[1:]):
        args = (args[0], list(args[1:]))
    return Invocation(call, function, args, kwargs)


def arguments_of(record: Record, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a call was given, with recorded tensors as `Given`, or raise CannotReplay."""
    given = call.given()
    places: dict[str, Any] = {f"input.{key}": value for key, value in given["args"].items()}
    places |= {f"kwargs.{key}": value for key, value in given["kwargs"].items()}
    places = {key: _value(value, key) for key, value in places.items()}
    for slot, number in record.slots(call.order, "input", "kwargs").items():
        if number is None:
            raise CannotReplay(f"{slot} was not measured ({record.note(call.order, slot)})")
        places[slot] = Given(number)
    tree = _tree(places)
    positional = tree.get("input", {})
    if isinstance(positional, dict) and positional:
        raise CannotReplay("an argument was not recorded")
    args = tuple(positional or ())
    return args, tree.get("kwargs", {})


def function_of(call: Call) -> Function:
    """Return the torch function that a call's name stands for."""
    if call.kind == "module":
        raise CannotReplay("a module is replayed through its recorded calls")
    prefix, _, op = call.head.partition(".")
    if prefix == "Ops":
        namespace, _, name = op.partition(".")
        found = getattr(getattr(torch.ops, namespace), name, None)
        if found is None:
            raise CannotReplay(f"the custom operator {namespace}::{name} is not registered here")
        return found  # type: ignore[no-any-return]
    for namespace_object in _NAMESPACES.get(prefix, ()):
        value = getattr(namespace_object, op, None)
        if inspect.isgetsetdescriptor(value) or isinstance(value, property):
            return _getter(op)
        if callable(value):
            return value  # type: ignore[no-any-return]
    raise CannotReplay(f"{call.head} is no function of torch's own: its code is not in the run")


def _getter(name: str) -> Function:
    def get(tensor: torch.Tensor) -> Any:
        return getattr(tensor, name)

    get.__name__ = name
    return get


def is_random(call: Call) -> bool:
    """Tell whether a call draws random numbers, as far as its name tells."""
    return bool(_RANDOM.search(call.op)) or bool(_DROPOUT.search(call.op))


def _refuse_random(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _RANDOM.search(call.op):
        raise CannotReplay("it draws random numbers")
    if not _DROPOUT.search(call.op) and call.op != "scaled_dot_product_attention":
        return
    named = Invocation(call, len, args, kwargs).named()
    if call.op == "scaled_dot_product_attention":
        if named.get("dropout_p"):
            raise CannotReplay("it draws random numbers")
        return
    training = named.get("training", named.get("train", True))
    if training is not False and named.get("p", 0.5) not in (0, 0.0):
        raise CannotReplay("it draws random numbers")


def _tree(places: dict[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, value in places.items():
        here = root
        *parents, last = path.split(".")
        for part in parents:
            here = here.setdefault(part, {})
            if not isinstance(here, dict):
                raise CannotReplay(f"argument {path} was recorded twice")
        here[last] = value
    return {key: _lists(value, key == "kwargs") for key, value in root.items()}


def _lists(value: Any, is_mapping: bool = False) -> Any:
    """Return a tree in which a mapping whose keys count from 0 is a list."""
    if not isinstance(value, dict):
        return value
    items = {key: _lists(item) for key, item in value.items()}
    if not is_mapping and items and all(key.isdigit() for key in items):
        if sorted(map(int, items)) != list(range(len(items))):
            raise CannotReplay("an argument was not recorded")
        return [items[str(index)] for index in range(len(items))]
    return items


def _value(value: Any, place: str) -> Any:
    """Return a value from its recorded form."""
    if isinstance(value, list):
        if len(value) >= 64:
            raise CannotReplay(f"{place} is a list too long to be recorded whole")
        return [_value(item, place) for item in value]
    if isinstance(value, dict):
        if set(value) == {"slice"}:
            return slice(*(_value(part, place) for part in value["slice"]))
        return {key: _value(item, place) for key, item in value.items()}
    if isinstance(value, str):
        if value in _SPECIAL:
            return _SPECIAL[value]
        if _DEVICE.match(value):
            return torch.device("cpu")
        found = getattr(torch, value, None) if value.isidentifier() else None
        if isinstance(found, torch.dtype) or value in _FORMATS:
            return found
        if value.startswith("<"):
            raise CannotReplay(f"{place.replace('input.', 'argument ')} was {value}, whose value was not recorded")
    return value


# What a value can be given for, by the names that schemas have for types.
_TAKEN = {
    "tensor": {"Tensor", "number"},
    "bool": {"bool", "number"},
    "int": {"int", "float", "number", "List[int]", "List[float]"},
    "float": {"float", "number", "List[float]"},
    "complex": {"complex", "number"},
    "str": {"str"},
    "dtype": {"int"},
    "list": {"List[int]", "List[float]", "List[bool]", "List[number]"},
    "tensors": {"List[Tensor]", "List[Optional[Tensor]]"},
}


def _kind(value: Any) -> str:
    """Return what kind of thing an argument is, as far as it tells which form of a function takes it."""
    if isinstance(value, (list, tuple)):
        return "tensors" if any(isinstance(item, Given) for item in value) else "list"
    if isinstance(value, Given):
        return "tensor"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return "dtype"
    return "none" if value is None else type(value).__name__


@cache
def parameters(head: str, kinds: tuple[str, ...], keywords: frozenset[str]) -> dict[str, Any]:
    """Return the parameters of a torch function, by name in order, with their defaults; NO_DEFAULT where there is none.

    Of its forms the one that takes such arguments: `var(x, -1)` is given an axis, `var(x, True)` is told to be unbiased.
    """
    prefix, _, op = head.partition(".")
    for namespace in _NAMESPACES.get(prefix, ()):
        function = getattr(namespace, op, None)
        if function is not None and inspect.isfunction(function):
            found = _signature(function)
            if found:
                return found
    plain = op.strip("_") if op.startswith("__") else op
    candidates = []
    for name in (op, plain, _OPERATORS.get(plain, plain)):
        for namespace_name in ("aten", "prims"):
            try:
                candidates += torch._C._jit_get_schemas_for_operator(f"{namespace_name}::{name}")
            except RuntimeError:
                continue
    enough = [
        schema
        for schema in candidates
        if sum(not argument.kwarg_only for argument in schema.arguments) >= len(kinds)
        and "out" not in schema.overload_name
    ]
    chosen = next((schema for schema in enough if _takes(schema, kinds, keywords)), enough[0] if enough else None)
    return {
        argument.name: argument.default_value if argument.has_default_value() else NO_DEFAULT
        for argument in (chosen.arguments if chosen is not None else ())
    }


def _takes(schema: Any, kinds: tuple[str, ...], keywords: frozenset[str]) -> bool:
    """Tell whether one form of a function takes arguments of these kinds, and these named ones."""
    rest = {argument.name for argument in schema.arguments[len(kinds) :]}
    missing = {a.name for a in schema.arguments[len(kinds) :] if not a.has_default_value()}
    if not missing <= keywords <= rest:
        return False
    for kind, argument in zip(kinds, schema.arguments):
        wanted = str(argument.type)
        if wanted.startswith("Optional["):
            wanted = wanted[len("Optional[") : -1]
            if kind == "none":
                continue
        if wanted not in _TAKEN.get(kind, ()):
            return False
    return True


def _signature(function: Function) -> dict[str, Any]:
    try:
        listed = inspect.signature(function).parameters.values()
    except ValueError:  # a wrapper of a builtin
        return {}
    return {
        p.name: NO_DEFAULT if p.default is p.empty else p.default for p in listed if p.kind is p.POSITIONAL_OR_KEYWORD
    }


_OPERATORS = {"truediv": "div", "rmul": "mul", "radd": "add", "rsub": "rsub", "iadd": "add_", "imul": "mul_"}
