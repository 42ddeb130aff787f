"""The graph of a region as a run has it, and its nodes run again: in their own dtypes, in float64, or with casts elided."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import overrides
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from numscope.core.job_files.regions import NodeEntry
from numscope.core.json_value import Json
from numscope.diagnose.replay.measures import unit_roundoff

Values = dict[str, Any]
Widen = Callable[[torch.dtype], torch.dtype]

_LOW = (torch.bfloat16, torch.float16)
_REFUSED = ("aten.from_file", "aten.record_stream", "aten.set_", "aten.resize_")  # they reach out of the graph
_NAMESPACES = ("aten", "prims")
_RANDOM = ("rand", "seed", "bernoulli", "dropout", "multinomial", "normal_", "uniform", "exponential", "poisson")
_CONTEXTS = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "_log_api_usage_once")  # they make no value
# Torch's functions that make tensors of plain numbers: no mode of torch's sees them, so that torch does not list them.
_FACTORIES = (
    "arange",
    "as_tensor",
    "can_cast",
    "empty",
    "empty_strided",
    "eye",
    "full",
    "linspace",
    "logspace",
    "ones",
    "promote_types",
    "range",
    "result_type",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
)
_ATTRIBUTES = ("T", "mT", "H", "mH", "real", "imag", "shape", "ndim", "dtype", "device", "requires_grad", "is_cuda")


class CannotRun(Exception):
    """A node that can't be run here: the reason is its text."""


def own(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype as it is: node by node, as eager computes."""
    return dtype


def elided(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a fused kernel computes: casts to lower precision are left out inside it."""
    return torch.float32 if dtype in _LOW else dtype


def double(dtype: torch.dtype) -> torch.dtype:
    """Return float64 in place of each floating dtype."""
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


class _Widened(TorchDispatchMode):
    """Runs operators with other dtypes than they name, on the CPU."""

    def __init__(self, widen: Widen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._widen = widen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        if func is torch.ops.aten.view.dtype and any(self._widen(one) != one for one in (args[0].dtype, args[1])):
            raise CannotRun("it looks at the bits of numbers")
        return self.widened(
            func(*tree_map(self._argument, tuple(args)), **tree_map(self._argument, dict(kwargs or {})))
        )

    def _argument(self, value: object) -> Any:
        if isinstance(value, torch.dtype):
            return self._widen(value)
        return torch.device("cpu") if isinstance(value, torch.device) and value.type != "meta" else value

    def widened(self, value: object) -> Any:
        """Return a value with its tensors in the dtypes that are computed in."""
        return tree_map(lambda one: wide(one, self._widen), value)


def wide(value: object, widen: Widen) -> Any:
    """Return a tensor in the dtype that is computed in; anything else as it is."""
    if not isinstance(value, torch.Tensor) or widen(value.dtype) == value.dtype:
        return value
    return value.to(widen(value.dtype))


class Graph:
    """Nodes by name, in order."""

    def __init__(self, nodes: Iterable[NodeEntry]) -> None:
        self.nodes = {node["name"]: node for node in nodes}
        self.inputs = {name: _named(node) for name, node in self.nodes.items()}
        self.placeholders = [name for name, node in self.nodes.items() if node["op"] == "placeholder"]
        self.outputs = next((node["args"] for node in self.nodes.values() if node["op"] == "output"), None)

    def needed(self, wanted: str, known: Iterable[str]) -> list[str]:
        """Return the nodes that must run for one node's value, in order, from those that are known."""
        have, waiting, found = set(known) - {wanted}, [wanted], set[str]()
        while waiting:
            name = waiting.pop()
            if name in found or name in have or name not in self.nodes:
                continue
            found.add(name)
            waiting += self.inputs[name]
        return [name for name in self.nodes if name in found]

    def is_random(self, name: str) -> bool:
        """Tell whether a node draws random numbers."""
        node = self.nodes[name]
        if node["op"] == "placeholder" or _drops_nothing(node):
            return False
        return any(part in node["target"] for part in _RANDOM)

    def is_known(self, name: str) -> bool:
        """Tell whether what a node calls is there to be called."""
        node = self.nodes[name]
        try:
            return node["op"] not in ("call_function", "call_method") or bool(_function(node))
        except CannotRun:
            return node["target"].rpartition(".")[2] in _CONTEXTS

    def run(
        self,
        names: Sequence[str],
        known: Mapping[str, object],
        widen: Widen = own,
        generator: torch.Generator | None = None,
        grad: bool = False,
    ) -> Values:
        """Run nodes from known values and return all values; `generator` moves each result by an ulp of its dtype."""
        mode = _Widened(widen)
        values: Values = {name: _fresh(value, widen) for name, value in known.items()}
        if generator is not None:
            values = {name: _moved(value, self._roundoff(name, value), generator) for name, value in values.items()}
        with torch.set_grad_enabled(grad):
            for name in names:
                node = self.nodes[name]
                if node["op"] in ("placeholder", "get_attr"):
                    if name not in values:
                        raise CannotRun(f"the value of {name} was not kept")
                    continue
                if node["op"] == "output" or node["target"].rpartition(".")[2] in _CONTEXTS:
                    continue
                args, kwargs = _argument(node["args"], values), _argument(node["kwargs"], values)
                try:
                    with mode:
                        made = mode.widened(_function(node)(*args, **kwargs))
                except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
                    raise CannotRun(f"{node['target']}: {type(error).__name__}: {error}") from error
                if generator is not None and not is_exact(node["target"]):
                    made = _moved(made, self._roundoff(name, made), generator)
                values[name] = made
        return values

    def _roundoff(self, name: str, value: object) -> float:
        """Return the unit roundoff of a node's dtype as it was compiled; of what a kernel reads, that of its sums."""
        node = self.nodes.get(name)
        dtype = getattr(torch, node["dtype"], None) if node is not None and node["dtype"] else None
        if dtype is None:
            dtype = value.dtype if isinstance(value, torch.Tensor) else torch.float32
            dtype = torch.float32 if dtype is torch.float64 else dtype
        is_read = node is None or node["op"] in ("placeholder", "get_attr")
        return unit_roundoff(elided(dtype) if is_read else dtype)


def _drops_nothing(node: NodeEntry) -> bool:
    """Tell whether a node is a dropout with the probability 0, or outside of training: it draws nothing."""
    if node["target"] != "torch.nn.functional.dropout":
        return False
    args, kwargs = _argument(node["args"], _AnyValue()), _argument(node["kwargs"], _AnyValue())
    given = {**dict(zip(("input", "p", "training"), args)), **kwargs}
    return given.get("p", 0.5) == 0 or given.get("training", True) is False


class _AnyValue(dict[str, Any]):
    """Values of which each is there, as None."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> None:
        return None


def _named(node: NodeEntry) -> list[str]:
    found: list[str] = []

    def look(value: Json) -> None:
        if isinstance(value, dict):
            if isinstance(name := value.get("node"), str):
                found.append(name)
            else:
                for part in value.values():
                    look(part)
        elif isinstance(value, list):
            for part in value:
                look(part)

    look(node["args"])
    look(node["kwargs"])
    return found


def _argument(value: Json, values: Values) -> Any:
    if isinstance(value, list):
        return [_argument(item, values) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, plain)] = value.items()
    if kind == "node":
        if plain not in values:
            raise CannotRun(f"the value of {plain} is not known")
        return values[str(plain)]
    if kind == "tuple" and isinstance(plain, list):
        return tuple(_argument(item, values) for item in plain)
    if kind == "items" and isinstance(plain, dict):
        return {key: _argument(item, values) for key, item in plain.items()}
    if kind == "slice" and isinstance(plain, list):
        return slice(*(_argument(item, values) for item in plain))
    if kind == "ellipsis":
        return ...
    if kind == "float":
        return float(str(plain))
    if kind == "device":
        return torch.device("cpu")
    if kind in ("dtype", "layout", "memory_format") and isinstance(found := getattr(torch, str(plain), None), _TORCH):
        return found
    raise CannotRun(f"an argument of the type {plain} is not in the run")


_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def _fresh(value: object, widen: Widen) -> Any:
    """Return a value that may be written to."""
    if not isinstance(value, torch.Tensor):
        return value
    made = wide(value, widen)
    return made.clone() if made is value else made


def _moved(value: object, roundoff: float, generator: torch.Generator) -> Any:
    def move(one: object) -> Any:
        if not isinstance(one, torch.Tensor) or not one.is_floating_point():
            return one
        step = torch.randint(-1, 2, one.shape, generator=generator)
        return one * (1 + roundoff * step.to(one.dtype))

    return tree_map(move, value)


def is_exact(target: str) -> bool:
    """Tell whether an operator rounds nothing: it is a view."""
    if target == "operator.getitem":
        return True
    found = registered(target)
    return found is not None and bool(getattr(found, "is_view", False))


def registered(target: str) -> Any:
    """Return a registered operator; None where there is none of that name."""
    head, _, rest = target.partition(".")
    parts = rest.split(".")
    if head != "ops" or len(parts) != 3:
        return None
    namespace, name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None and namespace == "prims":  # Inductor's own, which it registers when it is loaded
        importlib.import_module("torch._inductor.inductor_prims")
        packet = getattr(torch.ops.prims, name, None)
    return getattr(packet, overload, None)


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return torch's functions of tensors by name, and Python's operators: nothing else is ever called."""
    found = {overrides.resolve_name(function) or "": function for function in overrides.get_testing_overrides()}
    found |= {f"torch.{name}": getattr(torch, name) for name in _FACTORIES}
    found |= {
        f"torch._C._nn.{name}": value
        for name, value in vars(torch._C._nn).items()
        if not name.startswith("__") and hasattr(torch.ops.aten, name)
    }
    found["builtins.getattr"] = _attribute
    return found | {f"operator.{name}": getattr(operator, name) for name in dir(operator) if not name.startswith("__")}


def _attribute(value: object, name: str) -> Any:
    """Return an attribute of a tensor that is a view of it, or a plain fact."""
    if not isinstance(value, torch.Tensor) or name not in _ATTRIBUTES:
        raise CannotRun(f"the attribute {name} is not read here")
    return getattr(value, name)


def _function(node: NodeEntry) -> Callable[..., Any]:
    """Return what a node calls: an operator of torch's or a registered one, a function or a method of tensors."""
    target = node["target"]
    if node["op"] == "call_method":
        method = _functions().get(f"torch.Tensor.{target}") if f"aten.{target}" not in _REFUSED else None
        if method is None and hasattr(torch.ops.aten, target) and f"aten.{target}" not in _REFUSED:
            method = getattr(torch.Tensor, target, None)  # which torch does not list: it has no override
        if method is None:
            raise CannotRun(f"{target} is no method of tensors")
        return method
    if target.startswith("ops."):
        found = registered(target)
        if found is None or target.removeprefix("ops.").startswith(_REFUSED):
            raise CannotRun(f"the operator {target.removeprefix('ops.')} is not registered here")
        return found  # type: ignore[no-any-return]
    function = _functions().get(target)
    if function is None:
        raise CannotRun(f"{target} is no function of torch's own")
    return function


def is_foreign(target: str) -> bool:
    """Tell whether an operator is none of torch's own."""
    return target.startswith("ops.") and target.split(".")[1] not in (*_NAMESPACES, "inductor", "mkldnn", "quantized")
