"""What a kernel leaves for its own backward is no result: bytes in a form of its own, part of them never written.

The recurrent layers of oneDNN, cuDNN and MIOpen give such a tensor beside their results, cuDNN's batch norm too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.align.slots import OUTPUT, slot_roles
from numscope.compare.load.side import Side, Slots
from numscope.core.dtypes import unit_roundoff


def without_workspaces(side: Side) -> Side:
    """Return a side without the slots of bytes that operators make beside rounded numbers, and were not given."""
    slots, book = side.slots, side.book
    code = book.numbers.get("uint8", -1)
    dtype = (
        np.where(slots.tensor >= 0, side.tensors.dtype[slots.tensor], -1) if len(side.tensors.dtype) else slots.tensor
    )
    bytes_ = (dtype == code) & (side.calls.kind[slots.call] == book.code("aten")) & (code >= 0)
    if not bytes_.any():
        return side
    made = slot_roles(side, side.calls.kind == book.code("optimizer")) == OUTPUT
    rounded = np.array([unit_roundoff(word) > 0 for word in book.words] + [False])[dtype]
    beside, given = np.zeros(len(side.calls), np.bool_), np.zeros(len(side.calls), np.bool_)
    beside[slots.call[made & rounded]] = True
    given[slots.call[~made & bytes_]] = True
    own = slots.tensor[bytes_ & made & beside[slots.call] & ~given[slots.call]]
    kept = ~(bytes_ & np.isin(slots.tensor, own))
    call = slots.call[kept]
    start = np.searchsorted(call, np.arange(len(side.calls) + 1))
    return replace(side, slots=Slots(call, slots.slot[kept], slots.tensor[kept], start))
