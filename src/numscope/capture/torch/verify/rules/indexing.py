"""Operators that move elements: look-ups, scatters, joins, fills; exact to the bit on samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Box, Range, Read, all_of, whole
from numscope.capture.torch.verify.rules.elementwise import Elementwise, elementwise
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, add_rule, rule
from numscope.capture.torch.verify.rules.rows import check, part
from numscope.capture.torch.verify.sampling import EXACT, Sampling

_ROWS = 256
_SMALL = 1 << 17  # elements of a scatter that is done again as a whole


@rule("embedding", inputs=2)
def _embedding(call: OperatorCall, sampling: Sampling) -> Steps:
    weight, indices, out = call["weight"], call["indices"], call.out
    check(weight, indices, out)
    if not out.numel():
        return []
    whole_of = sampling.full or out.numel() <= EXACT
    box = whole(indices) if whole_of else sampling.lattice(indices.shape, _ROWS)
    columns = Range(0, 1, weight.shape[1]) if whole_of else sampling.range(weight.shape[1], 64)
    (rows,) = yield [Read(indices, box)]
    (exact,) = yield [Read(weight, (columns,), np.clip(rows.astype(np.int64), 0, weight.shape[0] - 1))]
    (got,) = yield [Read(out, (*box, columns))]
    return [part(call, got, exact, 0.0, (*box, columns), flushes=False)]


@rule("embedding_dense_backward")
def _embedding_backward(call: OperatorCall, sampling: Sampling) -> Steps:
    grad, indices, out = call["grad_output"], call["indices"], call.out
    check(grad, indices, out)
    if call["scale_grad_by_freq"]:
        raise NotVerifiedError("gradients scaled by frequency")
    width = out.shape[1]
    columns = Range(0, 1, width) if sampling.full or grad.numel() <= EXACT else sampling.range(width, 8)
    box = (*whole(indices), columns)
    if math.prod(r.size for r in box) > 1 << 20:
        raise NotVerifiedError("more than a million gradients in the sample")
    rows, given = yield [all_of(indices), Read(grad, box)]
    place = (Range(0, 1, out.shape[0]), columns)
    (got,) = yield [Read(out, place)]
    flat, terms = rows.reshape(-1).astype(np.int64), given.reshape(-1, columns.size)
    keep = flat != call["padding_idx"]
    flat, terms = flat[keep], terms[keep]
    exact, squares = np.zeros(got.shape), np.zeros(got.shape)
    np.add.at(exact, flat, terms)
    np.add.at(squares, flat, np.square(terms))
    count = np.bincount(flat, minlength=out.shape[0])[:, None]
    return [part(call, got, exact, np.sqrt(count * squares) + np.sqrt(count / 3) * np.abs(exact), place)]


@rule("index_select", "gather", "index", inputs=1, host_only=True)
def _looked_up(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out = call["self"], call.out
    check(x, out)
    if x.numel() > 1 << 20 or out.numel() > 1 << 20:
        raise NotVerifiedError("a look-up among more than a million elements")
    indices = call["indices"] if call.name == "index" else [call["index"]]
    check(*indices)
    given, *rows = yield [all_of(x), *(all_of(one) for one in indices if one is not None)]
    (got,) = yield [all_of(out)]
    if call.name == "gather":
        exact = np.take_along_axis(given, rows[0].astype(np.int64), call["dim"]) if x.dim() else given
    elif call.name == "index_select":
        exact = np.take(given, rows[0].astype(np.int64).reshape(-1), call["dim"]) if x.dim() else given
    else:
        found = iter(rows)
        key: list[Any] = []
        for one in indices:
            if one is None:
                key.append(slice(None))
                continue
            value = next(found)
            key.append(value != 0 if one.dtype in (torch.bool, torch.uint8) else value.astype(np.int64))
        exact = given[tuple(key)]
    if exact.shape != got.shape:
        exact = exact.reshape(got.shape)
    return [part(call, got, exact, 0.0, whole(out), flushes=False)]


@rule("scatter", "scatter_add", "index_put", "index_add", "index_copy", "index_fill", "_index_put_impl", host_only=True)
def _scattered(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out = call["self"], call.out
    source = next((call[name] for name in ("src", "source", "values", "value") if name in call.given), None)
    tensors = [x, *([source] if isinstance(source, torch.Tensor) else [])]
    check(*tensors, out)
    if sum(one.numel() for one in tensors) > _SMALL or call.get("reduce"):
        raise NotVerifiedError("a scatter of more than 131,072 elements")
    indices = call["indices"] if "indices" in call.given else [call["index"]]
    check(*indices)
    values = yield [*map(all_of, tensors), *(all_of(one) for one in indices if one is not None)]
    (got,) = yield [all_of(out)]
    exact = np.array(values[0], np.float64)
    given: Any = values[1] if isinstance(source, torch.Tensor) else source
    found = iter(values[len(tensors) :])
    key: list[Any] = []
    adds = call.name in ("scatter_add", "index_add") or bool(call.get("accumulate"))
    if "indices" in call.given:
        for one in indices:
            value: Any = slice(None) if one is None else next(found)
            if one is not None:
                value = value != 0 if one.dtype in (torch.bool, torch.uint8) else value.astype(np.int64)
            key.append(value)
    else:
        index = next(found).astype(np.int64)
        dim = call["dim"] % max(x.dim(), 1)
        if call.name in ("scatter", "scatter_add"):
            key = list(np.indices(index.shape))
            key[dim] = index
            if isinstance(source, torch.Tensor):
                given = given[tuple(slice(0, size) for size in index.shape)]
        else:
            key = [slice(None)] * dim + [index.reshape(-1)]
    if not adds and len({tuple(np.ravel(k)) for k in key if isinstance(k, np.ndarray)}) == 0:
        raise NotVerifiedError("a scatter of this form")
    size, count = np.abs(exact), np.ones(exact.shape)
    if adds:
        alpha = call.get("alpha", 1)
        np.add.at(exact, tuple(key), alpha * given)
        np.add.at(size, tuple(key), np.abs(np.multiply(alpha, given)))
        np.add.at(count, tuple(key), 1)
    else:
        exact[tuple(key)] = given
        again = exact.copy()
        again[tuple(key)] = given
        seen = np.zeros(exact.shape)
        np.add.at(seen, tuple(key), 1)
        exact = np.where(seen > 1, got, again)  # which of several comes last is nobody's promise
    return [part(call, got, exact, size * np.sqrt(count), whole(out), flushes=False)]


@rule("cat")
def _joined(call: OperatorCall, sampling: Sampling) -> Steps:
    out = call.out
    tensors = [one for one in call["tensors"] if one.numel()]
    check(out, *tensors)
    dim = call["dim"] % max(out.dim(), 1)
    few = sampling.full or out.numel() <= EXACT
    starts = np.cumsum([0, *(one.shape[dim] for one in tensors)])
    chosen = range(len(tensors)) if few or len(tensors) <= 8 else sampling.range(len(tensors), 8).places.tolist()
    boxes: list[Box] = []
    targets: list[Box] = []
    for number in chosen:
        one = tensors[number]
        box = whole(one) if few else sampling.lattice(one.shape, 256)
        boxes.append(box)
        at = int(starts[number])
        targets.append(tuple(r._replace(start=r.start + at) if d == dim else r for d, r in enumerate(box)))
    exact = yield [Read(tensors[number], box) for number, box in zip(chosen, boxes)]
    got = yield [Read(out, box) for box in targets]
    return [part(call, g, e, 0.0, box, flushes=False) for g, e, box in zip(got, exact, targets)]


@rule("stack")
def _stacked(call: OperatorCall, sampling: Sampling) -> Steps:
    out, tensors = call.out, call["tensors"]
    check(out, *tensors)
    dim = call["dim"] % max(out.dim(), 1)
    few = sampling.full or out.numel() <= EXACT
    chosen = range(len(tensors)) if few or len(tensors) <= 8 else sampling.range(len(tensors), 8).places.tolist()
    boxes = [whole(tensors[0]) if few else sampling.lattice(tensors[0].shape, 256) for _ in chosen]
    targets = [(*box[:dim], Range(number, 1, 1), *box[dim:]) for number, box in zip(chosen, boxes)]
    exact = yield [Read(tensors[number], box) for number, box in zip(chosen, boxes)]
    got = yield [Read(out, box) for box in targets]
    return [part(call, g, np.expand_dims(e, dim), 0.0, box, flushes=False) for g, e, box in zip(got, exact, targets)]


@rule("slice_backward", "select_backward", "constant_pad_nd")
def _placed(call: OperatorCall, sampling: Sampling) -> Steps:
    """Look at elements that were put into a field of zeros, or of another constant."""
    out = call.out
    given = call["self"] if call.name == "constant_pad_nd" else call["grad_output"]
    check(out, given)
    target: list[Range] = []
    if call.name == "constant_pad_nd":
        pad = list(call["pad"])
        if min(pad, default=0) < 0:
            raise NotVerifiedError("padding that cuts")
        low = [0] * out.dim()
        for number in range(len(pad) // 2):
            low[out.dim() - 1 - number] = pad[2 * number]
        target = [Range(at, 1, size) for at, size in zip(low, given.shape)]
    else:
        dim = call["dim"] % out.dim()
        for d, size in enumerate(out.shape):
            target.append(Range(0, 1, size))
            if d == dim and call.name == "select_backward":
                target[d] = Range(call["index"] % size, 1, 1)
            elif d == dim:
                start = min(max(call["start"] + (size if call["start"] < 0 else 0), 0), size)
                target[d] = Range(start, call["step"], given.shape[d])
    box = sampling.boxes(out.shape)[0]
    inside: list[Range] = []
    places: list[Array] = []
    kept: list[Array] = []
    for r, t in zip(box, target):
        at = r.places - t.start
        fits = (at >= 0) & (at % t.step == 0) & (at // t.step < t.size)
        kept.append(np.flatnonzero(fits))
        places.append(at[fits] // t.step)
        inside.append(Range(0, 1, t.size))
    if call.name == "select_backward":
        dim = call["dim"] % out.dim()
        source = tuple(r for d, r in enumerate(inside) if d != dim)
    else:
        source = tuple(inside)
    if math.prod(r.size for r in source) > 1 << 20:
        raise NotVerifiedError("more than a million elements placed in zeros")
    (values,) = yield [Read(given, source)]
    (got,) = yield [Read(out, box)]
    if call.name == "select_backward":
        values = np.expand_dims(values, call["dim"] % out.dim())
    exact = np.full(got.shape, float(call.get("value", 0.0) or 0.0))
    if all(len(k) for k in kept):
        exact[np.ix_(*kept)] = values[np.ix_(*places)]
    return [part(call, got, exact, 0.0, box, flushes=False)]


@rule("tril", "triu")
def _triangle(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out = call["self"], call.out
    check(x, out)
    boxes = sampling.boxes(out.shape)
    given = yield [Read(x, box) for box in boxes]
    got = yield [Read(out, box) for box in boxes]
    parts = []
    for value, made, box in zip(given, got, boxes):
        above = box[-1].places[None, :] - box[-2].places[:, None]
        keep = above <= call["diagonal"] if call.name == "tril" else above >= call["diagonal"]
        parts.append(part(call, made, np.where(keep, value, 0.0), 0.0, box, flushes=False))
    return parts


@rule("repeat", "flip", "roll")
def _rearranged(call: OperatorCall, sampling: Sampling) -> Steps:
    x, out = call["self"], call.out
    check(x, out)
    if x.numel() > 1 << 20 or out.numel() > 1 << 20:
        raise NotVerifiedError("a rearrangement of more than a million elements")
    (given,) = yield [all_of(x)]
    (got,) = yield [all_of(out)]
    if call.name == "repeat":
        exact = np.tile(given, tuple(call["repeats"]))
    elif call.name == "flip":
        exact = np.flip(given, tuple(call["dims"]))
    else:
        dims = tuple(call["dims"]) or None
        shifts = tuple(call["shifts"])
        exact = np.roll(given, shifts if dims else shifts[0], dims)
    return [part(call, got, exact, 0.0, whole(out), flushes=False)]


@rule("native_dropout")
def _dropout(call: OperatorCall, sampling: Sampling) -> Steps:
    """Look at what the mask that was drawn leaves; whether it was drawn well is not asked."""
    x, out = call["input"], call.out
    mask = call.made[1]
    check(x, out, mask)
    if not mask.numel():
        raise NotVerifiedError("dropout that draws nothing")
    boxes = sampling.boxes(out.shape)
    given = yield [Read(x, box) for box in boxes]
    got = yield [Read(one, box) for one in (out, mask) for box in boxes]
    p = call["p"]
    scale = 0.0 if p == 1 else 1 / (1 - p)
    drawn = got[len(boxes) :]
    return [
        part(call, made, value * kept * scale, np.abs(value) * scale, box)
        for value, made, kept, box in zip(given, got, drawn, boxes)
    ]


def _filled(value: float) -> Elementwise:
    return Elementwise(lambda given: value, operands=())


for _name, _value in (("ones_like", 1.0), ("zeros_like", 0.0), ("new_zeros", 0.0), ("new_ones", 1.0)):
    add_rule(_name, elementwise(_filled(_value)))
for _name, _value in (("ones", 1.0), ("zeros", 0.0)):
    add_rule(_name, elementwise(_filled(_value)))
for _name in ("full", "full_like", "new_full"):
    add_rule(_name, elementwise(Elementwise(lambda given: given["fill_value"], operands=())))
