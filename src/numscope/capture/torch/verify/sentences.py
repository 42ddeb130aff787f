"""Sentences about calls that compute wrongly: which elements, and in what way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numscope.core.operators import Rounding, operator


def sentence(name: str, told: Mapping[str, Any], dtype: str) -> str:
    """Say which elements are wrong."""
    count, off = told["elements"], told["off"]
    kind = told["kind"]
    if kind == "replay":
        return f"made again on the same inputs, {off:,} of {count:,} elements are others: a race, or corrupted data"
    where = f" [{', '.join(told['places'])}]" if told["places"] else ""
    by = f"off by {told['largest']:.1e}".replace("inf", "infinity") if math.isfinite(told["largest"]) else "not finite"
    rest = f"; the others by {told['others']:.0e}" if count > off else ""
    if kind == "factor":
        if name in ("_softmax", "_safe_softmax"):
            return f"all rows sum to {told['factor']:.4g}"
        return f"every element is {told['factor']:.6g} of what it should be"
    if kind == "all":
        return f"every element is off by about 2^{_exponent(told['typical'])}{_precision(name, told['typical'], dtype)}"
    if kind == "projection":
        return f"{off} of {count} rows, summed with random signs, are {by}{rest}"
    if kind == "element":
        wrong = f"1 of {count:,} elements is {by} (element{where}: {told['got']:.9g} for {told['exact']:.9g}){rest}"
        return f"{wrong}: a wrong element or a flipped bit"
    which = {"row": f"row{where}", "rows": f"rows{where}", "column": f"column{where}", "tile": f"tile{where}"}.get(kind)
    if which:
        return f"{off:,} of {count:,} elements are {by}, the {which}{rest}"
    return f"{off:,} of {count:,} elements are {by}{rest}"


def _exponent(size: float) -> int:
    return round(math.log2(size)) if 0 < size < math.inf else 0


_COARSE = (
    ("bfloat16", -11.0, -7.5),
    ("TF32 or float16", -14.0, -11.0),
)  # by what rounding the operands leaves of a sum


def _precision(name: str, typical: float, dtype: str) -> str:
    if dtype != "float32" or not 0 < typical < math.inf or operator(name).rounding is not Rounding.PRODUCT:
        return ""
    found = next((name for name, low, high in _COARSE if low < math.log2(typical) <= high), None)
    return f": {found} inside" if found else ""
