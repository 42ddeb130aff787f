"""Which elements of a tensor are off, in words: a column, a tile, whole rows, every 37th, one bit, all by a factor."""

from __future__ import annotations

import math

import torch

from numscope.diagnose.replay.measures import to_double

_FULL = 0.5  # the share of a region that is off, from which on the region is named: an error may be small by chance
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}  # by the size of an element


def which(off: torch.Tensor, recorded: torch.Tensor, exact: torch.Tensor) -> str:
    """Return in words which elements of a recorded tensor are off, and how they follow from the exact ones."""
    if recorded.shape != exact.shape:
        return f"another shape: {list(recorded.shape)}, where its inputs give {list(exact.shape)}"
    count, total = int(off.sum()), off.numel()
    if not count:
        return "no element alone is beyond rounding, but all of them together are"
    place = _region(off) if count < total else f"all {total:,}"
    how = _same_bit(off, recorded, exact) or _factor(off, recorded, exact)
    return f"{place}; {how}" if how else place


def _region(off: torch.Tensor) -> str:
    count, total = int(off.sum()), off.numel()
    told = f"{count:,} of {total:,}"
    if not off.dim():
        return told
    indices = [axis.unique() for axis in off.nonzero(as_tuple=True)]
    room = math.prod(len(found) for found in indices)
    if 2 * room <= total and count >= _FULL * room:
        words = [_span(found, length) for found, length in zip(indices, off.shape)]
        return f"{_kind(indices, off.shape)} [{', '.join(words)}]: {told}"
    if off.dim() > 1:
        rows = off.flatten(0, -2)
        bad = rows[rows.any(-1)]
        if len(bad) < len(rows) and float(bad.float().mean()) >= _FULL:
            return f"{len(bad):,} of {len(rows):,} rows, each as a whole"
    flat = off.flatten().nonzero().flatten()
    step = math.gcd(*(flat - flat[0]).tolist()) if len(flat) > 2 else 1
    if step > 1 and count >= _FULL * total / step:
        return f"each {step} elements one, from index {int(flat[0]) % step} on: {told}"
    return f"{told}, all over" if count > total // 100 else f"{told}, scattered"


def _kind(indices: list[torch.Tensor], shape: torch.Size) -> str:
    """Return the name of a region of indices along each axis."""
    bound = [axis for axis, (found, length) in enumerate(zip(indices, shape)) if len(found) < length]
    if len(shape) > 1 and bound == [len(shape) - 1]:
        return "a column" if len(indices[-1]) == 1 else "columns"
    if bound and bound[-1] < len(shape) - 1:
        return "a row" if all(len(found) == 1 for found in indices[:-1]) else "rows"
    return "one element" if all(len(found) == 1 for found in indices) else "a tile"


def _span(found: torch.Tensor, length: int) -> str:
    """Return indices along an axis as Python's indexing has them."""
    first, last, count = int(found[0]), int(found[-1]), len(found)
    if count == length:
        return ":"
    if count == 1:
        return str(first) if first < length - 1 else f"{first} (the last)"
    if last - first == count - 1:
        return f"{first}:{last + 1}"
    step = int(found[1]) - first
    if last - first == step * (count - 1):
        return f"{first}:{last + 1}:{step}"
    return f"{count} of {length}"


def _factor(off: torch.Tensor, recorded: torch.Tensor, exact: torch.Tensor) -> str:
    """Return the factor by which all elements that are off differ from the exact ones; empty where there is none."""
    a, b = to_double(recorded)[off], to_double(exact)[off]
    finite = a.isfinite() & b.isfinite()
    a, b = a[finite], b[finite]
    size = float((b * b.conj()).real.sum())
    if len(a) < 2 or a.is_complex() or not size:
        return ""
    if not bool(a.any()):
        return "they are 0"
    factor = float((a * b).sum()) / size
    rest = float((a - factor * b).norm()) / math.sqrt(size)
    if abs(factor + 1) <= 1e-3 and rest <= 1e-2:
        return "each with the opposite sign"
    return f"each by the factor {factor:.4g}" if rest <= 0.25 * abs(factor - 1) else ""


def _same_bit(off: torch.Tensor, recorded: torch.Tensor, exact: torch.Tensor) -> str:
    """Return the bit that is the same in all numbers though it should not be; empty where there is none."""
    width = _BITS.get(recorded.element_size())
    if width is None or recorded.is_complex() or recorded.dtype == torch.bool or int(off.sum()) < 8:
        return ""
    made, wanted = (tensor.contiguous().view(width) for tensor in (recorded, exact.to(recorded.dtype)))
    for bit in range(8 * recorded.element_size()):
        mine, other = (made >> bit) & 1, (wanted >> bit) & 1
        share = float((mine[off] != other[off]).float().mean())
        is_stuck = bool((mine == mine.flatten()[0]).all())
        if is_stuck and share >= 0.9 and 0.1 < float(other.float().mean()) < 0.9:
            return f"bit {bit} is {int(mine.flatten()[0])} in every number"
    return ""
