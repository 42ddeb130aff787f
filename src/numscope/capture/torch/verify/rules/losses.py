"""Losses and their backward: the sum over all elements, or each element of the gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Read, all_of, whole
from numscope.capture.torch.verify.rules.elementwise import Elementwise, Formula, Values, elementwise, softplus
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Rule, Steps, add_rule, rule
from numscope.capture.torch.verify.rules.rows import check, part
from numscope.capture.torch.verify.sampling import Sampling
from numscope.core.dtypes import SINGLE, unit_roundoff

_NONE, _MEAN = 0, 1  # reductions
_MOST = 1 << 20


@rule("nll_loss_forward", "nll_loss2d_forward", inputs=2)
def _nll(call: OperatorCall, sampling: Sampling) -> Steps:
    x, target, weight = call["self"], call["target"], call["weight"]
    check(x, target, *call.made)
    if x.dim() > 2 or x.shape[0] > _MOST or target.numel() > _MOST:
        raise NotVerifiedError("a loss of images, or of more than a million rows")
    rows = x.shape[0] if x.dim() == 2 else 1
    classes = x.shape[-1]
    labels, *weights = yield [all_of(target), *([all_of(weight)] if weight is not None else [])]
    label = labels.reshape(-1).astype(np.int64)
    kept = label != call["ignore_index"]
    chosen = np.clip(label, 0, classes - 1)
    flat = x if x.dim() == 2 else x.detach()
    strides = flat.stride()
    # One element of each row: rows of the matrix seen as one dimension would need a copy, so whole rows where it is small.
    if x.numel() <= 1 << 22:
        (values,) = yield [all_of(flat)]
        picked = values.reshape(rows, classes)[np.arange(rows), chosen]
    else:
        del strides
        raise NotVerifiedError("more than four million scores")
    got = yield [all_of(made) for made in call.made]
    w = np.where(kept, weights[0][chosen] if weights else 1.0, 0.0)
    each = np.where(kept, -picked * w, 0.0)
    total = float(w.sum())
    if call["reduction"] == _NONE:
        return [part(call, got[0], each.reshape(got[0].shape), np.abs(each).reshape(got[0].shape), whole(call.out))]
    with np.errstate(all="ignore"):
        exact = each.sum() / (total if call["reduction"] == _MEAN else 1.0)
        size = np.sqrt(np.square(each).sum() * rows) + math.sqrt(rows / 3) * abs(each.sum())
        scale = size / (total if call["reduction"] == _MEAN else 1.0) + abs(exact)
    return [part(call, got[0], np.full(got[0].shape, exact), np.full(got[0].shape, scale), whole(call.out))]


@rule("nll_loss_backward")
def _nll_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    x, target, weight, out = call["self"], call["target"], call["weight"], call.out
    check(x, target, out)
    if x.dim() > 2:
        raise NotVerifiedError("a loss of images")
    box = sampling.boxes(out.shape)[0]
    rows = box[:-1] if x.dim() == 2 else ()
    reads = [Read(target, rows) if x.dim() == 2 else all_of(target)]
    grad, total = call["grad_output"], call["total_weight"]
    each = grad.dim() > 0 and call["reduction"] == _NONE
    reads += [Read(grad, rows) if each else all_of(grad), all_of(total)]
    labels, g, weight_sum, *weights = yield [*reads, *([all_of(weight)] if weight is not None else [])]
    (got,) = yield [Read(out, box)]
    label = labels.reshape(-1).astype(np.int64)
    kept = label != call["ignore_index"]
    w = np.where(kept, weights[0][np.clip(label, 0, x.shape[-1] - 1)] if weights else 1.0, 0.0)
    with np.errstate(all="ignore"):
        size = (
            -np.asarray(g).reshape(-1)
            * w
            / (float(np.asarray(weight_sum).reshape(())) if call["reduction"] == _MEAN else 1.0)
        )
    exact = np.where(box[-1].places[None, :] == label[:, None], size[:, None], 0.0)
    exact = exact.reshape(got.shape)
    return [part(call, got, exact, np.abs(exact), box)]


def _reduced(function: Formula) -> Rule:
    """Return the rule of a loss: elements of two tensors, their sum or their mean."""

    def steps(call: OperatorCall, sampling: Sampling) -> Steps:
        x, target = call["self"], call["target"]
        check(x, target, call.out)
        names = [
            name for name in ("self", "target", "weight", "pos_weight") if isinstance(call.get(name), torch.Tensor)
        ]
        reduction = call.get("reduction", _MEAN)
        if reduction == _NONE:
            return (yield from elementwise(Elementwise(function, None, True))(call, sampling))
        if x.numel() > 1 << 22:
            raise NotVerifiedError("a loss of more than four million elements")
        values = yield [all_of(call[name]) for name in names]
        (got,) = yield [all_of(call.out)]
        plain = {name: value for name, value in call.given.items() if not isinstance(value, torch.Tensor)}
        with np.errstate(all="ignore"):
            each = np.asarray(function({**plain, **dict(zip(names, values))}), np.float64)
            share = each.size if reduction == _MEAN else 1
            exact = each.sum() / share
            size = np.sqrt(np.square(each).sum() * each.size) + math.sqrt(each.size / 3) * abs(each.sum())
        scale = np.full(got.shape, size / share + 4 * abs(exact))
        made = part(call, got, np.full(got.shape, exact), scale, whole(call.out))
        # In a narrow dtype each element's loss may be rounded to it before they are added up.
        times = unit_roundoff(made.dtype) / SINGLE
        return [made._replace(inner=times * np.abs(each).sum() / share if times > 1 else 0.0)]

    return steps


def _difference(v: Values) -> Array:
    return np.asarray(v["self"] - v["target"])


def _smooth(v: Values) -> Any:
    d, beta = np.abs(_difference(v)), v["beta"]
    return np.where(d < beta, 0.5 * d * d / beta if beta else 0.0, d - 0.5 * beta)


def _huber(v: Values) -> Any:
    d, delta = np.abs(_difference(v)), v["delta"]
    return np.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))


def _cross(v: Values) -> Any:
    x, y = v["self"], v["target"]
    made = -(y * np.maximum(np.log(x), -100) + (1 - y) * np.maximum(np.log1p(-x), -100))
    return made * v["weight"] if v.get("weight") is not None else made


def _cross_logits(v: Values) -> Any:
    x, y = v["self"], v["target"]
    if v.get("pos_weight") is not None:
        made = y * v["pos_weight"] * softplus(-x) + (1 - y) * softplus(x)
    else:
        made = softplus(x) - x * y
    return made * v["weight"] if v.get("weight") is not None else made


add_rule("mse_loss", _reduced(lambda v: _difference(v) ** 2))
add_rule("smooth_l1_loss", _reduced(_smooth))
add_rule("huber_loss", _reduced(_huber))
add_rule("binary_cross_entropy", _reduced(_cross))
add_rule("binary_cross_entropy_with_logits", _reduced(_cross_logits))


def _backward(slope: Formula, size: Formula) -> Rule:
    def share(v: Values) -> float:
        return 1.0 / v["elements"] if v.get("reduction", _MEAN) == _MEAN else 1.0

    function = Elementwise(
        lambda v: v["grad_output"] * slope(v) * share(v),
        lambda v: np.abs(v["grad_output"]) * size(v) * share(v),
        True,
        narrow=lambda v: 2 * np.abs(v["grad_output"]) * size(v) * share(v),  # the difference, and a product
    )
    inner = elementwise(function)

    def steps(call: OperatorCall, sampling: Sampling) -> Steps:
        given = {**call.given, "elements": call["self"].numel()}
        return (yield from inner(OperatorCall(call.name, call.overload, given, call.made), sampling))

    return steps


def _size(v: Values) -> Any:
    return np.abs(v["self"]) + np.abs(v["target"])


add_rule("mse_loss_backward", _backward(lambda v: 2 * _difference(v), lambda v: 2 * _size(v)))
add_rule(
    "smooth_l1_loss_backward",
    _backward(
        lambda v: np.where(
            np.abs(_difference(v)) < v["beta"], _difference(v) / (v["beta"] or 1), np.sign(_difference(v))
        ),
        lambda v: 1 + _size(v) / (v["beta"] or 1),
    ),
)
add_rule("huber_loss_backward", _backward(lambda v: np.clip(_difference(v), -v["delta"], v["delta"]), _size))
