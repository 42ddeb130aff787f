"""Pooling and its backward: a few planes (one channel of one image), each computed whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numscope.capture.torch.verify.lens import Array, Box, Range, Read
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, rule
from numscope.capture.torch.verify.rules.rows import check, part
from numscope.capture.torch.verify.sampling import EXACT, Sampling

_PLANES = 8
_LARGEST = 1 << 20  # elements of a plane


class _Window(NamedTuple):
    """The places that an output takes along one dimension: from a start on, so many, so far apart."""

    starts: Array
    stops: Array
    step: int
    size: int  # of the input
    padding: int

    def members(self) -> Array:
        """Return which places of the input each output takes, (outputs, inputs)."""
        places = np.arange(self.size)
        inside = (places >= self.starts[:, None]) & (places < self.stops[:, None])
        return np.asarray(inside & ((places - self.starts[:, None]) % self.step == 0), np.float64)


def _each(call: OperatorCall, name: str, rank: int, default: Sequence[int]) -> tuple[int, ...]:
    value = call.get(name)
    values = tuple(value) if isinstance(value, (list, tuple)) else () if value is None else (value,)
    return tuple(default) if not values else values * rank if len(values) == 1 else values


def _windows(call: OperatorCall, source: Sequence[int], made: Sequence[int]) -> list[_Window]:
    rank = len(source)
    kernel = _each(call, "kernel_size", rank, ())
    stride = _each(call, "stride", rank, kernel)
    padding, dilation = _each(call, "padding", rank, (0,) * rank), _each(call, "dilation", rank, (1,) * rank)
    found = []
    for size, out, taps, by, pad, apart in zip(source, made, kernel, stride, padding, dilation, strict=True):
        starts = np.arange(out) * by - pad
        found.append(_Window(starts, starts + (taps - 1) * apart + 1, apart, size, pad))
    return found


def _adaptive(source: Sequence[int], made: Sequence[int]) -> list[_Window]:
    found = []
    for size, out in zip(source, made, strict=True):
        place = np.arange(out)
        found.append(_Window(place * size // out, -(-(place + 1) * size // out), 1, size, 0))
    return found


def _planes(shape: Sequence[int], rank: int, sampling: Sampling) -> Box:
    """Return a box of some planes, by the dimensions before them."""
    lead, size = shape[:-rank], math.prod(shape[-rank:])
    if size > _LARGEST:
        raise NotVerifiedError(f"planes of more than {_LARGEST:,} elements")
    if sampling.full or math.prod(shape) <= EXACT:
        return tuple(Range(0, 1, count) for count in lead)
    return sampling.lattice(lead, max(1, min(_PLANES, _LARGEST // max(size, 1))))


def _whole(shape: Sequence[int]) -> Box:
    return tuple(Range(0, 1, size) for size in shape)


def _rank(call: OperatorCall) -> int:
    return 3 if "3d" in call.name else 2


def _along(values: Array, tables: Sequence[Array]) -> Array:
    """Apply a table, (outputs, inputs), along each of the last dimensions."""
    for number, table in enumerate(tables):
        axis = values.ndim - len(tables) + number
        values = np.moveaxis(np.tensordot(values, table, axes=([axis], [1])), -1, axis)
    return values


def _divisor(call: OperatorCall, windows: Sequence[_Window]) -> Array:
    """Return by what each output's sum is divided."""
    override = call.get("divisor_override")
    if override:
        return np.array(float(override))
    counts = []
    for window in windows:
        if call.get("count_include_pad", False):
            counts.append(np.minimum(window.stops, window.size + window.padding) - window.starts)
        else:
            counts.append(np.minimum(window.stops, window.size) - np.maximum(window.starts, 0))
    total = np.ones(())
    for count in counts:
        total = total[..., None] * count
    return np.asarray(total, np.float64)


@rule("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _average(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out, rank = call["self"], call.out, _rank(call)
    check(x, out)
    if not out.numel():
        return []
    lead = _planes(x.shape, rank, sampling)
    (given,) = yield [Read(x, (*lead, *_whole(x.shape[-rank:])))]
    (got,) = yield [Read(out, (*lead, *_whole(out.shape[-rank:])))]
    adaptive = call.name.startswith("_adaptive")
    windows = (
        _adaptive(x.shape[-rank:], out.shape[-rank:])
        if adaptive
        else _windows(call, x.shape[-rank:], out.shape[-rank:])
    )
    tables = [window.members() for window in windows]
    divisor = _divisor(call, windows)
    with np.errstate(all="ignore"):
        total, square = _along(given, tables), _along(np.square(given), tables)
        terms = _along(np.ones_like(given), tables)
        scale = np.sqrt(terms * square) + np.sqrt(terms / 3) * np.abs(total)  # of a sum in the worst order
        exact = total / divisor
    return [part(call, got, exact, scale / np.abs(divisor) + np.abs(exact), (*lead, *_whole(out.shape[-rank:])))]


def _added(made: Compared, size: Array, terms: Array) -> Compared:
    """Grant what adding terms in the output's own dtype costs: each of the sums on the way is rounded, and none is larger."""
    return made._replace(allowed=np.abs(made.exact) + np.maximum(terms - 1, 0) * size)


@rule("avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _average_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    grad, x, rank = call["grad_output"], call["self"], _rank(call)
    check(grad, call.out)
    if not call.out.numel():
        return []
    lead = _planes(x.shape, rank, sampling)
    (given,) = yield [Read(grad, (*lead, *_whole(grad.shape[-rank:])))]
    (got,) = yield [Read(call.out, (*lead, *_whole(x.shape[-rank:])))]
    adaptive = call.name.startswith("_adaptive")
    windows = (
        _adaptive(x.shape[-rank:], grad.shape[-rank:])
        if adaptive
        else _windows(call, x.shape[-rank:], grad.shape[-rank:])
    )
    tables = [window.members().T for window in windows]
    with np.errstate(all="ignore"):
        shares = given / _divisor(call, windows)
        exact, scale = _along(shares, tables), _along(np.abs(shares), tables)
        terms = _along(np.ones_like(shares), tables)
        terms = terms + 2  # each share is divided by the window's lengths, one after the other
    return [_added(part(call, got, exact, 2 * scale, (*lead, *_whole(x.shape[-rank:]))), scale, terms)]


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _largest(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out, rank = call["self"], call.out, _rank(call)
    check(x, out)
    if not out.numel():
        return []
    source, made = tuple(x.shape[-rank:]), tuple(out.shape[-rank:])
    lead = _planes(x.shape, rank, sampling)
    where = (*lead, *_whole(made))
    (given,) = yield [Read(x, (*lead, *_whole(source)))]
    got, places = yield [Read(out, where), Read(call.made[1], where)]
    exact = np.full(got.shape, -np.inf)
    windows = _windows(call, source, made)
    taps = [range(0, int(window.stops[0] - window.starts[0]), window.step) for window in windows]
    for offsets in itertools.product(*taps):
        index = [window.starts + offset for window, offset in zip(windows, offsets)]
        inside = np.ones((), bool)
        for at, window in zip(index, windows):
            inside = inside[..., None] & ((at >= 0) & (at < window.size))
        grid = np.ix_(*(np.clip(at, 0, window.size - 1) for at, window in zip(index, windows)))
        exact = np.maximum(exact, np.where(inside, given[(..., *grid)], -np.inf))
    # Of several that are largest, any may be named: what it names must be as large.
    flat = given.reshape(*given.shape[:-rank], -1)
    chosen = np.take_along_axis(flat, places.reshape(*places.shape[:-rank], -1), -1).reshape(exact.shape)
    same = (chosen == exact) | (np.isnan(chosen) & np.isnan(exact))
    return [
        part(call, got, exact, np.zeros_like(exact), where),
        part(call, np.where(same, 0.0, 1.0), np.zeros_like(exact), 0.0, where, slot=1),
    ]


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _largest_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    grad, x, rank = call["grad_output"], call["self"], _rank(call)
    indices: Any = call["indices"]
    check(grad, indices, call.out)
    if not call.out.numel():
        return []
    lead = _planes(x.shape, rank, sampling)
    where = (*lead, *_whole(grad.shape[-rank:]))
    given, places = yield [Read(grad, where), Read(indices, where)]
    (got,) = yield [Read(call.out, (*lead, *_whole(x.shape[-rank:])))]
    planes = math.prod(given.shape[:-rank])
    exact, scale, terms = np.zeros((3, planes, math.prod(x.shape[-rank:])))
    rows, at = np.arange(planes)[:, None], places.reshape(planes, -1)
    values = given.reshape(planes, -1)
    np.add.at(exact, (rows, at), values)
    np.add.at(scale, (rows, at), np.abs(values))
    np.add.at(terms, (rows, at), 1.0)
    box = (*lead, *_whole(x.shape[-rank:]))
    shape = got.shape
    exact, scale, terms = exact.reshape(shape), scale.reshape(shape), terms.reshape(shape)
    return [_added(part(call, got, exact, 2 * scale, box), scale, terms)]
