"""Monkeypatches: attributes of torch that something of ours stands in for while a job is watched."""

from __future__ import annotations

from collections.abc import Iterable

from numscope.capture.torch.thread import Undo


def replace(owner: object, name: str, new: object) -> Undo:
    """Put something in the place of an attribute; return what puts the attribute back.

    Where somebody else has replaced ours since, theirs stays.
    """
    own = vars(owner).get(name)  # as it stands in a class; what is inherited comes back by itself
    setattr(owner, name, new)
    ours = vars(owner)[name]

    def undo() -> None:
        if vars(owner).get(name) is not ours:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo


def together(undo: Iterable[Undo]) -> Undo:
    """Return what undoes all of these, the last one first: one may stand in for what another has put there."""
    pending = list(undo)

    def all_of_it() -> None:
        while pending:
            pending.pop()()

    return all_of_it
