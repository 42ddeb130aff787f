"""The names of torch's functions as users know them: `Functional.linear`, `Tensor.permute`, `Linalg.norm`, `Ops.ns.op`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch

from numscope.capture.recording.interned import Series
from numscope.capture.torch.slots import Arguments, Keywords
from numscope.core.operators import NONE, Trait, operator, writes_in_place

Function = Callable[..., Any]
_FUNCTIONAL = torch.nn.functional.__name__

_ALIASES = {"dsmm": "mm", "hsmm": "mm", "spmm": "mm"}  # names under which torch has the same function twice
_FOREIGN = ("Function", "Ops", "Custom")  # prefixes of what is not torch's own

# The engine runs inside these; they are no calls, but what happens within is seen.
TRANSPARENT = {"backward"}


class _Name(NamedTuple):
    prefix: str  # of the namespace: Functional, Tensor, Torch …
    op: str


class Api:
    """The properties of one torch function that capture depends on."""

    __slots__ = (
        "aside",
        "asks_versions",
        "casts",
        "composite",
        "computes",
        "cuts",
        "exposes",
        "exposes_storage",
        "fills_a_part",
        "foreign",
        "head",
        "may_write",
        "op",
        "overwrites",
        "pending",
        "plain",
        "series",
        "silent",
        "transmits",
        "transparent",
        "twin",
        "uninitialized",
        "usual",
        "views",
        "writes_unversioned",
    )

    def __init__(self, prefix: str, op: str, function: Function, silent: bool) -> None:
        self.head = f"{prefix}.{op}"
        self.op = op
        self.silent = silent
        self.foreign = prefix in _FOREIGN  # it may write wherever it likes
        traits = NONE if self.foreign else operator(op).traits
        self.uninitialized = Trait.UNINITIALIZED in traits
        self.pending = prefix == "Distributed" and op != "wait_tensor"  # its result is not there when it returns
        self.overwrites = writes_in_place(op)
        self.views = Trait.VIEW in traits and not self.overwrites
        _, _, bare = op.rpartition(".")
        self.fills_a_part = Trait.FILLS_PART in operator(bare).traits
        self.transmits = Trait.TRANSMITS in traits and not self.overwrites
        self.transparent = op in TRANSPARENT
        self.exposes = Trait.EXPOSES in traits
        self.exposes_storage = Trait.EXPOSES_STORAGE in traits
        self.writes_unversioned = Trait.UNVERSIONED_WRITES in traits or op.startswith(("_amp_", "_fused_"))
        self.may_write = self.overwrites or self.foreign
        self.cuts = op in {"detach", "detach_"}  # a call where it cuts the graph
        self.casts = op == "type"  # a call where it is told a dtype; else it asks for one
        inner = not (Trait.CALLS_ITSELF in traits and getattr(function, "__module__", "") == _FUNCTIONAL)
        self.twin = _twin(function) if inner and isinstance(function, FunctionType) else None
        self.computes = False  # it has returned a tensor before: what it writes to is then no result
        self.asks_versions = True  # … so that nobody asks what it wrote to
        self.composite = self.twin is not None  # its inner calls are seen
        self.usual = False  # nothing of this is to be asked at its calls
        self.plain = silent and not (
            self.exposes or self.cuts or self.casts or self.transparent
        )  # nothing is to be done about it
        self.aside = silent or self.transparent  # no call, or one only in some cases
        self.series: Series | None = None  # the names of its calls, once there is one

    def has_computed(self) -> None:
        """Know that it returns tensors."""
        self.computes = True
        self.asks_versions = self.may_write or self.writes_unversioned or self.uninitialized or self.pending
        self.usual = not (self.asks_versions or self.composite or self.aside)


def is_cast(api: Api, args: Arguments, kwargs: Keywords) -> bool:
    """Tell whether a call of `type` gives a tensor of another dtype, instead of saying which it is."""
    return api.casts and (len(args) > 1 or bool(kwargs))


class _LiveGlobals(dict[str, object]):
    """The globals of a module with a few names replaced; all others are looked up live."""

    def __init__(self, module: dict[str, object], replaced: dict[str, object]) -> None:
        super().__init__(replaced)
        self._module = module

    def __missing__(self, name: str) -> object:
        return self._module[name]


def _never(*_: object, **__: object) -> bool:
    return False


def _twin(function: FunctionType) -> Function | None:
    """Return the same Python function without its own override check, or None where it has none.

    A torch function written in Python asks first whether a mode wants it, and hands itself to the mode. Calling it
    again from there with the mode on would ask for ever; calling it with the mode off hides its inner calls. The twin
    has the same code and live globals, but its question is answered with no: its inner calls are seen.
    """
    asked = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not asked:
        return None
    replaced: dict[str, object] = dict.fromkeys(asked, _never)
    replaced["__builtins__"] = function.__globals__["__builtins__"]
    scope = _LiveGlobals(function.__globals__, replaced)
    twin = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


class ApiTable:
    """Looks a function up by identity, once."""

    def __init__(self) -> None:
        self.known: dict[Function, Api] = {}

    def __getitem__(self, function: Function) -> Api:
        found = self.known.get(function)
        return found if found is not None else self._learn(function)

    def _learn(self, function: Function) -> Api:
        owner = getattr(function, "__self__", None)
        kind = getattr(function, "__name__", "")
        if kind in {"__get__", "__set__", "__delete__"} and owner is not None:
            name = getattr(owner, "__name__", "")
            api = Api("Tensor", name, function, kind != "__get__" or Trait.ATTRIBUTE not in operator(name).traits)
        else:
            prefix, op = self._place(function)
            unrecorded = prefix not in _FOREIGN and Trait.UNRECORDED in operator(op).traits
            api = Api(prefix, op, function, unrecorded or op.startswith("profiler.") or _is_collective(function))
        self.known[function] = api
        return api

    def _place(self, function: Function) -> _Name:
        try:
            if (place := _places().get(function)) is not None:
                return place
        except TypeError:
            pass
        if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            packet = function.overloadpacket if isinstance(function, torch._ops.OpOverload) else function
            namespace, _, op = packet._qualified_op_name.partition("::")
            if namespace.startswith("_c10d_functional"):
                return _Name("Distributed", op)
            return _Name("Aten", op) if namespace == "aten" else _Name("Ops", f"{namespace}.{op}")
        name = getattr(function, "__name__", type(function).__name__)
        if getattr(function, "__objclass__", None) is not None:
            return _Name("Tensor", name)
        module = str(getattr(function, "__module__", "") or "")
        if module.startswith("torch") or module == "":
            return _Name("Torch", name)
        return _Name("Custom", f"{module.replace('.', '_')}.{name}")


def _is_collective(function: Function) -> bool:
    """Tell whether a function is recorded as a collective: what it is given to write to holds nothing yet."""
    return getattr(function, "__module__", "") == "torch.distributed.distributed_c10d"


@lru_cache(maxsize=1)
def _places() -> dict[object, _Name]:
    """Map every torch function to the name its users know; the more specific namespace wins."""
    places: dict[object, _Name] = {}
    namespaces: list[tuple[str, Any]] = [
        ("Functional", torch.nn.functional),
        ("Functional", torch._C._nn),
        ("Linalg", torch.linalg),
        ("Fft", torch.fft),
        ("Special", torch.special),
        ("Sparse", torch.sparse),
        ("Torch", torch),
        ("Torch", torch.functional),
        ("Tensor", torch.Tensor),
        ("Tensor", torch._C.TensorBase),
        ("VF", torch._C._VariableFunctions),
    ]
    for prefix, namespace in namespaces:
        for name in sorted(dir(namespace), key=lambda name: name.startswith("__")):  # `abs`, which `__abs__` is too
            if prefix not in {"Tensor"} and name.startswith("__"):
                continue
            value = getattr(namespace, name, None)
            if not callable(value) or isinstance(value, type):
                continue
            try:
                known = places.setdefault(value, _Name(prefix, name))
            except TypeError:
                continue
            if known.prefix == prefix and name == _ALIASES.get(known.op):
                places[value] = _Name(prefix, name)
    return places
