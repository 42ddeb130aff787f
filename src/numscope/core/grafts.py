"""The grafts that are or were at work in this process: a capture writes them into the manifest of the run it records."""

from __future__ import annotations

from typing import Any

_begun: list[dict[str, Any]] = []
_active: list[int] = []  # places in _begun


def begin(graft: dict[str, Any]) -> int:
    """Note a graft that begins; return its number."""
    _begun.append(graft)
    _active.append(len(_begun) - 1)
    return _active[-1]


def end(number: int) -> None:
    """Note that a graft has ended."""
    if number in _active:
        _active.remove(number)


def first() -> int:
    """Return the number of the first graft that is at work now, or else of the next that will begin."""
    return min(_active, default=len(_begun))


def since(number: int) -> list[dict[str, Any]]:
    """Return the grafts of this number and later: those that a capture which began then has seen."""
    return [dict(graft) for graft in _begun[number:]]
