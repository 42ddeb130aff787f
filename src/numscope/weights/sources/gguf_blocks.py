"""The block types of GGUF: how many numbers a block holds in how many bytes, and which numbers they are.

A block has some codes and what scales them. A type is a function from blocks of raw bytes, (blocks, bytes), to numbers,
(blocks, elements).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numscope.core.dtypes import AnyArray

Bytes = AnyArray  # uint8
Numbers = AnyArray  # float32


@dataclass(frozen=True)
class BlockType:
    """A block type, and the bits of its codes, which bound what it loses."""

    name: str
    elements: int
    bytes: int
    bits: int
    decode: Callable[[Bytes], Numbers]


def _half(raw: Bytes, at: int) -> Numbers:
    """Return the float16 number at a place of each block, as a column."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """Return the low halves of the bytes, then the high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _bits(raw: Bytes) -> Bytes:
    """Return the bits of each block's bytes, the lowest first."""
    return np.unpackbits(np.ascontiguousarray(raw), axis=1, bitorder="little")


def _q4_0(raw: Bytes) -> Numbers:
    return _half(raw, 0) * (_nibbles(raw[:, 2:]).astype(np.float32) - 8)


def _q4_1(raw: Bytes) -> Numbers:
    return np.asarray(_half(raw, 0) * _nibbles(raw[:, 4:]) + _half(raw, 2))


def _q5_0(raw: Bytes) -> Numbers:
    codes = _nibbles(raw[:, 6:]) | _bits(raw[:, 2:6]) << 4
    return np.asarray(_half(raw, 0) * (codes.astype(np.float32) - 16))


def _q5_1(raw: Bytes) -> Numbers:
    codes = _nibbles(raw[:, 8:]) | _bits(raw[:, 4:8]) << 4
    return np.asarray(_half(raw, 0) * codes + _half(raw, 2))


def _q8_0(raw: Bytes) -> Numbers:
    return _half(raw, 0) * raw[:, 2:].view(np.int8).astype(np.float32)


def _pairs(raw: Bytes) -> Bytes:
    """Return the two-bit parts of 64 bytes in the order of elements: 32 bytes, by shift, for each half of a block."""
    halves = raw.reshape(len(raw), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (halves & 3).reshape(len(raw), 256)


def _q2_k(raw: Bytes) -> Numbers:
    scales = raw[:, :16]
    d, least = _half(raw, 80), _half(raw, 82)
    codes = _pairs(raw[:, 16:80]).reshape(-1, 16, 16)
    numbers = (d * (scales & 15))[:, :, None] * codes - (least * (scales >> 4))[:, :, None]
    return np.asarray(numbers.reshape(-1, 256))


def _q3_k(raw: Bytes) -> Numbers:
    packed = raw[:, 96:108]
    low = _nibbles(packed[:, :8])
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1) & 3).reshape(-1, 16)
    scales = (low | high << 4).astype(np.float32) - 32
    kept = (raw[:, None, :32] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1).reshape(-1, 256)
    codes = _pairs(raw[:, 32:96]).astype(np.float32) - 4 * (1 - kept.astype(np.float32))
    return np.asarray(((_half(raw, 108) * scales)[:, :, None] * codes.reshape(-1, 16, 16)).reshape(-1, 256))


def _scales_and_least(packed: Bytes) -> tuple[Numbers, Numbers]:
    """Return the eight scales and the eight least values, of six bits each, that twelve bytes hold."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    least = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales.astype(np.float32), least.astype(np.float32)


def _k_numbers(raw: Bytes, codes: Bytes) -> Numbers:
    scales, least = _scales_and_least(raw[:, 4:16])
    d, lowest = _half(raw, 0) * scales, _half(raw, 2) * least
    return np.asarray((d[:, :, None] * codes.reshape(-1, 8, 32) - lowest[:, :, None]).reshape(-1, 256))


def _k_codes(raw: Bytes) -> Bytes:
    """Return the halves of 128 bytes: of each 32 the low ones, then the high ones."""
    parts = raw.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (parts & 15).reshape(-1, 256)


def _q4_k(raw: Bytes) -> Numbers:
    return _k_numbers(raw, _k_codes(raw[:, 16:]))


def _q5_k(raw: Bytes) -> Numbers:
    high = raw[:, None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    return _k_numbers(raw, _k_codes(raw[:, 48:]) | high.reshape(-1, 256) << 4)


def _q6_k(raw: Bytes) -> Numbers:
    low = raw[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    codes = low.reshape(-1, 256) | _pairs(raw[:, 128:192]) << 4
    scales = _half(raw, 208) * raw[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * (codes.astype(np.float32) - 32).reshape(-1, 16, 16)).reshape(-1, 256)


_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice the numbers


def _iq4_nl(raw: Bytes) -> Numbers:
    return _half(raw, 0) * _LEVELS[_nibbles(raw[:, 2:])]


def _iq4_xs(raw: Bytes) -> Numbers:
    high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16) >> (2 * np.arange(8, dtype=np.uint16)) & 3
    low = (raw[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    scales = _half(raw, 0) * ((low | high.astype(np.uint8) << 4).astype(np.float32) - 32)
    codes = raw[:, 8:].reshape(-1, 8, 1, 16) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    return np.asarray((scales[:, :, None] * _LEVELS[codes.reshape(-1, 8, 32)]).reshape(-1, 256))


def _mxfp4(raw: Bytes) -> Numbers:
    exponent = raw[:, :1].astype(np.int32) - 128  # one less: the table has twice the numbers
    return np.asarray(np.ldexp(E2M1[_nibbles(raw[:, 1:])], exponent))


BLOCKS = {
    2: BlockType("Q4_0", 32, 18, 4, _q4_0),
    3: BlockType("Q4_1", 32, 20, 4, _q4_1),
    6: BlockType("Q5_0", 32, 22, 5, _q5_0),
    7: BlockType("Q5_1", 32, 24, 5, _q5_1),
    8: BlockType("Q8_0", 32, 34, 8, _q8_0),
    10: BlockType("Q2_K", 256, 84, 2, _q2_k),
    11: BlockType("Q3_K", 256, 110, 3, _q3_k),
    12: BlockType("Q4_K", 256, 144, 4, _q4_k),
    13: BlockType("Q5_K", 256, 176, 5, _q5_k),
    14: BlockType("Q6_K", 256, 210, 6, _q6_k),
    20: BlockType("IQ4_NL", 32, 18, 4, _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, 4, _iq4_xs),
    39: BlockType("MXFP4", 32, 17, 3, _mxfp4),
}
PLAIN = {
    0: "float32",
    1: "float16",
    30: "bfloat16",
    28: "float64",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
}
