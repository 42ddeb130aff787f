"""Converts the tables' names of dtypes to numpy dtypes and to the names of safetensors."""

from __future__ import annotations

from functools import cache

import numpy as np

from numscope.core.dtypes import AnyDtype

# The dtypes of every version of safetensors since 0.4. All others are stored as bytes, with one more axis.
SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


@cache
def numpy_dtype(name: str) -> AnyDtype | None:
    """Return the numpy dtype of a name, those of ml_dtypes included, or None for packed dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # imported only for runs that keep such tensors

        return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else None
