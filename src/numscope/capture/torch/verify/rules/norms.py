"""Normalisations and their backward: whole rows, whole groups or whole channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Range, Read, all_of, whole
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, rule
from numscope.capture.torch.verify.rules.rows import check, part, rows_box
from numscope.capture.torch.verify.sampling import EXACT, Sampling

_CHANNEL_ELEMENTS = 1 << 18


def _affine(x: Array, call: OperatorCall, given: list[Array]) -> tuple[Array, Array]:
    """Return what is normalised times the weight plus the bias, and the size of that."""
    values = iter(given)
    scale = np.abs(x)
    if isinstance(call.get("weight"), torch.Tensor):
        weight = next(values)
        x, scale = x * weight, scale * np.abs(weight)
    if isinstance(call.get("bias"), torch.Tensor):
        bias = next(values)
        x, scale = x + bias, scale + np.abs(bias)
    return x, scale


def _root(x: Array, dims: tuple[int, ...]) -> Array:
    """Return the root of the mean square: a mean is off by a part of it."""
    return np.asarray(np.sqrt(np.square(x).mean(axis=dims, keepdims=True)))


def _parameters(call: OperatorCall) -> list[torch.Tensor]:
    return [call[name] for name in ("weight", "bias") if isinstance(call.get(name), torch.Tensor)]


@rule("native_layer_norm", "_fused_rms_norm")
def _row_norm(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["input"]
    check(x, *call.made)
    count = len(call["normalized_shape"])
    dims = tuple(range(x.dim() - count, x.dim()))
    box = rows_box(x.shape, dims, sampling)
    few = tuple(Range(0, 1, 1) if d in dims else r for d, r in enumerate(box))
    given, *parameters = yield [Read(x, box), *map(all_of, _parameters(call))]
    statistics = [made for made in call.made[1:] if made.numel() and made.dim() == x.dim()]
    got, *found = yield [Read(call.out, box), *(Read(made, few) for made in statistics)]
    eps = call["eps"]
    if eps is None:
        eps = torch.finfo(x.dtype if x.dtype.itemsize > 2 or not x.is_cpu else torch.float32).eps
    with np.errstate(all="ignore"):
        is_rms = call.name == "_fused_rms_norm"
        mean = np.zeros_like(given.mean(axis=dims, keepdims=True)) if is_rms else given.mean(axis=dims, keepdims=True)
        rstd = 1 / np.sqrt(np.square(given - mean).mean(axis=dims, keepdims=True) + eps)
        root = _root(given, dims)  # of which a mean is off by a part
        normal = (given - mean) * rstd
        exact, _ = _affine(normal, call, parameters)
        _, scale = _affine((np.abs(given) + root) * rstd + np.abs(normal), call, parameters)
        sizes = [root, rstd * (1 + np.square(mean * rstd))]
    exacts = [rstd] if is_rms else [mean, rstd]
    sizes = sizes[1:] if is_rms else sizes
    parts = [part(call, got, exact, scale, box)]
    for slot, (values, right, size) in enumerate(zip(found, exacts, sizes), 1):
        parts.append(part(call, values, right, size, few, slot))
    return parts


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _row_norm_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    x, grad = call["input"], call["grad_out"]
    weight = call.get("weight")
    check(x, grad)
    is_rms = call.name == "_fused_rms_norm_backward"
    dims = tuple(range(x.dim() - len(call["normalized_shape"]), x.dim()))
    wanted = [made for made in call.made if isinstance(made, torch.Tensor) and made.numel()]
    check(*wanted)
    box = rows_box(x.shape, dims, sampling)
    few = tuple(Range(0, 1, 1) if d in dims else r for d, r in enumerate(box))
    names = ["rstd"] if is_rms else ["mean", "rstd"]
    statistics = [call[name].reshape(tuple(x.shape[: dims[0]]) + (1,) * len(dims)) for name in names]
    rows = [Read(grad, box), Read(x, box), *(Read(one, few) for one in statistics)]
    # The parameters' gradients are sums over all rows: of a few columns.
    columns = sampling.lattice([x.shape[d] for d in dims], 16 if x.numel() > EXACT else x.numel())
    tall = (*(Range(0, 1, size) for size in x.shape[: dims[0]]), *columns)
    stats = [Read(one, whole(one)) for one in statistics]
    many = math.prod(r.size for r in tall) <= 1 << 20
    parameters = [slot for slot in (1, 2) if slot < len(call.made) and isinstance(call.made[slot], torch.Tensor)]
    parameters = [slot for slot in parameters if call.made[slot].numel()] if many else []
    more = [Read(grad, tall), Read(x, tall), *stats] if parameters else []
    has_input = isinstance(call.made[0], torch.Tensor) and call.made[0].numel() > 0
    values = yield [*rows, *([all_of(weight)] if isinstance(weight, torch.Tensor) else []), *more]
    got = yield [
        *([Read(call.made[0], box)] if has_input else []),
        *(Read(call.made[slot], columns) for slot in parameters),
    ]
    g, v, *own = values[: 2 + len(names)]
    rest = values[2 + len(names) :]
    w: Any = 1.0
    if isinstance(weight, torch.Tensor):
        w, rest = rest[0], rest[1:]
    parts: list[Compared] = []
    outputs = iter(got)
    with np.errstate(all="ignore"):
        mean, rstd = (0.0, own[0]) if is_rms else (own[0], own[1])
        if has_input:
            normal = (v - mean) * rstd
            gw = g * w
            length = math.prod(x.shape[d] for d in dims)
            second = (gw * normal).mean(axis=dims, keepdims=True)
            first = 0.0 if is_rms else gw.mean(axis=dims, keepdims=True)
            exact = rstd * (gw - first - normal * second)
            root = np.sqrt(np.square(gw).mean(axis=dims, keepdims=True))
            scale = (
                rstd
                * (np.abs(gw) + root * (1 + np.abs(normal) * (1 + np.abs(mean) * rstd)))
                * (1 + np.abs(mean) * rstd + math.sqrt(length) / 16)
            )
            parts.append(part(call, next(outputs), exact, scale, box))
        if parameters:
            g, v, *own = rest
            mean, rstd = (0.0, own[0]) if is_rms else (own[0], own[1])
            axes = tuple(range(dims[0]))
            terms = math.prod(x.shape[: dims[0]])
            for slot in parameters:
                each = g * (v - mean) * rstd if slot == 1 else g
                exact = each.sum(axis=axes)
                size = np.abs(g) * (np.abs(v) + np.abs(mean)) * rstd if slot == 1 else np.abs(g)
                scale = math.sqrt(terms) * np.sqrt(np.square(size).sum(axis=axes)) + math.sqrt(terms / 3) * np.abs(
                    exact
                )
                parts.append(part(call, next(outputs), exact, scale, columns, slot))
    return parts


_BATCH = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)


@rule(*_BATCH)
def _batch_norm(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["input"]
    check(x, call.out)
    if x.dim() < 2:
        raise NotVerifiedError("a batch norm of vectors")
    training = call.get("training", call.get("train"))
    if call.name == "_native_batch_norm_legit_no_training":
        training = False
    if training is None:
        training = True
    channels, dims = _channels(x, sampling)
    box = tuple(channels if d == 1 else Range(0, 1, size) for d, size in enumerate(x.shape))
    parameters = _parameters(call)
    running = [] if training else [call["running_mean"], call["running_var"]]
    given, *values = yield [Read(x, box), *(Read(one, (channels,)) for one in (*running, *parameters))]
    (got,) = yield [Read(call.out, box)]
    shape = tuple(-1 if d == 1 else 1 for d in range(x.dim()))
    values = [one.reshape(shape) for one in values]
    with np.errstate(all="ignore"):
        if training:
            mean, variance = given.mean(axis=dims, keepdims=True), given.var(axis=dims, keepdims=True)
        else:
            mean, variance = values[:2]
            values = values[2:]
        eps = call.get("eps", call.get("epsilon"))
        rstd = 1 / np.sqrt(variance + eps)
        exact, _ = _affine((given - mean) * rstd, call, values)
        _, scale = _affine((np.abs(given) + _root(given, dims)) * rstd * (1 + np.square(mean * rstd)), call, values)
    return [part(call, got, exact, scale, box)]


def _channels(x: torch.Tensor, sampling: Sampling) -> tuple[Range, tuple[int, ...]]:
    per = max(x.numel() // max(x.shape[1], 1), 1)
    if per > 1 << 22:
        raise NotVerifiedError("a channel of more than 4,194,304 elements")
    count = x.shape[1] if sampling.full or x.numel() <= EXACT else max(1, min(8, _CHANNEL_ELEMENTS // per))
    return sampling.range(x.shape[1], count), tuple(d for d in range(x.dim()) if d != 1)


@rule("native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "batch_norm_backward")
def _batch_norm_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    x = call["input"]
    grad = call.get("grad_out", call.get("grad_output"))
    check(x, grad)
    training = call.get("train", call.get("update", True))
    if x.dim() < 2:
        raise NotVerifiedError("a batch norm of vectors")
    channels, dims = _channels(x, sampling)
    box = tuple(channels if d == 1 else Range(0, 1, size) for d, size in enumerate(x.shape))
    mean_of = call.get("save_mean") if training else call["running_mean"]
    second = call.get("save_invstd", call.get("save_var")) if training else call["running_var"]
    if not (isinstance(mean_of, torch.Tensor) and isinstance(second, torch.Tensor) and mean_of.numel()):
        raise NotVerifiedError("statistics that are not given")
    weight = call.get("weight")
    weights = [weight] if isinstance(weight, torch.Tensor) else []
    g, v, *vectors = yield [
        Read(grad, box),
        Read(x, box),
        *(Read(one, (channels,)) for one in (mean_of, second, *weights)),
    ]
    wanted = [slot for slot, made in enumerate(call.made[:3]) if isinstance(made, torch.Tensor) and made.numel()]
    got = yield [Read(call.made[slot], box if slot == 0 else (channels,)) for slot in wanted]
    shape = tuple(-1 if d == 1 else 1 for d in range(x.dim()))
    mean, rstd, *rest = (one.reshape(shape) for one in vectors)
    parts: list[Compared] = []
    with np.errstate(all="ignore"):
        if not training:
            rstd = 1 / np.sqrt(rstd + call.get("eps", call.get("epsilon")))
        w = rest[0] if rest else 1.0
        normal = (v - mean) * rstd
        size = (np.abs(v) + np.abs(mean)) * rstd
        terms = x.numel() // x.shape[1]
        sums = (g * normal).sum(axis=dims, keepdims=True), g.sum(axis=dims, keepdims=True)
        root = np.sqrt(np.square(g).mean(axis=dims, keepdims=True))
        for slot, values in zip(wanted, got):
            if slot == 0:
                exact = rstd * w * (g - sums[1] / terms - normal * sums[0] / terms) if training else rstd * w * g
                scale = np.abs(rstd * w) * (np.abs(g) + root * (1 + size) * (1 + math.sqrt(terms) / 16))
                parts.append(part(call, values, exact, scale, box))
                continue
            each = g * size if slot == 1 else g
            exact = sums[slot - 1].reshape(-1)
            length = np.sqrt(np.square(each).sum(axis=dims)).reshape(-1)
            scale = math.sqrt(terms) * length + math.sqrt(terms / 3) * np.abs(exact)
            parts.append(part(call, values, exact, scale, (channels,), slot))
    return parts


@rule("native_group_norm")
def _group_norm(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out, groups, eps = call["input"], call.out, call["group"], call["eps"]
    check(x, out)
    channels = x.shape[1] // groups
    per = channels * math.prod(x.shape[2:])
    if per > 1 << 22:
        raise NotVerifiedError("a group of more than 4,194,304 elements")
    image = sampling.range(x.shape[0], 1 if not sampling.full and x.numel() > EXACT else x.shape[0])
    group = sampling.range(groups, 2 if not sampling.full and x.numel() > EXACT else groups)
    reads: list[Read] = []
    boxes = []
    for g in group.places.tolist():
        span = Range(g * channels, 1, channels)
        box = (image, span, *(Range(0, 1, size) for size in x.shape[2:]))
        boxes.append(box)
        reads += [Read(x, box), *(Read(one, (span,)) for one in _parameters(call))]
    values = iter((yield reads))
    got = yield [Read(out, box) for box in boxes]
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    dims = tuple(range(1, x.dim()))
    parts = []
    with np.errstate(all="ignore"):
        for box, found in zip(boxes, got):
            given = next(values)
            parameters = [next(values).reshape(shape) for _ in _parameters(call)]
            mean = given.mean(axis=dims, keepdims=True)
            rstd = 1 / np.sqrt(given.var(axis=dims, keepdims=True) + eps)
            exact, _ = _affine((given - mean) * rstd, call, parameters)
            _, scale = _affine(
                (np.abs(given) + _root(given, dims)) * rstd * (1 + np.square(mean * rstd)), call, parameters
            )
            parts.append(part(call, found, exact, scale, box))
    return parts
