"""The rows that a step leaves for its tables: of calls, of slots, of tensors. Every column has its name here, once.

A row is numbers: an interned text or shape stands as its number (`interned.py`), and a negative number is null. The
recorder's buffers hold rows one after the other in one list of integers, which Python's garbage collector need not walk.
`columns.py` makes the tables' columns by these names, and the C++ header `torch/native/records.h` is generated from them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Annotated, NamedTuple, TypeAlias


class Column(enum.Enum):
    """How the numbers of a column become values of the table."""

    NUMBER = "as they are"
    NULLABLE = "as they are, or null"
    TEXT = "the texts that they stand for, or null"
    FLAG = "true or false, or null"


Number: TypeAlias = Annotated[int, Column.NUMBER]
Nullable: TypeAlias = Annotated[int, Column.NULLABLE]
Text: TypeAlias = Annotated[int, Column.TEXT]
Flag: TypeAlias = Annotated[int, Column.FLAG]


class CallRow(NamedTuple):
    """One call; `CALLS` in `store/schema.py` says what its columns mean."""

    order: Number
    name: Text
    kind: Text
    module: Text
    module_class: Text
    phase: Text
    parent: Nullable = -1
    forward: Nullable = -1
    arguments: Text = -1
    stack: Nullable = -1
    recompute: Flag = False
    error: Text = -1
    thread: Number = 0
    autocast: Text = -1


class SlotRow(NamedTuple):
    """A slot of a call, with its tensor or with a note of why there is none."""

    call: Number  # its order
    slot: Text
    tensor: Nullable
    note: Text = -1


class TensorRow(NamedTuple):
    """A tensor, and the row of its fingerprint in the batch that the step hands over next."""

    tensor: int
    dtype: int
    shape: int
    device: int
    row: int = -1
    placement: int = -1


class MeasuredAt(NamedTuple):
    """The place of a fingerprint: the batch, and the row in it."""

    batch: int
    row: int


SLOT_WIDTH = len(SlotRow._fields)
TENSOR_OF_SLOT = SlotRow._fields.index("tensor")  # the place of the tensor's number in a slot's row
_TENSOR_WIDTH = len(TensorRow._fields)


def add_slot(rows: list[int], call: int, slot: int, tensor: int, note: int = -1) -> None:
    """Add a slot's row to those before it, in a third of the time that a SlotRow takes."""
    rows += (call, slot, tensor, note)


def add_slots(rows: list[int], call: int, slots: Iterable[int], tensors: Iterable[int]) -> None:
    """Add the rows of many slots of a call that were all measured."""
    rows.extend(chain.from_iterable(zip(repeat(call), slots, tensors, repeat(-1))))


def add_tensor(
    rows: list[int], tensor: int, dtype: int, shape: int, device: int, row: int = -1, placement: int = -1
) -> None:
    """Add a tensor's row to those before it."""
    rows += (tensor, dtype, shape, device, row, placement)


def tensors_of(slots: list[int]) -> list[int]:
    """Return the numbers of the tensors in slot rows that follow each other."""
    return slots[TENSOR_OF_SLOT::SLOT_WIDTH]


def highest_tensor(tensors: list[int]) -> int:
    """Return the highest number of a tensor in tensor rows that follow each other."""
    return max(tensors[::_TENSOR_WIDTH])
