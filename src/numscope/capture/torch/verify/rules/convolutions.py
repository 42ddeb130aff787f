"""Convolutions and their backward: a few elements, each summed over its window, its channels or all of its images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Box, Range, Read, is_readable
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.products import product_scale
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, dtype_of, rule
from numscope.capture.torch.verify.sampling import Sampling

_CHANNELS = 8
_PLACES = 2  # along each dimension
_SUM = 1 << 20  # terms of a weight's gradient


class Layout(NamedTuple):
    """The numbers that say which element meets which weight."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool


def _layout(call: OperatorCall, rank: int) -> Layout:
    def each(name: str) -> tuple[int, ...]:
        value = call[name]
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        return values * rank if len(values) == 1 else values

    return Layout(each("stride"), each("padding"), each("dilation"), call["groups"], bool(call["transposed"]))


class _Meeting(NamedTuple):
    """The taps of a kernel that meet elements, along one dimension, and the places of those."""

    taps: Array
    places: Array


def _meet(at: int, size: int, taps: int, dim: int, layout: Layout, scatter: bool) -> _Meeting:
    """Return what the element at a place of the result is made of: gathered from a window, or scattered to it."""
    stride, padding, dilation = layout.stride[dim], layout.padding[dim], layout.dilation[dim]
    tap = np.arange(taps)
    if scatter:
        offset = at + padding - tap * dilation
        place, fits = offset // stride, offset % stride == 0
    else:
        place, fits = at * stride - padding + tap * dilation, np.ones(taps, bool)
    fits &= (place >= 0) & (place < size)
    return _Meeting(tap[fits], place[fits])


class _Element(NamedTuple):
    """One place of the result in all sampled channels."""

    box: Box
    taps: list[_Meeting]
    source: Box | None  # None: no element meets the kernel


def _elements(
    source: torch.Tensor, result: torch.Tensor, kernel: Sequence[int], layout: Layout, scatter: bool, sampling: Sampling
) -> tuple[Range, int, list[_Element]]:
    """Choose channels of one group, and places; return the channels, the group and the places."""
    groups = layout.groups
    per = result.shape[1] // groups
    group = int(sampling.random.integers(groups))
    own = sampling.range(per, min(per, 64 if sampling.full else _CHANNELS))
    channels = Range(group * per + own.start, own.step, own.size)
    many = (6 if sampling.full else _PLACES) if result.dim() < 5 else 2
    images = sampling.range(result.shape[0], 1).places.tolist()
    places = [sampling.range(size, many).places.tolist() for size in result.shape[2:]]
    inner = source.shape[1] // groups
    span = Range(group * inner, 1, inner)
    found = []
    for image, *at in itertools.product(images, *places):
        taps = [
            _meet(place, size, taps, dim, layout, scatter)
            for dim, (place, size, taps) in enumerate(zip(at, source.shape[2:], kernel))
        ]
        box = (Range(image, 1, 1), channels, *(Range(place, 1, 1) for place in at))
        window = None
        if all(len(meeting.taps) for meeting in taps):
            lows = [int(m.places.min()) for m in taps]
            window = (
                Range(image, 1, 1),
                span,
                *(Range(low, 1, int(m.places.max()) - low + 1) for low, m in zip(lows, taps)),
            )
        found.append(_Element(box, taps, window))
    return own, group, found


def _reads(
    source: torch.Tensor, weight: torch.Tensor, chosen: tuple[Range, int, list[_Element]], groups: int, first: bool
) -> list[Read]:
    """Ask for the weights of the sampled channels, and for the window of each place; `first`: the weight's first
    dimension is the result's channels."""
    own, group, found = chosen
    kernel = tuple(Range(0, 1, size) for size in weight.shape[2:])
    lead = weight.shape[0] // groups
    if first:
        box = (Range(group * lead + own.start, own.step, own.size), Range(0, 1, weight.shape[1]), *kernel)
    else:
        box = (Range(group * lead, 1, lead), own, *kernel)
    return [Read(weight, box), *(Read(source, one.source) for one in found if one.source is not None)]


def _sums(values: list[Array], found: list[_Element], first: bool) -> list[tuple[Array, Array, int]]:
    """Return the exact sum at each place, its size, and the number of its terms."""
    weight, *windows = values
    weight = weight if first else np.moveaxis(weight, 0, 1)
    made = []
    given = iter(windows)
    for one in found:
        if one.source is None:
            zero = np.zeros(weight.shape[0])
            made.append((zero, zero, 1))
            continue
        window = next(given)[0]
        for dim, meeting in enumerate(one.taps, 1):
            window = np.take(window, meeting.places - meeting.places.min(), dim)
        taps = weight
        for dim, meeting in enumerate(one.taps, 2):
            taps = np.take(taps, meeting.taps, dim)
        flat, row = taps.reshape(len(taps), -1), window.reshape(-1, 1)
        with np.errstate(all="ignore"):
            exact = flat @ row
            made.append((exact[:, 0], product_scale(flat, row, exact)[:, 0], row.size))
    return made


def _compare(
    out: torch.Tensor,
    got: list[Array],
    sums: list[tuple[Array, Array, int]],
    found: list[_Element],
    bias: Array | float,
    slot: int,
) -> list[Compared]:
    shape = tuple(out.shape)
    parts = []
    for values, (exact, scale, _), one in zip(got, sums, found):
        right = (exact + bias).reshape(values.shape)
        size = (scale + np.abs(bias)).reshape(values.shape)
        parts.append(Compared(values, right, size, dtype_of(out), one.box, shape, True, slot=slot))
    return parts


def _check(*tensors: object) -> None:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not is_readable(tensor):
            raise NotVerifiedError(f"{dtype_of(tensor)} in a layout of its own")


@rule("convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution")
def _convolution(call: OperatorCall, sampling: Sampling) -> Steps:
    x, weight, out = call["input"], call["weight"], call.out
    _check(x, weight, out)
    if "transposed" not in call.given or x.dim() != weight.dim() or not out.numel():
        raise NotVerifiedError("a convolution of this form")
    layout = _layout(call, x.dim() - 2)
    first = not layout.transposed
    chosen = _elements(x, out, weight.shape[2:], layout, layout.transposed, sampling)
    bias = call.get("bias")
    _, _, found = chosen
    (_, channels, *_) = found[0].box
    reads = _reads(x, weight, chosen, layout.groups, first)
    values = yield [*reads, *([Read(bias, (channels,))] if isinstance(bias, torch.Tensor) else [])]
    got = yield [Read(out, one.box) for one in found]
    added = values[len(reads)] if len(values) > len(reads) else 0.0
    return _compare(out, got, _sums(values[: len(reads)], found, first), found, added, 0)


@rule("convolution_backward")
def _convolution_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    grad, x, weight = call["grad_output"], call["input"], call["weight"]
    _check(grad, x, weight)
    layout = _layout(call, x.dim() - 2)
    wanted = [isinstance(made, torch.Tensor) and made.numel() > 0 for made in call.made]
    first = layout.transposed
    found: list[_Element] = []
    asked: list[Read] = []
    if wanted[0]:
        chosen = _elements(grad, call.made[0], weight.shape[2:], layout, not layout.transposed, sampling)
        found = chosen[2]
        asked = _reads(grad, weight, chosen, layout.groups, first)
    terms = grad.shape[0] * math.prod(grad.shape[2:])
    sums = wanted[1] and terms <= _SUM
    pairs: list[tuple[int, int]] = []
    if sums:
        # The result's channel of the pair, and the place of the other among its group's.
        outer, inner = weight.shape[0], weight.shape[1]
        pairs = [(int(sampling.random.integers(outer)), int(sampling.random.integers(inner))) for _ in range(3)]
        pairs.append((outer - 1, inner - 1))
    reads = list(asked)
    left, right = (x, grad) if layout.transposed else (grad, x)  # by the weight's first and second dimension
    for a, b in pairs:
        group = a // (weight.shape[0] // layout.groups)
        reads.append(Read(left, _channel(left, a)))
        reads.append(Read(right, _channel(right, group * weight.shape[1] + b)))
    has_bias = len(wanted) > 2 and wanted[2] and terms <= _SUM
    bias_channels = sampling.range(grad.shape[1], 4)
    if has_bias:
        reads.append(Read(grad, tuple(bias_channels if d == 1 else Range(0, 1, s) for d, s in enumerate(grad.shape))))
    values = yield reads
    kernel = tuple(Range(0, 1, size) for size in weight.shape[2:])
    boxes = [(Range(a, 1, 1), Range(b, 1, 1), *kernel) for a, b in pairs]
    outputs = yield [
        *(Read(call.made[0], one.box) for one in found),
        *(Read(call.made[1], box) for box in boxes),
        *([Read(call.made[2], (bias_channels,))] if has_bias else []),
    ]
    parts: list[Compared] = []
    if found:
        parts += _compare(call.made[0], outputs[: len(found)], _sums(values[: len(asked)], found, first), found, 0.0, 0)
    rest = values[len(asked) :]
    for number, box in enumerate(boxes):
        wide, narrow = rest[2 * number : 2 * number + 2]
        # The tensor without kernel's offsets is the small side: the gradient of a plain convolution, its input else.
        exact, scale = _weight(wide, narrow, layout, weight.shape[2:])
        got = outputs[len(found) + number]
        out = call.made[1]
        parts.append(
            Compared(
                got,
                exact.reshape(got.shape),
                scale.reshape(got.shape),
                dtype_of(out),
                box,
                tuple(out.shape),
                True,
                slot=1,
            )
        )
    if has_bias:
        out = call.made[2]
        given = rest[-1]
        axes = tuple(d for d in range(given.ndim) if d != 1)
        exact = given.sum(axis=axes)
        scale = math.sqrt(terms) * np.sqrt(np.square(given).sum(axis=axes)) + math.sqrt(terms / 3) * np.abs(exact)
        parts.append(
            Compared(outputs[-1], exact, scale, dtype_of(out), (bias_channels,), tuple(out.shape), True, slot=2)
        )
    return parts


def _channel(tensor: torch.Tensor, channel: int) -> Box:
    return tuple(Range(channel, 1, 1) if d == 1 else Range(0, 1, size) for d, size in enumerate(tensor.shape))


def _weight(small: Array, large: Array, layout: Layout, kernel: Sequence[int]) -> tuple[Array, Array]:
    """Return the gradient of one channel pair's kernel: small at p meets large at p·stride - padding + tap·dilation."""
    exact, scale = np.zeros(kernel), np.zeros(kernel)
    for tap in np.ndindex(*kernel):
        a, b = small[:, 0], large[:, 0]
        for dim, at in enumerate(tap):
            place = (
                np.arange(small.shape[2 + dim]) * layout.stride[dim] - layout.padding[dim] + at * layout.dilation[dim]
            )
            fits = (place >= 0) & (place < large.shape[2 + dim])
            a, b = np.compress(fits, a, 1 + dim), np.take(b, place[fits], 1 + dim)
        with np.errstate(all="ignore"):
            exact[tap] = np.sum(a * b)
            size = math.sqrt(float(np.sum(a * a)) * float(np.sum(b * b)))
            scale[tap] = size + math.sqrt(max(a.size, 1) / 3) * abs(exact[tap])
    return exact, scale
