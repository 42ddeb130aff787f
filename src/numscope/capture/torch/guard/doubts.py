"""Infinities that may come to nothing: the logarithm of a distance 0, of which an attention layer makes a position.

They are made inside a model, no gradient flows through them, and they are no NaN. Calls that only compare them, choose
between them and others, or turn them into integers do no harm. The first call that computes with them, a gradient that
flows through what became of them, a NaN, or the end of the model with one of them left over: then their maker was an
origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numscope.capture.torch.guard.calls import Item, Seen, runs_inside
from numscope.nonfinite.rule import chooses


class Doubt:
    """A strike that waits, with the tensors that it is about."""

    __slots__ = ("items", "left", "strike")

    def __init__(self, strike: Any, outputs: Sequence[Item]) -> None:
        self.strike = strike
        self.items = [item for item in outputs if not item.found().clean]
        self.left = {item.key for item in self.items}  # storages that no call has taken yet

    def follow(self, keys: set[int], outputs: Sequence[Item]) -> None:
        """A call took some of it and handed it on."""
        self.left -= keys
        new = [item for item in outputs if not item.found().clean]
        self.items += new
        self.left |= {item.key for item in new}


class Doubts:
    """All that wait, in the order of their calls."""

    def __init__(self) -> None:
        self._waiting: list[Doubt] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, strike: Any, outputs: Sequence[Item]) -> None:
        """Let a strike wait."""
        self._waiting.append(Doubt(strike, outputs))

    def inside(self, seen: Seen) -> bool:
        """Tell whether a call inside this one has made what is in doubt."""
        return any(runs_inside(doubt.strike.seen, seen) for doubt in self._waiting)

    def hand_on(self, seen: Seen, inputs: Iterable[Item], outputs: Sequence[Item]) -> list[Doubt]:
        """A call has made something non-finite out of what is doubted; return what is in doubt no more."""
        keys = {item.key for item in inputs}
        counts = seen.at_once or any(item.found().nan for item in outputs)
        found = [doubt for doubt in self._waiting if any(item.key in keys for item in doubt.items)]
        if counts:
            return self._settle(found)
        for doubt in found:
            doubt.follow(keys, outputs)
        return []

    def take(self, op: str, keys: Iterable[int]) -> list[Doubt]:
        """A call whose results are finite took these storages; return what is in doubt no more."""
        taken = set(keys)
        found = [doubt for doubt in self._waiting if not taken.isdisjoint(doubt.left)]
        if not chooses(op):
            return self._settle(found)
        for doubt in found:
            doubt.left -= taken
        return []

    def end(self) -> tuple[list[Doubt], list[Doubt]]:
        """The model has ended: return what is left over somewhere, and what came to nothing."""
        waiting, self._waiting = self._waiting, []
        return [doubt for doubt in waiting if doubt.left], [doubt for doubt in waiting if not doubt.left]

    def _settle(self, found: list[Doubt]) -> list[Doubt]:
        self._waiting = [doubt for doubt in self._waiting if doubt not in found]
        return found
