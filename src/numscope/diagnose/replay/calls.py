"""Replays recorded calls on the CPU: in native precision, in float32 or in float64, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from numscope.core.operators import Trait, operator, writes_in_place
from numscope.diagnose.intervene.run_elsewhere import map_leaves
from numscope.diagnose.recorded.invocation import CannotReplay, Given, Invocation, decode
from numscope.diagnose.recorded.step_graph import Call, NotKept, Record

Values = Mapping[int, torch.Tensor]
Fetch = Callable[[int], torch.Tensor]

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_CASTS = {"float", "double", "half", "bfloat16", "cfloat", "cdouble"}
_MOVES = {"cuda", "cpu", "npu", "xpu", "mps"}


def replay(
    record: Record,
    call: Call,
    values: Values | None = None,
    dtype: torch.dtype | None = None,
    invocation: Invocation | None = None,
) -> dict[int, torch.Tensor]:
    """Make a recorded call again and return its outputs by number.

    Inputs are taken from `values` where they are there, else from the run. `dtype` None is native precision. An
    `invocation` takes the place of the recorded one: the same call with an argument changed.
    """
    if call.is_gradient:
        return _backward(record, call, values or {}, dtype, invocation)
    made = invocation or decode(record, call)
    result = invoke(record, made, values or {}, dtype)
    return _by_number(record, call, made, result)


def invoke(record: Record, made: Invocation, values: Values, dtype: torch.dtype | None) -> Any:
    """Call an invocation's function with its tensors in their places."""
    fetch = _fetcher(record, values, dtype)
    clones = writes(made)

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Given):
            found = fetch(leaf.number)
            return found.clone() if clones else found
        if isinstance(leaf, torch.dtype):
            return lifted_dtype(leaf, dtype)
        return lift(leaf, dtype) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = map_leaves(made.args, fill), map_leaves(made.kwargs, fill)
    op = made.call.op
    if op in _MOVES:
        return args[0]
    if dtype is not None and op in _CASTS:
        return lift(args[0], dtype)
    try:
        with quiet(), _autocast(record, made.call, args, dtype):
            result = _call(made, args, kwargs, record)
    except (CannotReplay, NotKept):
        raise
    except Exception as error:
        raise CannotReplay(f"calling it again raised {type(error).__name__}: {str(error).splitlines()[0]}") from error
    if result is None or clones:
        written = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Tensor) and value._version]
        result = written if result is None else result
    return result


def _call(made: Invocation, args: Any, kwargs: Any, record: Record) -> Any:
    index = args[1] if made.call.op == "__getitem__" and len(args) == 2 else None
    if not (isinstance(index, tuple) and index and all(isinstance(item, int) for item in index)):
        return made.function(*args, **kwargs)
    # x[1, 0] and x[[1, 0]] are recorded alike: the shape of the result tells which it was.
    wanted = [record.tensors[number].shape for number in record.outputs(made.call.order).values()]
    try:
        result = made.function(*args)
        if [tuple(result.shape)] == wanted:
            return result
    except (IndexError, TypeError):
        pass
    return made.function(args[0], list(index))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Replay without gradients unless asked, without warnings, and without the user's deterministic setting."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def lift(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor in a dtype where it is of a floating one."""
    target = lifted_dtype(tensor.dtype, dtype)
    return tensor if target == tensor.dtype else tensor.to(target)


def lifted_dtype(native: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """Return what a dtype becomes when a replay is lifted."""
    if dtype is None:
        return native
    if native.is_floating_point:
        return dtype
    return _COMPLEX.get(dtype, native) if native.is_complex else native


def _fetcher(record: Record, values: Values, dtype: torch.dtype | None) -> Fetch:
    def fetch(number: int) -> torch.Tensor:
        found = values[number] if number in values else record.data(number)
        return lift(found, dtype)

    return fetch


def writes(made: Invocation) -> bool:
    """Tell whether a call writes to what it is given."""
    op = made.call.op
    return (
        writes_in_place(op)
        or Trait.UNVERSIONED_WRITES in operator(op).traits
        or made.named().get("inplace") is True
        or "out" in made.kwargs
    )


@contextlib.contextmanager
def _autocast(record: Record, call: Call, args: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Replay under autocast where the recorded output has a narrower dtype than the inputs would give."""
    narrow = {torch.bfloat16, torch.float16}
    made = {getattr(torch, record.tensors[n].dtype) for n in record.outputs(call.order).values()}
    given = {
        value.dtype for value in _leaves(args) if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    }
    asked = any(isinstance(value, torch.dtype) for value in _leaves(args)) or call.op in _CASTS or call.op == "to"
    if dtype is None and not asked and (made & narrow) and torch.float32 in given:
        with torch.autocast("cpu", dtype=(made & narrow).pop()):
            yield
    else:
        with torch.autocast("cpu", enabled=False):
            yield


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(value, found.append)
    return found


def _by_number(record: Record, call: Call, made: Invocation, result: Any) -> dict[int, torch.Tensor]:
    """Return a call's results by the numbers that the recorded ones have."""
    flat: dict[str, torch.Tensor] = {}
    _flatten("output", result, flat, top=True)
    outputs = record.outputs(call.order)
    found = {number: flat[slot] for slot, number in outputs.items() if slot in flat}
    if not found and outputs:
        raise CannotReplay("its result has another structure than the recorded one")
    return found


def _flatten(path: str, value: Any, found: dict[str, torch.Tensor], top: bool = False) -> None:
    if isinstance(value, torch.Tensor):
        found[f"{path}.0" if top else path] = value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _flatten(f"{path}.{index}", item, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{path}.{key}", item, found)


def _backward(
    record: Record, call: Call, values: Values, dtype: torch.dtype | None, invocation: Invocation | None
) -> dict[int, torch.Tensor]:
    """Replay a backward call: run its forward call again, and send the recorded incoming gradients through it."""
    if call.forward is None or call.forward not in record.calls:
        raise CannotReplay("its forward call is not in this step")
    forward = record.calls[call.forward]
    made = invocation or decode(record, forward)
    fetch = _fetcher(record, values, dtype)
    slots = {slot: n for slot, n in record.slots(forward.order, "input", "kwargs").items() if n is not None}
    leaves: dict[int, torch.Tensor] = {}
    for number in slots.values():
        tensor = fetch(number).detach()
        if tensor.is_floating_point() or tensor.is_complex():
            leaves[number] = tensor.clone().requires_grad_()
    with torch.enable_grad():
        result = invoke(record, made, {**values, **leaves}, dtype)
        flat: dict[str, torch.Tensor] = {}
        _flatten("output", result, flat, top=True)
        outputs, gradients = [], []
        for slot, incoming in record.slots(call.order, "input").items():
            made_here = flat.get("output" + slot.removeprefix("input"))
            if incoming is None or made_here is None or not made_here.requires_grad:
                continue
            outputs.append(made_here)
            gradients.append(fetch(incoming).to(made_here.dtype))
        if not outputs:
            raise CannotReplay("no gradient that comes in was recorded")
        wanted = list(leaves)
        got = torch.autograd.grad(outputs, [leaves[n] for n in wanted], gradients, allow_unused=True)
    by_input = {number: gradient for number, gradient in zip(wanted, got) if gradient is not None}
    found = {}
    for slot, made_number in record.outputs(call.order).items():
        source = _forward_slot(slot)
        given = slots.get(source)
        if given is not None and given in by_input:
            found[made_number] = by_input[given].detach()
    if not found:
        raise CannotReplay("no gradient that goes out could be computed")
    return found


def _forward_slot(slot: str) -> str:
    """Return the forward slot whose gradient a backward slot is: `output.0` → `input.0`."""
    tail = slot.removeprefix("output.")
    return tail if tail.startswith("kwargs.") else f"input.{tail}"
