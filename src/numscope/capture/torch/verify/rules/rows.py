"""Operators that reduce or normalise along dimensions: a few rows, each computed whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Box, Range, Read, is_readable
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, dtype_of, rule
from numscope.capture.torch.verify.sampling import EXACT, Sampling

_ELEMENTS = 1 << 16  # that the rows of a sample have together
_LONGEST = 1 << 24  # elements of a row that is still read


def dims_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return the dimensions that an argument names; none, or an empty list, are all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    return tuple(sorted(d % max(rank, 1) for d in (dim if isinstance(dim, (list, tuple)) else (dim,))))


def rows_box(shape: Sequence[int], dims: Sequence[int], sampling: Sampling) -> Box:
    """Return a box with some rows: whole along these dimensions."""
    length = math.prod(shape[d] for d in dims)
    if length > _LONGEST:
        raise NotVerifiedError(f"rows of more than {_LONGEST:,} elements")
    kept = [d for d in range(len(shape)) if d not in dims]
    many = math.prod(shape[d] for d in kept)
    if sampling.full or many * length <= EXACT:
        return tuple(Range(0, 1, size) for size in shape)
    budget = max(2, min(max(8, many // 32), _ELEMENTS // max(length, 1)))
    chosen = iter(sampling.lattice([shape[d] for d in kept], budget))
    return tuple(Range(0, 1, size) if d in dims else next(chosen) for d, size in enumerate(shape))


def reduced(box: Box, dims: Sequence[int], keepdim: bool) -> Box:
    """Return the places of the rows of a box in the output of a reduction."""
    return tuple(Range(0, 1, 1) if d in dims else r for d, r in enumerate(box) if keepdim or d not in dims)


def check(*tensors: object) -> None:
    """Refuse what cannot be read."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not is_readable(tensor):
            raise NotVerifiedError(f"{dtype_of(tensor)} in a layout of its own")


def part(
    call: OperatorCall,
    got: Array,
    exact: Array,
    scale: Array | float,
    box: Box,
    slot: int = 0,
    flushes: bool = True,
) -> Compared:
    """Return a part of an output."""
    out = call.made[slot]
    return Compared(
        got, exact, scale, dtype_of(out), box, tuple(out.shape), flushes, got.size == out.numel(), slot=slot
    )


# Softmax --------------------------------------------------------------------------------------------------------------


@rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out = call["self"], call.out
    check(x, out)
    dims = dims_of(call["dim"], x.dim())
    axis = dims[0] if x.dim() else ()
    box = rows_box(x.shape, dims, sampling)
    (given,) = yield [Read(x, box)]
    (got,) = yield [Read(out, box)]
    with np.errstate(all="ignore"):
        top = given.max(axis=axis, keepdims=True)
        shifted = given - np.where(np.isfinite(top), top, 0.0)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        size = np.where(np.isfinite(shifted), np.abs(shifted), 0.0)
        if call.name == "_log_softmax":
            exact = shifted - np.log(total)
            scale = 1 + size + np.abs(np.where(np.isfinite(given), given, 0.0)) + np.log(total)
        else:
            exact = np.exp(shifted) / total
            exact = np.where(total == 0, 0.0 if call.name == "_safe_softmax" else np.nan, exact)
            scale = exact * (2 + size)
    return [part(call, got, exact, scale, box)]


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    grad, output = call["grad_output"], call["output"]
    check(grad, output, call.out)
    dims = dims_of(call["dim"], output.dim())
    axis = dims[0] if output.dim() else ()
    box = rows_box(output.shape, dims, sampling)
    g, y = yield [Read(grad, box), Read(output, box)]
    (got,) = yield [Read(call.out, box)]
    with np.errstate(all="ignore"):
        if call.name.startswith("_log"):
            share = np.exp(y)
            exact = g - share * g.sum(axis=axis, keepdims=True)
            scale = np.abs(g) + share * (1 + np.abs(np.where(share > 0, y, 0))) * np.abs(g).sum(
                axis=axis, keepdims=True
            )
        else:
            exact = y * (g - (g * y).sum(axis=axis, keepdims=True))
            scale = np.abs(y) * (np.abs(g) + np.abs(g * y).sum(axis=axis, keepdims=True))
    return [part(call, got, exact, scale, box)]


@rule("logsumexp")
def _logsumexp(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["self"]
    check(x, call.out)
    dims = dims_of(call["dim"], x.dim())
    box = rows_box(x.shape, dims, sampling)
    where = reduced(box, dims, bool(call["keepdim"]))
    (given,) = yield [Read(x, box)]
    (got,) = yield [Read(call.out, where)]
    with np.errstate(all="ignore"):
        top = given.max(axis=dims, keepdims=True)
        exact = top + np.log(np.exp(given - top).sum(axis=dims, keepdims=True))
    exact = exact.reshape(got.shape)
    return [part(call, got, exact, 1 + np.abs(exact) + np.abs(top.reshape(got.shape)), where)]


# Sums -----------------------------------------------------------------------------------------------------------------


def sum_scale(x: Array, exact: Array, dims: tuple[int, ...]) -> Array:
    """Return the size of float32's error in adding these terms in the worst order: see `ANY_ORDER`."""
    terms = math.prod(x.shape[d] for d in dims)
    length = np.sqrt(np.square(x).sum(axis=dims, keepdims=True))
    return np.asarray(math.sqrt(terms) * length + math.sqrt(terms / 3) * np.abs(exact))


def _square_mean(x: Array, dims: tuple[int, ...]) -> Array:
    return np.asarray(np.square(x).mean(axis=dims, keepdims=True))


@rule("sum", "mean", "nansum", "prod", "amax", "amin", "var", "std", "any", "all", "linalg_vector_norm", "norm")
def _reduce(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["self"]
    check(x, call.out)
    dims = dims_of(call.get("dim"), x.dim())
    box = rows_box(x.shape, dims, sampling)
    where = reduced(box, dims, bool(call.get("keepdim", False)))
    (given,) = yield [Read(x, box)]
    (got,) = yield [Read(call.out, where)]
    if not given.size:
        return []
    given = np.asarray(given, np.float64)
    with np.errstate(all="ignore"):
        exact, scale = _REDUCTIONS[call.name](call, given, dims)
    if not call.out.dtype.is_floating_point:
        exact = np.where(np.abs(exact) < 2.0**53, exact, got.reshape(np.shape(exact)))
    return [part(call, got, exact.reshape(got.shape), np.asarray(scale).reshape(got.shape), where)]


def _sum(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    x = np.where(np.isnan(x), 0.0, x) if call.name == "nansum" else x
    exact = x.sum(axis=dims, keepdims=True)
    return exact, sum_scale(x, exact, dims)


def _mean(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    exact, scale = _sum(call, x, dims)
    terms = math.prod(x.shape[d] for d in dims)
    return exact / terms, scale / terms + np.abs(exact / terms)


def _prod(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    exact = x.prod(axis=dims, keepdims=True)
    return exact, np.abs(exact) * math.sqrt(math.prod(x.shape[d] for d in dims))


def _variance(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    correction = call.get("correction")
    if correction is None:
        correction = 0.0 if call.get("unbiased") is False else 1.0
    terms = math.prod(x.shape[d] for d in dims)
    exact = np.square(x - x.mean(axis=dims, keepdims=True)).sum(axis=dims, keepdims=True) / max(terms - correction, 0.0)
    scale = exact + np.sqrt(exact * _square_mean(x, dims))
    if call.name == "std":
        root = np.sqrt(exact)
        return root, np.where(root > 0, scale / np.maximum(root, 1e-300), np.sqrt(_square_mean(x, dims)))
    return exact, scale


def _norm(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    order = call.get("ord", call.get("p", 2))
    order = 2.0 if order is None else float(order)
    size = np.abs(x)
    if math.isinf(order):
        exact = size.max(axis=dims, keepdims=True) if order > 0 else size.min(axis=dims, keepdims=True)
    elif order == 0:
        exact = (size != 0).sum(axis=dims, keepdims=True).astype(np.float64)
    else:
        exact = (size**order).sum(axis=dims, keepdims=True) ** (1 / order)
    return exact, exact * math.sqrt(math.prod(x.shape[d] for d in dims) / 3)


def _extreme(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    exact = np.max(x, axis=dims, keepdims=True) if call.name == "amax" else np.min(x, axis=dims, keepdims=True)
    return exact, np.zeros_like(exact)


def _logical(call: OperatorCall, x: Array, dims: tuple[int, ...]) -> tuple[Array, Array]:
    exact = np.any(x != 0, axis=dims, keepdims=True) if call.name == "any" else np.all(x != 0, axis=dims, keepdims=True)
    return exact.astype(np.float64), np.zeros(exact.shape)


_REDUCTIONS: dict[str, Callable[[OperatorCall, Array, tuple[int, ...]], tuple[Array, Array]]] = {
    "sum": _sum,
    "nansum": _sum,
    "mean": _mean,
    "prod": _prod,
    "var": _variance,
    "std": _variance,
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "amax": _extreme,
    "amin": _extreme,
    "any": _logical,
    "all": _logical,
}
SUMS = frozenset({"sum", "nansum", "mean", "cumsum"})  # see `ANY_ORDER`


@rule("var_mean", "std_mean")
def _moments(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["self"]
    check(x, *call.made)
    dims = dims_of(call.get("dim"), x.dim())
    box = rows_box(x.shape, dims, sampling)
    where = reduced(box, dims, bool(call.get("keepdim", False)))
    (given,) = yield [Read(x, box)]
    got = yield [Read(made, where) for made in call.made]
    spread = OperatorCall("std" if call.name == "std_mean" else "var", call.overload, call.given, call.made)
    parts = []
    with np.errstate(all="ignore"):
        for slot, (function, one) in enumerate(((_variance, spread), (_mean, call))):
            exact, scale = function(one, given, dims)
            values = got[slot]
            parts.append(part(call, values, exact.reshape(values.shape), scale.reshape(values.shape), where, slot))
    return parts


@rule("cumsum")
def _cumsum(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["self"]
    check(x, call.out)
    dims = dims_of(call["dim"], x.dim())
    box = rows_box(x.shape, dims, sampling)
    (given,) = yield [Read(x, box)]
    (got,) = yield [Read(call.out, box)]
    given = np.asarray(given, np.float64)
    exact = given.cumsum(axis=dims[0]) if x.dim() else given
    if not call.out.dtype.is_floating_point:
        exact = np.where(np.abs(exact) < 2.0**53, exact, got)
    count = np.arange(1, given.shape[dims[0]] + 1).reshape([-1 if d == dims[0] else 1 for d in range(x.dim())])
    length = np.sqrt(np.square(given).cumsum(axis=dims[0]))
    return [part(call, got, exact, np.sqrt(count) * length + np.sqrt(count / 3) * np.abs(exact), box)]


@rule("max", "min", "argmax", "argmin")
def _choice(call: OperatorCall, sampling: Sampling) -> Steps:
    if isinstance(call.get("other"), torch.Tensor):
        raise NotVerifiedError("max of two tensors")
    x = call["self"]
    check(x, *call.made)
    dims = dims_of(call.get("dim"), x.dim())
    box = rows_box(x.shape, dims, sampling)
    where = reduced(box, dims, bool(call.get("keepdim", False)))
    (given,) = yield [Read(x, box)]
    got = yield [Read(made, where) for made in call.made]
    best = given.max if call.name.endswith("max") else given.min
    exact = np.asarray(best(axis=dims, keepdims=True), np.float64)
    parts: list[Compared] = []
    for slot, (made, values) in enumerate(zip(call.made, got)):
        if made.dtype == x.dtype and not call.name.startswith("arg") and slot == 0:
            parts.append(part(call, values, exact.reshape(values.shape), 0.0, where, slot))
            continue
        flat = np.moveaxis(given, dims, range(-len(dims), 0)).reshape(*values.shape, -1).astype(np.float64)
        index = np.clip(values.astype(np.int64), 0, flat.shape[-1] - 1)
        chosen = np.take_along_axis(flat, index[..., None], -1)[..., 0]
        best_of = exact.reshape(values.shape)
        right = (chosen == best_of) | np.isnan(best_of)
        parts.append(part(call, values, np.where(right, values, index + 1.0), 0.0, where, slot))
    return parts


@rule("sort", "topk")
def _sorted(call: OperatorCall, sampling: Sampling) -> Steps:
    x, values, indices = call["self"], call.made[0], call.made[1]
    check(x, values, indices)
    dims = dims_of(call.get("dim", -1), x.dim())
    axis = dims[0]
    box = rows_box(x.shape, dims, sampling)
    where = tuple(Range(0, 1, values.shape[d]) if d == axis else r for d, r in enumerate(box)) if x.dim() else box
    (given,) = yield [Read(x, box)]
    got, index = yield [Read(values, where), Read(indices, where)]
    given = np.asarray(given, np.float64)
    if not x.dim():
        return [part(call, got, given, 0.0, where)]
    largest = call.get("largest", call.get("descending", False))
    if not np.isfinite(given).all():
        raise NotVerifiedError("a sort of what is not finite")
    exact = np.sort(given, axis=axis)
    exact = np.flip(exact, axis) if largest else exact
    exact = np.take(exact, range(values.shape[axis]), axis)
    if call.get("sorted") is False:
        got, exact = np.sort(got, axis=axis), np.sort(exact, axis=axis)
        return [part(call, got, exact, 0.0, where)]
    chosen = np.take_along_axis(given, np.clip(index.astype(np.int64), 0, given.shape[axis] - 1), axis)
    return [part(call, got, exact, 0.0, where), part(call, chosen, exact, 0.0, where)]
