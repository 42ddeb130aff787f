"""What is found out once about contents that are alike: how they are measured, and how they are copied straight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numscope.fingerprint.cuda.launch import Launch
from numscope.fingerprint.kinds import Kind


class Turn(NamedTuple):
    """How matrices of one shape that lie transposed are copied straight."""

    start: Launch
    programs: int
    size: int  # of the copy, in bytes
    tail: tuple[int, ...]


class Plan(NamedTuple):
    """How contents of one dtype and size, or of one shape with its strides, are measured at a multiple of 16 bytes."""

    packed: bytes | None  # for the launch in C
    call: Callable[..., None]
    before: tuple[Any, ...]  # what it is given before the address
    head: tuple[int, ...]  # between the address and the line's number
    tail: tuple[int, ...]  # after the record's number
    programs: int
    elements: int
    real: int  # elements, complex ones counted twice
    kind: Kind
    per: int
    turn: Turn | None
    flat: bool  # they lie in one piece
