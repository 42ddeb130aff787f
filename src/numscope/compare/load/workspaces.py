"""Drops workspaces: the byte tensors that a kernel returns for its own backward, in a private layout, partly unwritten.

The recurrent layers of oneDNN, cuDNN and MIOpen return one beside their results, and so does cuDNN's batch norm.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from numscope.compare.align.slots import OUTPUT, slot_roles
from numscope.compare.load.side import Side, Slots
from numscope.core.dtypes import unit_roundoff


def without_workspaces(side: Side) -> Side:
    """Return a side without the uint8 outputs of aten calls that also return floating-point outputs and take no uint8 input."""
    slots, book = side.slots, side.book
    code = book.numbers.get("uint8", -1)
    dtype = (
        np.where(slots.tensor >= 0, side.tensors.dtype[slots.tensor], -1) if len(side.tensors.dtype) else slots.tensor
    )
    is_bytes = (dtype == code) & (side.calls.kind[slots.call] == book.code("aten")) & (code >= 0)
    if not is_bytes.any():
        return side
    is_output = slot_roles(side, side.calls.kind == book.code("optimizer")) == OUTPUT
    is_float = np.array([unit_roundoff(word) > 0 for word in book.words] + [False])[dtype]
    returns_floats, takes_bytes = np.zeros(len(side.calls), np.bool_), np.zeros(len(side.calls), np.bool_)
    returns_floats[slots.call[is_output & is_float]] = True
    takes_bytes[slots.call[~is_output & is_bytes]] = True
    workspaces = slots.tensor[is_bytes & is_output & returns_floats[slots.call] & ~takes_bytes[slots.call]]
    kept = ~(is_bytes & np.isin(slots.tensor, workspaces))
    call = slots.call[kept]
    start = np.searchsorted(call, np.arange(len(side.calls) + 1))
    return replace(side, slots=Slots(call, slots.slot[kept], slots.tensor[kept], start, slots.note[kept]))
