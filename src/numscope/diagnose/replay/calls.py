"""Replays recorded calls on the CPU: in native precision, in float32 or in float64, forward and backward."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch

from numscope.core.errors import NotKeptError
from numscope.core.operators import Trait, operator, writes_in_place
from numscope.diagnose.pytree import leaves, tree_map
from numscope.diagnose.recorded.invocation import CannotReplay, Invocation, TensorRef, invocation_of
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph

Values = Mapping[int, torch.Tensor]
Fetch = Callable[[int], torch.Tensor]

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_CASTS = {"float", "double", "half", "bfloat16", "cfloat", "cdouble"}
_MOVES = {"cuda", "cpu", "npu", "xpu", "mps"}


def replay(
    graph: StepGraph,
    call: RecordedCall,
    values: Values | None = None,
    dtype: torch.dtype | None = None,
    invocation: Invocation | None = None,
) -> dict[int, torch.Tensor]:
    """Make a recorded call again and return its outputs by number.

    Inputs come from `values`, and from the run where `values` lacks them. `dtype` None is native precision. An
    `invocation` replaces the recorded one: the same call with an argument changed.
    """
    if call.is_gradient:
        return _backward(graph, call, values or {}, dtype, invocation)
    made = invocation or invocation_of(graph, call)
    result = invoke(graph, made, values or {}, dtype)
    return _by_number(graph, call, result)


def invoke(graph: StepGraph, made: Invocation, values: Values, dtype: torch.dtype | None) -> object:
    """Call an invocation's function with its tensors in their places."""
    fetch = _fetcher(graph, values, dtype)
    clones = writes(made)

    def fill(leaf: object) -> object:
        if isinstance(leaf, TensorRef):
            found = fetch(leaf.number)
            return found.clone() if clones else found
        if isinstance(leaf, torch.dtype):
            return floating_dtype(leaf, dtype)
        return cast_floating(leaf, dtype) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = tree_map(made.args, fill), tree_map(made.kwargs, fill)
    op = made.call.op
    if op in _MOVES:
        return args[0]
    if dtype is not None and op in _CASTS and isinstance(args[0], torch.Tensor):
        return cast_floating(args[0], dtype)
    with operator_errors(), quiet(), _autocast(graph, made.call, args, dtype):
        result = _call(made, args, kwargs, graph)
    if result is None:
        return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value._version]
    return result


@contextlib.contextmanager
def operator_errors() -> Iterator[None]:
    """Turn any error of an operator that is called again into CannotReplay; only foreign code may run in here."""
    try:
        yield
    except (CannotReplay, NotKeptError):
        raise
    except Exception as error:
        raise CannotReplay(f"calling it again raised {type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class where it has none."""
    return (str(error) or type(error).__name__).splitlines()[0]


def _call(made: Invocation, args: tuple[object, ...], kwargs: dict[str, object], graph: StepGraph) -> object:
    if made.call.op != "__getitem__" or len(args) != 2:
        return made.function(*args, **kwargs)
    tensor, index = args
    if not (isinstance(index, tuple) and index and all(isinstance(item, int) for item in index)):
        return made.function(tensor, index)
    # x[1, 0] and x[[1, 0]] are recorded alike; the shape of the recorded result tells them apart.
    wanted = [graph.tensors[number].shape for number in graph.outputs(made.call.order).values()]
    try:
        result = made.function(tensor, index)
    except (IndexError, TypeError):  # torch's: as a tuple the index does not fit
        return made.function(tensor, list(index))
    is_recorded = isinstance(result, torch.Tensor) and [tuple(result.shape)] == wanted
    return result if is_recorded else made.function(tensor, list(index))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings during a replay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def cast_floating(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor in the dtype of a replay; integers and booleans stay."""
    wanted = floating_dtype(tensor.dtype, dtype)
    return tensor if wanted == tensor.dtype else tensor.to(wanted)


def floating_dtype(native: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype that a native one becomes in a replay in `dtype`; None is native precision."""
    if dtype is None:
        return native
    if native.is_floating_point:
        return dtype
    return _COMPLEX.get(dtype, native) if native.is_complex else native


def _fetcher(graph: StepGraph, values: Values, dtype: torch.dtype | None) -> Fetch:
    def fetch(number: int) -> torch.Tensor:
        found = values[number] if number in values else graph.data(number)
        return cast_floating(found, dtype)

    return fetch


def writes(made: Invocation) -> bool:
    """Tell whether a call writes to its inputs."""
    op = made.call.op
    return (
        writes_in_place(op)
        or Trait.UNVERSIONED_WRITES in operator(op).traits
        or made.named().get("inplace") is True
        or "out" in made.kwargs
    )


@contextlib.contextmanager
def _autocast(
    graph: StepGraph, call: RecordedCall, args: tuple[object, ...], dtype: torch.dtype | None
) -> Iterator[None]:
    """Replay under autocast where the recorded output is narrower than float32 inputs would give."""
    narrow = {torch.bfloat16, torch.float16}
    made = {getattr(torch, graph.tensors[n].dtype) for n in graph.outputs(call.order).values()}
    given = leaves(args)
    has_float32 = any(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in given)
    asked = any(isinstance(value, torch.dtype) for value in given) or call.op in _CASTS or call.op == "to"
    if dtype is None and not asked and (made & narrow) and has_float32:
        with torch.autocast("cpu", dtype=(made & narrow).pop()):
            yield
    else:
        with torch.autocast("cpu", enabled=False):
            yield


def _by_number(graph: StepGraph, call: RecordedCall, result: object) -> dict[int, torch.Tensor]:
    """Return a call's results by the numbers that the recorded ones have."""
    flat = flatten_outputs(result)
    outputs = graph.outputs(call.order)
    found = {number: flat[slot] for slot, number in outputs.items() if slot in flat}
    if not found and outputs:
        raise CannotReplay("its result has another structure than the recorded one")
    return found


def flatten_outputs(result: object) -> dict[str, torch.Tensor]:
    """Return the tensors of a call's result by slot: `output.0`, `output.hidden.1`."""
    found: dict[str, torch.Tensor] = {}
    if isinstance(result, torch.Tensor):
        return {"output.0": result}
    _flatten("output", result, found)
    return found


def _flatten(path: str, value: object, found: dict[str, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found[path] = value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _flatten(f"{path}.{index}", item, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{path}.{key}", item, found)


def _backward(
    graph: StepGraph, call: RecordedCall, values: Values, dtype: torch.dtype | None, invocation: Invocation | None
) -> dict[int, torch.Tensor]:
    """Replay a backward call: run its forward call again, and send the recorded incoming gradients through it."""
    if call.forward is None or call.forward not in graph.calls:
        raise CannotReplay("its forward call is not in this step")
    forward = graph.calls[call.forward]
    made = invocation or invocation_of(graph, forward)
    fetch = _fetcher(graph, values, dtype)
    slots = {slot: n for slot, n in graph.slots(forward.order, "input", "kwargs").items() if n is not None}
    leaf_of: dict[int, torch.Tensor] = {}
    for number in slots.values():
        tensor = fetch(number).detach()
        if tensor.is_floating_point() or tensor.is_complex():
            leaf_of[number] = tensor.clone().requires_grad_()
    with torch.enable_grad():
        result = invoke(graph, made, {**values, **leaf_of}, dtype)
        flat = flatten_outputs(result)
        outputs, gradients = [], []
        for slot, incoming in graph.slots(call.order, "input").items():
            made_here = flat.get("output" + slot.removeprefix("input"))
            if incoming is None or made_here is None or not made_here.requires_grad:
                continue
            outputs.append(made_here)
            gradients.append(fetch(incoming).to(made_here.dtype))
        if not outputs:
            raise CannotReplay("no gradient that comes in was recorded")
        wanted = list(leaf_of)
        with operator_errors():
            got = torch.autograd.grad(outputs, [leaf_of[n] for n in wanted], gradients, allow_unused=True)
    by_input = {number: gradient for number, gradient in zip(wanted, got) if gradient is not None}
    found = {}
    for slot, made_number in graph.outputs(call.order).items():
        source = forward_slot(slot)
        given = slots.get(source)
        if given is not None and given in by_input:
            found[made_number] = by_input[given].detach()
    if not found:
        raise CannotReplay("no gradient that goes out could be computed")
    return found


def forward_slot(slot: str) -> str:
    """Return the forward slot whose gradient a backward slot is: `output.0` → `input.0`."""
    tail = slot.removeprefix("output.")
    return tail if tail.startswith("kwargs.") else f"input.{tail}"
