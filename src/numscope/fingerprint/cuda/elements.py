"""Single elements, for the Triton kernels: their value, their offset in memory, their share of the hash."""

# mypy: ignore-errors
# (the kernels are written in Triton's own language, which has no types that mypy knows)
from __future__ import annotations

import triton
import triton.language as tl

# kinds of elements; TABLE: 8-bit floats of which a table says what they stand for
FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT16, UINT16, INT32, UINT32, INT64, UINT64, TABLE = range(11)
INT8, UINT8, FLOAT8_E4M3FN, FLOAT8_E5M2 = range(11, 15)  # those of one byte besides

_FLOAT32 = tl.constexpr(FLOAT32)
_BFLOAT16 = tl.constexpr(BFLOAT16)
_FLOAT16 = tl.constexpr(FLOAT16)
_FLOAT64 = tl.constexpr(FLOAT64)
_INT8 = tl.constexpr(INT8)
_UINT8 = tl.constexpr(UINT8)
_FLOAT8_E5M2 = tl.constexpr(FLOAT8_E5M2)
_UINT16 = tl.constexpr(UINT16)
_UINT32 = tl.constexpr(UINT32)
_UINT64 = tl.constexpr(UINT64)
_TABLE = tl.constexpr(TABLE)


@triton.jit
def small_value(bits, KIND: tl.constexpr):
    """Return the value of the last 8 of 32 bits, in float32."""
    if KIND == _INT8:
        result = ((bits << 24) >> 24).to(tl.float32)
    elif KIND == _UINT8:
        result = (bits & 0xFF).to(tl.float32)
    elif KIND == _FLOAT8_E5M2:  # a float16 without its last bits
        result = (bits << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:  # e4m3: float32's bits but for the exponent, which is 120 more there
        size = (bits & 0x7F) << 20
        result = ((bits << 24) & -2147483648 | size).to(tl.float32, bitcast=True) * 1.329227995784916e36
        result = tl.where(size == 0x7F00000, float("nan"), result)
    return result


@triton.jit
def value(bits, values, KIND: tl.constexpr):
    """Return the value of the bits, in float64."""
    if KIND == _FLOAT32:
        result = bits.to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == _BFLOAT16:
        result = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    elif KIND == _FLOAT16:
        result = bits.to(tl.float16, bitcast=True).to(tl.float32).to(tl.float64)
    elif KIND == _FLOAT64:
        result = bits.to(tl.float64, bitcast=True)
    elif KIND >= _INT8:
        result = small_value(bits.to(tl.int32), KIND).to(tl.float64)
    elif KIND == _UINT16:
        result = (bits.to(tl.int32) & 0xFFFF).to(tl.float64)
    elif KIND == _UINT32:
        result = (bits.to(tl.int64) & 0xFFFFFFFF).to(tl.float64)
    elif KIND == _UINT64:
        upper = ((bits >> 32) & 0xFFFFFFFF).to(tl.float64)
        result = upper * 4294967296.0 + (bits & 0xFFFFFFFF).to(tl.float64)
    elif KIND == _TABLE:
        result = tl.load(values + (bits.to(tl.int32) & 0xFF)).to(tl.float64)
    else:
        result = bits.to(tl.float64)
    return result


@triton.jit
def _factor(word, factors, blocks, spans):
    return tl.load(factors + (word & 1023)) * tl.load(blocks + ((word >> 10) & 15)) * tl.load(spans + (word >> 14))


@triton.jit
def hash_of_elements(bits, index, factors, blocks, spans, SIZE: tl.constexpr):
    """Return each element's share of the hash: its bytes at their place in the word, or its two words."""
    if SIZE == 8:
        result = (bits & 0xFFFFFFFF).to(tl.int32).to(tl.int64) * _factor(index * 2, factors, blocks, spans)
        result += (bits >> 32) * _factor(index * 2 + 1, factors, blocks, spans)
    elif SIZE == 4:
        result = bits.to(tl.int64) * _factor(index, factors, blocks, spans)
    elif SIZE == 2:
        word = (bits.to(tl.int32) & 0xFFFF) << ((index & 1) * 16).to(tl.int32)
        result = word.to(tl.int64) * _factor(index >> 1, factors, blocks, spans)
    else:
        word = (bits.to(tl.int32) & 0xFF) << ((index & 3) * 8).to(tl.int32)
        result = word.to(tl.int64) * _factor(index >> 2, factors, blocks, spans)
    return result


@triton.jit
def offset(index, size0, size1, size2, size3, stride0, stride1, stride2, stride3, stride4, DIMS: tl.constexpr):
    """Return the offset of an element; dimension 0 is the innermost."""
    if DIMS == 1:
        result = index * stride0
    else:
        result = (index % size0) * stride0
        index = index // size0
        if DIMS == 2:
            result += index * stride1
        else:
            result += (index % size1) * stride1
            index = index // size1
            if DIMS == 3:
                result += index * stride2
            else:
                result += (index % size2) * stride2
                index = index // size2
                if DIMS == 4:
                    result += index * stride3
                else:
                    result += (index % size3) * stride3 + (index // size3) * stride4
    return result
