"""Reads numbers of two to eight bits that lie several to a word: GPTQ, AWQ, compressed-tensors, NVFP4 and MXFP4.

What is stored as words, scales and zero points becomes one tensor of the numbers that they stand for, in the shape in
which `nn.Linear` holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS, AnyArray
from numscope.weights.sources.gguf_blocks import E2M1
from numscope.weights.tensor import Encoding, Read, Tensor, grid_tolerance

_WORD = 32  # bits
_BITS = (2, 3, 4, 8)
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word's eight numbers, by their columns
_FP4_GROUPS = {"float8_e4m3fn": 16, "float8_e8m0fnu": 32, "uint8": 32}  # numbers to a scale, by the scale's dtype

ByName = Mapping[str, Tensor]


def packed(tensor: Tensor, by_name: ByName) -> Tensor | None:
    """Return the numbers that packed codes and their scales stand for; None of any other tensor."""
    if tensor.read is None or tensor.is_vector or not tensor.size:
        return None
    return _columns(tensor, by_name) or _rows(tensor, by_name) or _fp4(tensor, by_name)


@dataclass
class _Whole:
    """A tensor of which other parts than rows are wanted: held from the first part to the last."""

    tensor: Tensor
    held: AnyArray | None = field(default=None, repr=False)

    def columns(self, start: int, stop: int) -> AnyArray:
        """Return some columns; with the last ones the tensor is let go."""
        whole = self.tensor.elements() if self.held is None else self.held
        self.held = whole if stop < self.tensor.width else None
        return np.ascontiguousarray(whole[:, start:stop])


def unpack(words: AnyArray, bits: int) -> NDArray[np.uint8]:
    """Return the numbers of words, along the rows: the lowest bits first, across the words where bits do not fit."""
    words = np.ascontiguousarray(words).view("<u4")
    rows, width = words.shape
    count = width * _WORD // bits
    if _WORD % bits == 0:
        shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
        return ((words[..., None] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.uint8).reshape(rows, count)
    stream = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : count * bits]
    return np.packbits(stream.reshape(rows, count, bits), axis=2, bitorder="little")[..., 0]


def _down(words: AnyArray, bits: int) -> NDArray[np.uint8]:
    """Return the numbers of words that are packed along the columns."""
    return unpack(words.T, bits).T


# --- GPTQ and AWQ: the inputs of a layer go down, its outputs across ------------------------------------------------


def _columns(tensor: Tensor, by_name: ByName) -> Tensor | None:
    if not tensor.name.endswith("qweight") or tensor.dtype != "int32" or len(tensor.shape) != 2:
        return None
    stem = tensor.name.removesuffix("qweight")
    scales, zeros, groups = (by_name.get(stem + end) for end in ("scales", "qzeros", "g_idx"))
    if scales is None or zeros is None or scales.read is None or zeros.read is None or len(scales.shape) != 2:
        return None
    outputs = scales.width
    if not scales.size or len(zeros.shape) != 2 or zeros.dtype != "int32":
        return None
    bits = _WORD * zeros.width // outputs
    if bits not in _BITS or zeros.width * _WORD != outputs * bits or zeros.rows != scales.rows:
        return None
    is_awq = tensor.width != outputs
    inputs = tensor.rows if is_awq else tensor.rows * _WORD // bits
    if is_awq and (bits != 4 or tensor.width != zeros.width):
        return None
    if groups is not None and (groups.size != inputs or groups.read is None):
        return None
    table = scales.elements().astype(np.float32)
    offsets = unpack(zeros.elements(), bits)
    if is_awq:
        offsets = _awq(offsets)
    shift = offsets.astype(np.float32) + (0 if is_awq else _stored_less(offsets, bits))
    group = _groups(groups, inputs, scales.rows)
    if group is None:
        return None
    whole = _Whole(tensor)

    def read(start: int, stop: int) -> AnyArray:
        if is_awq:
            first, last = start // 8, -(-stop // 8)
            codes = _awq(unpack(whole.columns(first, last), bits))[:, start - first * 8 : stop - first * 8]
        else:
            codes = _down(whole.columns(start, stop), bits)
        rows = slice(start, stop)
        return np.ascontiguousarray(((codes - shift[group, rows]) * table[group, rows]).T)

    way = f"{'AWQ' if is_awq else 'GPTQ'}, {bits} bits in groups of {inputs // scales.rows}"
    parts = [one for one in (tensor, scales, zeros, groups) if one is not None]
    return _logical(f"{stem}weight", (outputs, inputs), read, Encoding(way, grid_tolerance(bits)), parts)


def _awq(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return AWQ's numbers in the order of their columns."""
    return numbers.reshape(len(numbers), -1, 8)[..., _AWQ_PLACES].reshape(len(numbers), -1)


def _stored_less(zeros: NDArray[np.uint8], bits: int) -> int:
    """Return what GPTQ's zero points were lessened by: 1, or 0 in its second format, which symmetric grids show."""
    return 0 if zeros.size and bool((zeros == 1 << (bits - 1)).all()) else 1


def _groups(stored: Tensor | None, inputs: int, count: int) -> NDArray[np.int64] | None:
    """Return the group of each input; None where a file names one that is not there."""
    if stored is None:
        return np.arange(inputs) // -(-inputs // count)
    group = stored.elements().reshape(-1).astype(np.int64)
    return group if len(group) == inputs and group.min() >= 0 and group.max() < count else None


# --- compressed-tensors: the inputs go across ----------------------------------------------------------------------


def _rows(tensor: Tensor, by_name: ByName) -> Tensor | None:
    if not tensor.name.endswith("weight_packed") or tensor.dtype != "int32" or len(tensor.shape) != 2:
        return None
    stem = tensor.name.removesuffix("_packed")
    scale, size, zero, groups = (by_name.get(stem + end) for end in ("_scale", "_shape", "_zero_point", "_g_idx"))
    if scale is None or scale.read is None or not scale.size or scale.rows != tensor.rows or len(scale.shape) != 2:
        return None
    if size is None or size.read is None or size.size != 2:
        return None
    outputs, inputs = (int(number) for number in size.elements().reshape(-1))
    bits = next((bits for bits in _BITS if -(-inputs // (_WORD // bits)) == tensor.width), 0)
    if outputs != tensor.rows or not bits:
        return None
    middle = 1 << (bits - 1)
    table = scale.elements().astype(np.float32)
    group = _groups(groups, inputs, scale.width)
    shift = np.zeros_like(table)
    if zero is not None and zero.read is not None:
        stored = zero.elements()
        is_packed = zero.dtype == "int32" and stored.ndim == 2 and stored.shape != table.shape
        shift = _down(stored, bits)[:outputs].astype(np.float32) - middle if is_packed else stored.reshape(zero.shape)
    if group is None or shift.shape != table.shape:
        return None

    def read(start: int, stop: int) -> AnyArray:
        codes = unpack(tensor.elements(start, stop), bits)[:, :inputs].astype(np.float32) - middle
        return np.asarray((codes - shift[start:stop][:, group]) * table[start:stop][:, group], np.float32)

    encoding = Encoding(f"{bits} bits in groups of {-(-inputs // scale.width)}", grid_tolerance(bits))
    parts = [one for one in (tensor, scale, size, zero, groups) if one is not None]
    return _logical(stem, (outputs, inputs), read, encoding, parts)


# --- four-bit floats -----------------------------------------------------------------------------------------------


def _fp4(tensor: Tensor, by_name: ByName) -> Tensor | None:
    """Return pairs of E2M1 codes times their scales: NVFP4, and MXFP4 where the scales are powers of two."""
    if tensor.dtype not in ("uint8", "int8", "float4_e2m1fn_x2"):
        return None
    name = tensor.name.removesuffix("_packed")
    scale = next((by_name[name + end] for end in ("_scale", ".scale") if name + end in by_name), None)
    scale = scale or by_name.get(f"{name.removesuffix('.weight')}.scale")
    if scale is None or scale.read is None or scale.shape[:-1] != tensor.shape[:-1]:
        return None
    size = _FP4_GROUPS.get(scale.dtype, 0)
    if not size or scale.width * size != tensor.width * 2:
        return None
    times, over = by_name.get(f"{name}_scale_2"), by_name.get(f"{name}_global_scale")
    further = [one for one in (times, over) if one is not None]
    if scale.dtype == "float8_e4m3fn" and not further:
        return None
    if any(one.size != 1 or one.read is None for one in further):
        return None
    factor = float(times.elements().item()) if times is not None else 1.0
    factor /= float(over.elements().item()) if over is not None else 1.0
    exponents = scale.dtype != "float8_e4m3fn"

    def read(start: int, stop: int) -> AnyArray:
        codes = np.ascontiguousarray(tensor.elements(start, stop)).view(np.uint8)
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1, size)
        table = np.ascontiguousarray(scale.elements(start, stop))
        if exponents:
            powers = table.view(np.uint8).astype(np.int32)[..., None] - 128  # the table has twice the numbers
            return np.ldexp(E2M1[pairs], powers).astype(np.float32).reshape(len(codes), -1)
        return (
            (E2M1[pairs] / 2 * table.astype(np.float32)[..., None] * factor).astype(np.float32).reshape(len(codes), -1)
        )

    encoding = Encoding("MXFP4" if exponents else "NVFP4", FLOATS["float4_e2m1fn"].unit_roundoff)
    return _logical(name, (*tensor.shape[:-1], tensor.width * 2), read, encoding, [tensor, scale, *further])


def _logical(name: str, shape: tuple[int, ...], read: Read, encoding: Encoding, parts: list[Tensor]) -> Tensor:
    return Tensor(name, "float32", shape, read, encoding, tuple(part.name for part in parts))
