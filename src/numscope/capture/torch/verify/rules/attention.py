"""Attention in one kernel, and its backward: a few queries with all of their keys, and a few keys with all queries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Box, Range, Read, spread
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, rule
from numscope.capture.torch.verify.rules.rows import check, part
from numscope.capture.torch.verify.sampling import Sampling
from numscope.core.dtypes import unit_roundoff

_QUERIES = 8
_BACKWARDS = 0.25  # of those that are long: they need all queries with all keys
_FORWARD = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def _narrow(dtype: str) -> float:
    """Return the roundoff of the shares, which a kernel rounds to a narrow dtype before it mixes values, in float32's."""
    return max(unit_roundoff(dtype) / unit_roundoff("float32"), 1.0)


def _whole(size: int) -> Range:
    return Range(0, 1, size)


def _mask_of(call: OperatorCall) -> torch.Tensor | None:
    mask = call.get("attn_mask", call.get("attn_bias"))
    return mask if isinstance(mask, torch.Tensor) else None


def _scale_of(call: OperatorCall) -> float:
    scale = call.get("scale")
    return 1 / math.sqrt(call["query"].shape[-1]) if scale is None else float(scale)


def _scores(
    call: OperatorCall, q: Array, k: Array, mask: Array | None, queries: Array, keys: Array
) -> tuple[Array, Array]:
    """Return the scores of queries against keys, and the size of what they are made of."""
    scale = _scale_of(call)
    made = scale * (q @ np.swapaxes(k, -1, -2))
    size = abs(scale) * np.sqrt(np.square(q).sum(-1))[..., None] * np.sqrt(np.square(k).sum(-1))[..., None, :]
    if mask is not None:
        made = np.where(mask != 0, made, -np.inf) if mask.dtype == np.bool_ else made + mask
    if call.get("is_causal"):
        made = np.where(keys[None, :] <= queries[:, None], made, -np.inf)
    return made, size


def _read_mask(mask: torch.Tensor, box: Box) -> Read:
    return spread(mask, box)


def _is_choice(mask: torch.Tensor | None) -> bool:
    return mask is not None and mask.dtype is torch.bool


@rule(*_FORWARD)
def _attention(call: OperatorCall, sampling: Sampling) -> Steps:
    q, k, v, out = call["query"], call["key"], call["value"], call.out
    check(q, k, v, out)
    if call.get("dropout_p"):
        raise NotVerifiedError("attention with dropout")
    mask = _mask_of(call)
    repeat = q.shape[1] // k.shape[1]
    image, head = sampling.range(q.shape[0], 1), sampling.range(q.shape[1], 1)
    few = q.shape[-2] * k.shape[-2] <= 1 << 12
    some = sampling.range(q.shape[-2], q.shape[-2] if few or sampling.full else _QUERIES)
    lead = (image, head)
    other = (image, Range(head.start // repeat, 1, 1))
    box = (*lead, some, _whole(v.shape[-1]))
    keys = _whole(k.shape[-2])
    reads = [
        Read(q, (*lead, some, _whole(q.shape[-1]))),
        Read(k, (*other, keys, _whole(k.shape[-1]))),
        Read(v, (*other, keys, _whole(v.shape[-1]))),
    ]
    if mask is not None:
        reads.append(_read_mask(mask, (*lead, some, keys)[4 - mask.dim() :] if mask.dim() < 4 else (*lead, some, keys)))
    values = yield reads
    (got,) = yield [Read(out, box)]
    given = values[3] if mask is not None else None
    given = given != 0 if given is not None and _is_choice(mask) else given
    with np.errstate(all="ignore"):
        scores, size = _scores(call, values[0], values[1], given, some.places, keys.places)
        top = scores.max(-1, keepdims=True)
        shares = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        total = shares.sum(-1, keepdims=True)
        shares = shares / total
        exact = np.where(total > 0, shares @ values[2], np.nan)
        worst = np.where(shares > 0, size, 0.0).max(-1, keepdims=True)
        mixed = shares @ np.abs(values[2])
    made = part(call, got, exact, mixed * (2 + worst), box)
    return [made._replace(inner=_narrow(made.dtype) * mixed)]


@rule(*(f"{name}_backward" for name in _FORWARD))
def _attention_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    q, k, v, out = call["query"], call["key"], call["value"], call["out"]
    grad = call.get("grad_out", call.get("grad_out_"))
    check(q, k, v, out, grad)
    if call.get("dropout_p"):
        raise NotVerifiedError("attention with dropout")
    if q.shape[1] != k.shape[1] or q.shape[-2] * k.shape[-2] > 1 << 22:
        raise NotVerifiedError("the backward of a long or grouped attention")
    if q.shape[-2] * k.shape[-2] > 1 << 14 and not sampling.full and sampling.random.random() >= _BACKWARDS:
        raise NotVerifiedError("three of four backward passes of an attention of this length")
    mask = _mask_of(call)
    lead = (sampling.range(q.shape[0], 1), sampling.range(q.shape[1], 1))
    boxes = [(*lead, _whole(x.shape[-2]), _whole(x.shape[-1])) for x in (q, k, v, out, grad)]
    reads = [Read(x, box) for x, box in zip((q, k, v, out, grad), boxes)]
    square = (*lead, _whole(q.shape[-2]), _whole(k.shape[-2]))
    if mask is not None:
        reads.append(_read_mask(mask, square[4 - mask.dim() :] if mask.dim() < 4 else square))
    values = yield reads
    wanted = [slot for slot in range(3) if isinstance(call.made[slot], torch.Tensor) and call.made[slot].numel()]
    got = yield [Read(call.made[slot], boxes[slot]) for slot in wanted]
    given = values[5] if mask is not None else None
    given = given != 0 if given is not None and _is_choice(mask) else given
    x, y, z, mixed, g = values[:5]
    scale = _scale_of(call)
    with np.errstate(all="ignore"):
        scores, size = _scores(call, x, y, given, boxes[0][2].places, boxes[1][2].places)
        top = scores.max(-1, keepdims=True)
        shares = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        shares = shares / shares.sum(-1, keepdims=True)
        through = g @ np.swapaxes(z, -1, -2)
        mean = (g * mixed).sum(-1, keepdims=True)
        slope = shares * (through - mean)
        loose = shares * (
            np.abs(g) @ np.abs(np.swapaxes(z, -1, -2)) + (np.abs(g) * np.abs(mixed)).sum(-1, keepdims=True)
        )
        worst = 2 + float(np.where(shares > 0, size, 0.0).max(initial=0.0))
        exacts: list[Any] = [scale * slope @ y, scale * np.swapaxes(slope, -1, -2) @ x, np.swapaxes(shares, -1, -2) @ g]
        sizes: list[Any] = [
            scale * loose @ np.abs(y),
            scale * np.swapaxes(loose, -1, -2) @ np.abs(x),
            np.swapaxes(shares, -1, -2) @ np.abs(g),
        ]
    parts: list[Compared] = []
    for slot, found in zip(wanted, got):
        made = part(call, found, exacts[slot], worst * sizes[slot], boxes[slot], slot)
        parts.append(made._replace(inner=2 * _narrow(made.dtype) * sizes[slot]))
    return parts
