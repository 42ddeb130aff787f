"""Turns a recorded call back into a torch function with its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from numscope.capture.arguments import LONGEST
from numscope.core.errors import NumscopeError
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph

Function = Callable[..., object]

_NAMESPACES: dict[str, tuple[object, ...]] = {
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
_SPELLED_OUT = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "...": Ellipsis}
_MEMORY_FORMATS = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d", "strided", "sparse_coo"}

_VARIADIC = {"permute", "view", "reshape", "repeat", "expand", "flip", "tile"}  # x.permute(2, 0, 1) or ([2, 0, 1])
NO_DEFAULT = object()


class CannotReplay(NumscopeError):
    """A call can't be replayed; the message says why."""


class TensorRef:
    """The number of a recorded tensor, in the place of the tensor among a call's arguments.

    It is a leaf of the arguments' tree, so it must not be a dataclass.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorRef) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"TensorRef({self.number})"


def holds_tensor(value: object) -> bool:
    """Tell whether an argument is, or holds, a recorded tensor."""
    if isinstance(value, (list, tuple)):
        return any(holds_tensor(item) for item in value)
    return isinstance(value, TensorRef)


@dataclass(frozen=True)
class Invocation:
    """A call that can be made again; recorded tensors are `TensorRef`s in it."""

    call: RecordedCall
    function: Function
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def parameters(self) -> dict[str, object]:
        """Return the names and defaults of the function's parameters, of the overload that takes these arguments."""
        return parameters(self.call.head, tuple(map(_kind, self.args)), frozenset(self.kwargs))

    def named(self) -> dict[str, object]:
        """Return the arguments by name, or by position where the name is not known."""
        names = tuple(self.parameters())
        found = {names[index] if index < len(names) else str(index): value for index, value in enumerate(self.args)}
        return {**found, **self.kwargs}

    def with_defaults(self) -> dict[str, object]:
        """Return the arguments by name, with defaults filled in where they are known."""
        named = self.named()
        for name, default in self.parameters().items():
            if default is not NO_DEFAULT:
                named.setdefault(name, default)
        return named

    def changed(self, name: str, value: object) -> Invocation:
        """Return the invocation with one argument changed."""
        names = tuple(self.parameters())
        if name in names[: len(self.args)]:
            index = names.index(name)
        elif name.isdecimal() and int(name) < len(self.args):
            index = int(name)
        else:
            return Invocation(self.call, self.function, self.args, {**self.kwargs, name: value})
        args = (*self.args[:index], value, *self.args[index + 1 :])
        return Invocation(self.call, self.function, args, self.kwargs)

    def without(self, name: str) -> Invocation:
        """Return the invocation with one argument left out, or raise CannotReplay."""
        if name in self.kwargs:
            rest = {key: value for key, value in self.kwargs.items() if key != name}
            return Invocation(self.call, self.function, self.args, rest)
        names = tuple(self.parameters())
        if name in names and names.index(name) == len(self.args) - 1:
            return Invocation(self.call, self.function, self.args[:-1], self.kwargs)
        raise CannotReplay(f"{name} can't be left out")


def invocation_of(graph: StepGraph, call: RecordedCall, allow_random: bool = False) -> Invocation:
    """Return a recorded call as an invocation, or raise CannotReplay."""
    if call.kind == "collective":
        raise CannotReplay("it is a collective: its result needs the other ranks")
    if graph.run.manifest.get("framework") == "paddle":
        raise CannotReplay("it is Paddle's: torch's calls alone are made again")
    function = function_of(call)
    args, kwargs = arguments_of(graph, call)
    if not allow_random:
        _refuse_random(call, args, kwargs)
    if call.op in ("__getitem__", "__setitem__") and len(args) > 1:
        tensor, index, *rest = args
        if isinstance(index, list):  # a tuple and a list are recorded alike: `replay` tries a tuple, and then a list
            args = (tensor, tuple(index), *rest)
    if call.op in _VARIADIC and len(args) > 2:
        tensor, *sizes = args
        if all(isinstance(size, int) for size in sizes):
            args = (tensor, sizes)
    return Invocation(call, function, args, kwargs)


def arguments_of(graph: StepGraph, call: RecordedCall) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional and named arguments of a call, with recorded tensors as `TensorRef`, or raise CannotReplay."""
    plain = call.plain_arguments()
    recorded = {f"input.{key}": value for key, value in plain.args.items()}
    recorded |= {f"kwargs.{key}": value for key, value in plain.kwargs.items()}
    places = {place: _parsed(value, place) for place, value in recorded.items()}
    for slot, number in graph.slots(call.order, "input", "kwargs").items():
        if number is None:
            raise CannotReplay(f"{slot} was not measured ({graph.note(call.order, slot)})")
        places[slot] = TensorRef(number)
    tree = _nested(places)
    positional, named = tree.get("input") or [], tree.get("kwargs") or {}
    if not isinstance(positional, list) or not isinstance(named, dict):
        raise CannotReplay("an argument was not recorded")
    return tuple(positional), named


def function_of(call: RecordedCall) -> Function:
    """Return the torch function that a call's name stands for, or raise CannotReplay."""
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
    def get(tensor: torch.Tensor) -> object:
        return getattr(tensor, name)

    get.__name__ = name
    return get


def is_random(call: RecordedCall) -> bool:
    """Tell from its name whether a call may draw random numbers."""
    return bool(_RANDOM.search(call.op)) or bool(_DROPOUT.search(call.op))


def _refuse_random(call: RecordedCall, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Raise CannotReplay where a call with these arguments draws random numbers."""
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


def _nested(places: Mapping[str, object]) -> dict[str, object]:
    """Return arguments by dotted path as nested dictionaries and lists."""
    root: dict[str, object] = {}
    for path, value in places.items():
        here = root
        *parents, last = path.split(".")
        for part in parents:
            inner = here.setdefault(part, {})
            if not isinstance(inner, dict):
                raise CannotReplay(f"argument {path} was recorded twice")
            here = inner
        here[last] = value
    return {key: _with_lists(value, key == "kwargs") for key, value in root.items()}


def _with_lists(value: object, is_mapping: bool = False) -> object:
    """Return a tree in which a dictionary whose keys count from 0 is a list."""
    if not isinstance(value, dict):
        return value
    items = {key: _with_lists(item) for key, item in value.items()}
    if not is_mapping and items and all(key.isdecimal() for key in items):
        if sorted(map(int, items)) != list(range(len(items))):
            raise CannotReplay("an argument was not recorded")
        return [items[str(index)] for index in range(len(items))]
    return items


def _parsed(value: object, place: str) -> object:
    """Return a value from its recorded form."""
    if isinstance(value, list):
        if len(value) >= LONGEST:
            raise CannotReplay(f"{place} is a list too long to be recorded whole")
        return [_parsed(item, place) for item in value]
    if isinstance(value, dict):
        if set(value) == {"slice"}:
            return slice(*(_parsed(part, place) for part in value["slice"]))
        return {key: _parsed(item, place) for key, item in value.items()}
    if isinstance(value, str):
        if value in _SPELLED_OUT:
            return _SPELLED_OUT[value]
        if _DEVICE.match(value):
            return torch.device("cpu")
        found = getattr(torch, value, None) if value.isidentifier() else None
        if isinstance(found, torch.dtype) or value in _MEMORY_FORMATS:
            return found
        if value.startswith("<"):
            raise CannotReplay(f"{place.replace('input.', 'argument ')} was {value}, whose value was not recorded")
    return value


# The types in a schema that take a value of each kind.
_TAKEN_BY = {
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


def _kind(value: object) -> str:
    """Return the kind of an argument, by which an overload is chosen."""
    if isinstance(value, (list, tuple)):
        return "tensors" if any(isinstance(item, TensorRef) for item in value) else "list"
    if isinstance(value, TensorRef):
        return "tensor"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return "dtype"
    return "none" if value is None else type(value).__name__


@cache
def parameters(head: str, kinds: tuple[str, ...], keywords: frozenset[str]) -> dict[str, object]:
    """Return the parameters of a torch function, by name in order, with their defaults; NO_DEFAULT where there is none.

    They are those of the overload that takes such arguments: in `var(x, -1)` the number is `dim`, in `var(x, True)` the
    flag is `unbiased`.
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


def _takes(schema: torch._C.FunctionSchema, kinds: tuple[str, ...], keywords: frozenset[str]) -> bool:
    """Tell whether an overload takes positional arguments of these kinds and these keyword arguments."""
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
        if wanted not in _TAKEN_BY.get(kind, ()):
            return False
    return True


def _signature(function: Function) -> dict[str, object]:
    """Return the parameters of a Python function, by name, with their defaults."""
    try:
        listed = inspect.signature(function).parameters.values()
    except ValueError:  # a wrapper of a builtin
        return {}
    return {
        p.name: NO_DEFAULT if p.default is p.empty else p.default for p in listed if p.kind is p.POSITIONAL_OR_KEYWORD
    }


_OPERATORS = {"truediv": "div", "rmul": "mul", "radd": "add", "rsub": "rsub", "iadd": "add_", "imul": "mul_"}
