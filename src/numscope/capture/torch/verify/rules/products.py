"""Sums of products: a random sign for each column reduces three matrices to thin ones, and a few elements are exact.

For signs v and C = A·B, the row sums C·v and A·(B·v) agree but for rounding. One pass over each operand sees every element
of C, where a sample sees a few; a lattice of elements, each a whole dot product, says how large the error of one is.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from numscope.capture.torch.verify.lens import Array, Box, Range, Read, is_readable, spread
from numscope.capture.torch.verify.measure import Compared
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Steps, dtype_of, rule
from numscope.capture.torch.verify.sampling import EXACT, Sampling

_SIDE = 8  # rows and columns of the lattice
_ALL = 1 << 22  # multiplications: a product of no more is computed whole
_EXAMINED = 1 << 33
_PROJECTIONS = 0.25  # of the calls, so that verifying takes no longer than what it verifies
_PROJECTED = 1 << 26  # elements of the operands together, up to which the host projects them
PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "convolution", "convolution_backward", "linear", "vdot"}
)


def _matrices(call: OperatorCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors as batches of matrices; views, made without an operator that a device might do wrong."""
    given = call.given
    first = given.get("mat1", given.get("batch1", given.get("self")))
    second = given.get("mat2", given.get("batch2", given.get("vec", given.get("tensor", given.get("other")))))
    return first, second


@rule("mm", "bmm", "addmm", "baddbmm", "_addmm_activation")
def _product(call: OperatorCall, sampling: Sampling) -> Steps:
    a, b = _matrices(call)
    out = call.out
    if call.name == "_addmm_activation":
        raise NotVerifiedError("a product with its activation in one kernel")
    term = call.get("self") if call.name in ("addmm", "baddbmm") else None
    for tensor in (a, b, out):
        if not is_readable(tensor):
            raise NotVerifiedError(f"{dtype_of(tensor)} in a layout of its own")
    batches = a.shape[0] if a.dim() == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if not out.numel():
        return []
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    term = term if beta != 0 else None
    everything = batches * m * n * k <= (_EXAMINED if sampling.full else _ALL)
    if everything:
        batch, rows, columns = Range(0, 1, batches), Range(0, 1, m), Range(0, 1, n)
    else:
        batch = sampling.range(batches, 2)
        rows, columns = sampling.range(m, _SIDE), sampling.range(n, _SIDE)
    lead = (batch,) if a.dim() == 3 else ()
    inner = Range(0, 1, k)
    box = (*lead, rows, columns)
    given = [Read(a, (*lead, rows, inner)), Read(b, (*lead, inner, columns))]
    if term is not None:
        given.append(spread(term, box))
    project = (
        not everything
        and (sampling.full or sampling.random.random() < _PROJECTIONS)
        and out.is_cpu
        and a.numel() + b.numel() + out.numel() <= _PROJECTED
    )
    turn = sampling.range(batches, 1)
    one = (turn,) if a.dim() == 3 else ()
    sign_box = (*one, Range(0, 1, m), Range(0, 1, n))
    if project:
        given += [Read(a, (*one, Range(0, 1, m), inner)), Read(b, (*one, inner, Range(0, 1, n)))]
        if term is not None:
            given.append(spread(term, sign_box))
    values = iter((yield given))
    x, y = next(values), next(values)
    bias = next(values) if term is not None else 0.0
    got = yield [Read(out, box), *([Read(out, sign_box)] if project else [])]
    parts = [_part(call, got[0], x, y, alpha, beta, bias, box, everything)]
    if project:
        x, y = next(values), next(values)
        bias = next(values) if term is not None else 0.0
        parts.append(_projection(call, got[1], (x, y), alpha, beta, bias, sign_box, sampling))
    return parts


def _part(
    call: OperatorCall,
    got: Array,
    x: Array,
    y: Array,
    alpha: float,
    beta: float,
    bias: Array | float,
    box: Box,
    whole: bool,
) -> Compared:
    with np.errstate(all="ignore"):
        exact = alpha * np.matmul(x, y) + beta * bias
        scale = abs(alpha) * product_scale(x, y, np.matmul(x, y)) + np.abs(beta * bias)
    return Compared(got, exact, scale, dtype_of(call.out), box, tuple(call.out.shape), True, whole)


def product_scale(x: Array, y: Array, exact: Array) -> Array:
    """Return the size of float32's error in adding up these products in the worst order: see `ANY_ORDER`."""
    rows, columns = np.einsum("...k,...k->...", x, x), np.einsum("...kn,...kn->...n", y, y)
    norms = np.sqrt(rows)[..., :, None] * np.sqrt(columns)[..., None, :]
    return np.asarray(norms + math.sqrt(x.shape[-1] / 3) * np.abs(exact))


def _projection(
    call: OperatorCall,
    got: Array,
    factors: tuple[Array, Array],
    alpha: float,
    beta: float,
    bias: Array | float,
    box: Box,
    sampling: Sampling,
) -> Compared:
    """Compare the rows of the output with signs in front of their elements."""
    x, y = factors
    with np.errstate(all="ignore"):
        signs = np.where(sampling.random.random(y.shape[-1]) < 0.5, -1.0, 1.0)
        thin = y @ signs
        term = np.broadcast_to(np.asarray(bias), got.shape) @ signs if np.ndim(bias) else 0.0
        exact = alpha * (x @ thin) + beta * term
        found = got @ signs
        # The errors of a row's elements add up as a random walk; its rounding to the output's dtype does, too.
        row = np.sqrt(np.einsum("...k,...k->...", x, x)) * math.sqrt(float(np.vdot(y, y)))
        size = np.sqrt(np.einsum("...k,...k->...", got, got))
    scale = abs(alpha) * (row + math.sqrt(x.shape[-1] / 3) * size) + size
    # Half a last place of each, at random: 2·u/√12 of its size; six deviations of their sum.
    allowed = 2 * 6 / math.sqrt(12) * size
    shape = tuple(call.out.shape)
    return Compared(found, exact, scale, dtype_of(call.out), box[:-1], shape, True, projected=True, allowed=allowed)


@rule("mv", "addmv", "dot", "vdot")
def _vector(call: OperatorCall, sampling: Sampling) -> Steps:
    out = call.out
    a = call.get("mat") if call.name == "addmv" else call["self"]
    b = call.get("vec", call.get("tensor", call.get("other")))
    for tensor in (a, b, out):
        if not is_readable(tensor):
            raise NotVerifiedError(f"{dtype_of(tensor)} in a layout of its own")
    k = b.shape[0]
    lead: Box = ()
    if a.dim() == 2:
        lead = (Range(0, 1, a.shape[0]) if sampling.full or a.numel() <= EXACT else sampling.range(a.shape[0], 64),)
    term = call["self"] if call.name == "addmv" and call["beta"] != 0 else None
    given = [Read(a, (*lead, Range(0, 1, k))), Read(b, (Range(0, 1, k),))]
    values = yield [*given, *([spread(term, lead)] if term is not None else [])]
    (got,) = yield [Read(out, lead)]
    x, y = values[:2]
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    bias = values[2] if term is not None else 0.0
    with np.errstate(all="ignore"):
        plain = x @ y
        exact = alpha * plain + beta * bias
        scale = np.sqrt(np.square(x).sum(-1)) * np.sqrt(np.square(y).sum()) + math.sqrt(k / 3) * np.abs(plain)
    scale = abs(alpha) * scale + np.abs(beta * np.asarray(bias))
    return [Compared(got, exact, scale, dtype_of(out), lead, tuple(out.shape), True, got.size == out.numel())]
