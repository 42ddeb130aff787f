"""Recognises a merged LoRA adapter: W' = W + s·B·A, with the factor s measured and the product proven on the elements."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS
from numscope.core.json_value import members, number
from numscope.weights.judge.case import Case
from numscope.weights.matching.names import plain
from numscope.weights.tensor import Tensor

_FACTOR_OFF = 0.01  # of a factor measured on rounded numbers; factors of configurations are apart by far more
_FACTOR = re.compile(r"\.lora_(?P<which>[AB])(\.default|\.[^.]+)?\.weight$")


@dataclass
class _Adapter:
    """The two factors of an adapted matrix."""

    down: Tensor | None = None  # A: rank x in
    up: Tensor | None = None  # B: out x rank


def factor_of(folder: Path) -> float | None:
    """Return the factor by which an adapter's product is to be merged, α/r, where its configuration says it."""
    file = folder / "adapter_config.json"
    try:
        config = members(json.loads(file.read_bytes()))
    except (OSError, ValueError):
        return None
    alpha, rank = number(config.get("lora_alpha")), number(config.get("r"))
    if alpha is None or not rank:
        return None
    return alpha / math.sqrt(rank) if config.get("use_rslora") is True else alpha / rank


def judge(
    cases: Sequence[Case], left_a: Sequence[Tensor], left_b: Sequence[Tensor], expected: float | None = None
) -> set[str]:
    """Settle the cases that an adapter explains; return the names of the factors that were used.

    `expected` is the factor that the adapter's configuration says.
    """
    used: set[str] = set()
    for left, is_suspect in ((left_a, True), (left_b, False)):
        adapters = _adapters(left)
        for case in cases if adapters else ():
            if not case.is_single or (case.verdict == "identical" and case.relation != "equal"):
                continue
            base = case.a[0] if is_suspect else case.b[0]
            adapter = adapters.get(plain(base.name).removesuffix(".weight"))
            if adapter is None or adapter.down is None or adapter.up is None:
                continue
            _judge(case, adapter.down, adapter.up, is_suspect, expected)
            used.update((adapter.down.name, adapter.up.name))
            names = (adapter.down, adapter.up)
            component = case.component
            component.a = [*component.a, *names] if is_suspect else component.a
            component.b = component.b if is_suspect else [*component.b, *names]
    return used


def _adapters(tensors: Sequence[Tensor]) -> dict[str, _Adapter]:
    found: dict[str, _Adapter] = {}
    for tensor in tensors:
        match = _FACTOR.search(tensor.name)
        if match is not None:
            adapter = found.setdefault(plain(tensor.name[: match.start()]), _Adapter())
            if match["which"] == "A":
                adapter.down = tensor
            else:
                adapter.up = tensor
    return found


def _judge(case: Case, down: Tensor, up: Tensor, is_suspect: bool, expected: float | None) -> None:
    base, merged = (case.a[0], case.b[0]) if is_suspect else (case.b[0], case.a[0])
    if any(tensor.read is None for tensor in (base, merged, down, up)) or base.shape != merged.shape:
        return
    narrow, wide = (tensor.elements().astype(np.float64) for tensor in (down, up))
    product = square = total = 0.0
    for start, block in base.blocks():
        rows = slice(start, start + len(block))
        delta = merged.elements(rows.start, rows.stop).astype(np.float64) - block.astype(np.float64)
        step = wide[rows] @ narrow
        product += float((delta * step).sum())
        square += float((step**2).sum())
        total += float((delta**2).sum())
    if not square:
        if not total:
            case.settle("merged", "identical", "an adapter of zeros: nothing to merge", 0.0)
        return
    factor = product / square
    error, worst = _left_over(base, merged, wide, narrow, factor)
    names = f"{down.name} and {up.name}"
    if not total:
        case.settle("merged", "diverged", f"the adapter is not merged: {names} add nothing to it", error)
        case.blame("values", case.reason, "merge the adapter")
    elif worst <= 1:
        case.settle("merged", "equivalent", f"W + {factor:.6g} · B · A of {names}, within rounding", error)
        case.details["factor"] = factor
        if expected is not None and abs(factor - expected) > _FACTOR_OFF * abs(expected):
            reason = f"merged with {factor:.6g} · B · A, where the adapter's α/r is {expected:.6g}"
            case.blame("scale", reason, "merge it with the factor of its configuration")
    else:
        case.settle(
            "merged", "diverged", f"W + s · B · A holds for no s: {error:.1e} is left at s = {factor:.4g}", error
        )
        case.fault = "values"


def _left_over(
    base: Tensor, merged: Tensor, wide: NDArray[np.float64], narrow: NDArray[np.float64], factor: float
) -> tuple[float, float]:
    """Return the relative error that is left, and its largest element in units of what rounding explains."""
    unit = max(FLOATS[t.dtype].unit_roundoff if t.dtype in FLOATS else 0.0 for t in (base, merged))
    inner = FLOATS["float32"].unit_roundoff * (len(narrow) + 2)  # the product's own, of sums over the rank
    square = norm = worst = 0.0
    for start, block in base.blocks():
        rows = slice(start, start + len(block))
        first, step = block.astype(np.float64), factor * (wide[rows] @ narrow)
        target = merged.elements(rows.start, rows.stop).astype(np.float64)
        left = np.abs(target - first - step)
        sizes = np.abs(factor) * (np.abs(wide[rows]) @ np.abs(narrow))
        # Rounded are the product, its scaling, and the sum; a factor measured on rounded numbers is itself off by less.
        explained = 2 * unit * (np.abs(first) + np.abs(target) + np.abs(step)) + max(inner, 2 * unit) * sizes
        square += float((left**2).sum())
        norm += float((target**2).sum())
        worst = max(
            worst, float(np.divide(left, explained, out=np.zeros_like(left), where=explained > 0).max(initial=0))
        )
    return float(np.sqrt(square / norm)) if norm else 0.0, worst
