"""Attributes of torch that something of ours stands in for, while a job is watched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numscope.capture.torch.thread import Undo


def replace(owner: Any, name: str, new: Any) -> Undo:
    """Put something in the place of an attribute; return what puts that back."""
    own = vars(owner).get(name)  # what is inherited comes back by itself
    setattr(owner, name, new)
    return lambda: delattr(owner, name) if own is None else setattr(owner, name, own)


def together(undo: Iterable[Undo]) -> Undo:
    """Return what undoes all of these, the last one first: one may stand in for what another has put there."""
    pending = list(undo)

    def all_of_it() -> None:
        while pending:
            pending.pop()()

    return all_of_it
