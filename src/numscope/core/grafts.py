"""The grafts of this process, active or ended: a capture writes them into the manifest of its run."""

from __future__ import annotations

_begun: list[dict[str, object]] = []
_active: list[int] = []  # indices in _begun


def begin(graft: dict[str, object]) -> int:
    """Note a graft that begins; return its number."""
    _begun.append(graft)
    _active.append(len(_begun) - 1)
    return _active[-1]


def end(number: int) -> None:
    """Note that a graft has ended."""
    if number in _active:
        _active.remove(number)


def first() -> int:
    """Return the number of the first active graft, or of the next graft to begin where none is active."""
    return min(_active, default=len(_begun))


def since(number: int) -> list[dict[str, object]]:
    """Return the grafts from this number on."""
    return [dict(graft) for graft in _begun[number:]]
