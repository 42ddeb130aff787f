"""Call an operator on a device and hold it, and its gradient, against float64 on the CPU."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from numscope.core.dtypes import unit_roundoff
from numscope.diagnose.accuracy.cases import Call, call
from numscope.diagnose.accuracy.data import Data, Form

Tensors = tuple[torch.Tensor, ...]
_SEED = 20261119


class Sizes(NamedTuple):
    """The norms of a call that the rules of rounding read, as compare has them of a recorded call."""

    out: float
    off_elements: float
    out_elements: float
    largest_in: float
    in_elements: float
    deviation: float
    log_product: float
    log_elements: float
    forward_in: float  # of the call whose backward it is
    forward_out: float
    forward_elements: float
    forward_deviation: float


class Sample(NamedTuple):
    """The error of one call against float64, and its norms."""

    operator: str
    backward: bool
    form: Form
    dtype: str  # of the result
    error: float  # relative L2, of the output that is off by the most
    norm_shift: float  # of its norm, relative
    mean_shift: float  # of its mean, as a share of its root mean square
    sizes: Sizes


@dataclass(frozen=True)
class Both:
    """The results of a call, and the gradients of its results and inputs."""

    inputs: Tensors
    made: Tensors
    given: Tensors = ()  # gradients of what was made
    gradients: Tensors = ()


def draw(operator: str, form: Form, number: int) -> tuple[Call, Data]:
    """Return one call of an operator, the same for the same number on every device."""
    data = Data(form, torch.Generator().manual_seed(_SEED + number))
    return call(operator, data), data


def accuracy(
    operator: str, form: Form, number: int, device: torch.device, dtype: torch.dtype, backward: bool = True
) -> Iterator[Sample]:
    """Yield the errors of a call on a device, and of its backward; raises what the device raises."""
    drawn, data = draw(operator, form, number)
    inputs = tuple(x.to(dtype) for x in drawn.inputs)
    backward = backward and unit_roundoff(dtype_name(dtype)) <= unit_roundoff("bfloat16")
    exact = _forward(drawn._replace(inputs=tuple(x.double() for x in inputs)), backward)
    here = _forward(drawn._replace(inputs=tuple(x.to(device) for x in inputs)), backward)
    yield from _samples(operator, form, here, exact, False)
    if _differentiable(exact):
        given = tuple(data.gradient(*x.shape).to(dtype) for x in exact.made)
        exact = _backward(exact, tuple(x.double() for x in given))
        here = _backward(here, tuple(x.to(device) for x in given))
        yield from _samples(operator, form, here, exact, True)


def _samples(operator: str, form: Form, here: Both, exact: Both, backward: bool) -> Iterator[Sample]:
    error = errors(here.gradients, exact.gradients) if backward else errors(here.made, exact.made)
    if error is not None:
        made, truth = ((both.gradients if backward else both.made)[error.place] for both in (here, exact))
        moved, size = made.detach().cpu().double(), _norm(truth)
        yield Sample(
            operator=operator,
            backward=backward,
            form=form,
            dtype=dtype_name(made.dtype),
            error=error.relative,
            norm_shift=_norm(moved) / size - 1.0,
            mean_shift=float((moved - truth.detach()).mean()) * math.sqrt(moved.numel()) / size,
            sizes=sizes(exact, backward, error.place),
        )


class Error(NamedTuple):
    """The largest relative L2 error of several tensors, and which one has it."""

    relative: float
    place: int


def errors(here: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> Error | None:
    """Return the largest error; None where all exact results are zero."""
    found = None
    for place, (x, y) in enumerate(zip(here, exact)):
        norm = _norm(y)
        if norm == 0 or not math.isfinite(norm):
            continue
        x = x.detach().cpu().double()
        off = _norm(x - y.detach()) / norm
        off = math.inf if math.isnan(off) else off
        if found is None or off > found.relative:
            found = Error(off, place)
    return found


def sizes(both: Both, backward: bool, place: int) -> Sizes:
    """Return the norms of a call, or of its backward; of the outputs' those of the one in that place."""
    given, made = (both.given, both.gradients) if backward else (both.inputs, both.made)
    behind = both.inputs if backward else ()
    norms, elements = [_norm(x) for x in given], [x.numel() for x in given]
    return Sizes(
        out=_norm(made[place]),
        off_elements=max(made[place].numel(), 1),
        out_elements=max(1, *(x.numel() for x in made)),
        largest_in=max(norms),
        in_elements=max(1, *elements),
        deviation=max(map(_deviation, given)),
        log_product=sum(math.log(max(n, 1e-300)) for n in norms),
        log_elements=sum(math.log(max(count, 1)) for count in elements),
        forward_in=max(map(_norm, behind), default=0.0),
        forward_out=max(map(_norm, both.made), default=0.0) if backward else 0.0,
        forward_elements=max((x.numel() for x in behind), default=0),
        forward_deviation=max(map(_deviation, behind), default=0.0),
    )


def _deviation(x: torch.Tensor) -> float:
    return math.sqrt(max(0.0, _norm(x) ** 2 / max(x.numel(), 1) - float(x.detach().mean()) ** 2))


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x.detach()))


def _forward(call: Call, grad: bool) -> Both:
    inputs = tuple(x.detach().requires_grad_(grad) for x in call.inputs)
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")
        made = call.function(*inputs)
    return Both(inputs, _floating(made))


def _differentiable(both: Both) -> bool:
    """Return whether what was made has a gradient."""
    function = both.made[0].grad_fn if both.made else None
    return function is not None and "NotImplemented" not in function.name()


def _backward(both: Both, given: Tensors) -> Both:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients = torch.autograd.grad(both.made, both.inputs, given, allow_unused=True)
    return Both(both.inputs, both.made, given, tuple(torch.zeros(()) if x is None else x for x in gradients))


def _floating(made: Any) -> Tensors:
    values = made if isinstance(made, (tuple, list)) else (made,)
    return tuple(x for x in values if isinstance(x, torch.Tensor) and x.is_floating_point())


# What becomes of an error in the inputs -----------------------------------------------------------------------------


class Noise(NamedTuple):
    """A kind of error, in proportion to the size of each row: of all its elements alike, of each by its own, or a factor."""

    name: str
    by_element: bool
    by_row: bool


NOISES = (Noise("absolute", False, False), Noise("relative", True, False), Noise("rows", True, True))


class Amplified(NamedTuple):
    """The error of a result that follows from an error of the inputs."""

    operator: str
    backward: bool
    form: Form
    noise: str
    given: float  # relative L2, the largest of the inputs
    moved: float  # Σ‖Δ‖ over the inputs
    error: float  # relative L2, the largest of the outputs
    sizes: Sizes


def amplified(
    operator: str, form: Form, number: int, given: Sequence[float], backward: bool = True
) -> Iterator[Amplified]:
    """Yield what an operator makes of errors of some sizes in its inputs, in float64."""
    drawn, data = draw(operator, form, number)
    exact = _forward(drawn, backward)
    gradients: Tensors = ()
    if _differentiable(exact):
        gradients = tuple(data.gradient(*x.shape) for x in exact.made)
        exact = _backward(exact, gradients)
    for noise in NOISES:
        for size in given:
            inputs = tuple(_moved(x, size, noise, data) for x in drawn.inputs)
            try:
                here = _forward(drawn._replace(inputs=inputs), backward)
            except RuntimeError:  # the error leads out of what the operator is defined for
                continue
            found = errors(here.made, exact.made)
            if found is not None:
                moved = sum(_norm(x - y) for x, y in zip(inputs, drawn.inputs))
                yield Amplified(
                    operator, False, form, noise.name, size, moved, found.relative, sizes(exact, False, found.place)
                )
            if gradients:
                changed = tuple(_moved(x, size, noise, data) for x in gradients)
                here = _backward(here, changed)
                found = errors(here.gradients, exact.gradients)
                moved = sum(_norm(x - y) for x, y in zip(changed, gradients))
                if found is not None:
                    yield Amplified(
                        operator, True, form, noise.name, size, moved, found.relative, sizes(exact, True, found.place)
                    )


def cast(dtype: torch.dtype, form: Form, number: int, given: Sequence[float]) -> Iterator[Amplified]:
    """Yield what becomes of errors of float32 in a cast to a coarser dtype."""
    data = Data(form, torch.Generator().manual_seed(_SEED + number))
    inputs = (data.real().float().double(),)
    exact = Both(inputs, tuple(x.to(dtype).double() for x in inputs))
    for noise in NOISES:
        for size in given:
            moved = tuple(_moved(x, size, noise, data).float() for x in inputs)
            found = errors(tuple(x.to(dtype) for x in moved), exact.made)
            if found is not None:
                off = _norm(moved[0].double() - inputs[0])
                error = off / _norm(inputs[0])
                yield Amplified(
                    f"to {dtype_name(dtype)}",
                    False,
                    form,
                    noise.name,
                    error,
                    off,
                    found.relative,
                    sizes(exact, False, 0),
                )


def _moved(x: torch.Tensor, size: float, noise: Noise, data: Data) -> torch.Tensor:
    """Return a tensor that is off by a relative L2 error."""
    shape = (*x.shape[:-1], 1) if noise.by_row and x.dim() else tuple(x.shape)
    rows = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / x.shape[-1] ** 0.5 if x.dim() else x
    by = data.normal(*shape) * (x if noise.by_element else rows.expand_as(x))
    length = _norm(by)
    return x + by * (size * _norm(x) / length) if length else x


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's short name of a dtype."""
    return str(dtype).removeprefix("torch.")
