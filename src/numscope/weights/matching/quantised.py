"""Joins what a quantised tensor is stored as: codes and their scales become one tensor of the numbers that they stand for.

Known are float8 and int8 with a scale for all, for each row, or for each block; MXFP4 as blocks and scales; what
`packed.py` reads; and LoRA's factors, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from numscope.core.dtypes import FLOATS, AnyArray
from numscope.weights.matching.packed import packed
from numscope.weights.sources.gguf_blocks import E2M1
from numscope.weights.tensor import Encoding, Tensor, grid_tolerance

_SCALES = ("_scale_inv", "_scale", ".scale", "_scales", ".weight_scale", ".scales")
_ZEROS = ("_zero_point", ".zero_point", "_zeros")
_CODES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8", "uint8")
_GROUP = 32  # numbers that share a scale in MXFP4


def logical(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors with codes and scales joined."""
    by_name = {tensor.name: tensor for tensor in tensors}
    used: set[str] = set()
    joined: dict[str, Tensor] = {}
    for tensor in tensors:
        found = packed(tensor, by_name) or _mxfp4(tensor, by_name) or _scaled(tensor, by_name)
        if found is not None:
            joined[tensor.name] = found
            used.update(found.stored)
    return [joined.get(tensor.name, tensor) for tensor in tensors if tensor.name not in used or tensor.name in joined]


def _scaled(tensor: Tensor, by_name: dict[str, Tensor]) -> Tensor | None:
    """Return codes times their scales."""
    if tensor.dtype not in _CODES or tensor.read is None or tensor.is_vector:
        return None
    stem = tensor.name.removesuffix(".weight")
    scale = next((by_name[tensor.name + end] for end in _SCALES if tensor.name + end in by_name), None)
    scale = scale or next((by_name[stem + end] for end in _SCALES if stem + end in by_name), None)
    if scale is None or scale.read is None or not scale.size:
        return None
    zero = next((by_name[tensor.name + end] for end in _ZEROS if tensor.name + end in by_name), None)
    factors = scale.elements().astype(np.float32).reshape(scale.shape)
    grid = _grid(tensor, factors)
    if grid is None:
        return None
    block_rows, block_columns, table = grid
    shift = zero.elements().astype(np.float32).reshape(-1) if zero is not None else None

    def read(start: int, stop: int) -> AnyArray:
        codes = tensor.elements(start, stop).astype(np.float32)
        rows = np.arange(start, stop) // block_rows
        columns = np.arange(tensor.width) // block_columns
        if shift is not None:
            codes = codes - (shift[0] if shift.size == 1 else shift[np.arange(start, stop)][:, None])
        return np.asarray(codes * table[rows][:, columns], np.float32)

    form = FLOATS.get(tensor.dtype)
    bound = form.unit_roundoff if form is not None else grid_tolerance(8)
    way = "one scale" if table.size == 1 else f"blocks of {block_rows} x {block_columns}"
    stored = (tensor.name, scale.name, *((zero.name,) if zero is not None else ()))
    return Tensor(tensor.name, "float32", tensor.shape, read, Encoding(f"{tensor.dtype} in {way}", bound), stored)


def _grid(tensor: Tensor, factors: AnyArray) -> tuple[int, int, AnyArray] | None:
    """Return the rows and columns of a block and the table of scales; None where the shapes do not fit."""
    if factors.size == 1:
        return tensor.rows, tensor.width, factors.reshape(1, 1)
    if factors.size == tensor.rows:
        return 1, tensor.width, factors.reshape(-1, 1)
    if factors.ndim != 2 or len(tensor.shape) != 2:
        return None
    down, across = factors.shape
    rows, columns = -(-tensor.rows // down), -(-tensor.width // across)
    # A block is a power of two; the last one may be cut.
    rows, columns = (1 << (n - 1).bit_length() if n > 1 else 1 for n in (rows, columns))
    fits = -(-tensor.rows // rows) == down and -(-tensor.width // columns) == across
    return (rows, columns, factors) if fits else None


def _mxfp4(tensor: Tensor, by_name: dict[str, Tensor]) -> Tensor | None:
    """Return blocks of sixteen bytes of E2M1 codes times their scales, powers of two."""
    if not tensor.name.endswith("_blocks") or tensor.dtype != "uint8" or tensor.width * 2 != _GROUP:
        return None
    name = tensor.name.removesuffix("_blocks")
    scale = by_name.get(f"{name}_scales")
    if scale is None or scale.read is None or scale.shape != tensor.shape[:-1]:
        return None
    groups = scale.width

    def read(start: int, stop: int) -> AnyArray:
        codes = tensor.elements(start * groups, stop * groups)
        exponents = scale.elements(start, stop).astype(np.int32).reshape(-1, 1) - 128  # the table has twice the numbers
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), _GROUP)
        return np.ldexp(E2M1[pairs], exponents).astype(np.float32).reshape(stop - start, groups * _GROUP)

    shape = (*tensor.shape[:-2], groups * _GROUP)
    encoding = Encoding("MXFP4", FLOATS["float4_e2m1fn"].unit_roundoff)
    stored = (tensor.name, scale.name)
    return replace(tensor, name=name, dtype="float32", shape=shape, read=read, encoding=encoding, stored=stored)
