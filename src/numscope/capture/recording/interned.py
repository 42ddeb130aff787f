"""Texts and shapes as numbers: interned, and given as columns; the names of successive calls."""

from __future__ import annotations

import itertools
import math
import threading
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ids = npt.NDArray[np.int32]
MOST = 100_000  # texts of calls that are interned: with their names in a series 25 MB
PASSING = 1 << 29  # a number from here on stands for a text that passes; there are as many as below


class Strings:
    """Interned strings, as numbers and as an Arrow dictionary.

    What calls are named and given may be new in each of a million calls, and in each step of a long job. Where `passes`,
    the first of these texts are interned, and the others are kept as bytes until the step after theirs is written.
    """

    def __init__(self, passes: bool = False) -> None:
        self._ids: dict[str, int] = {"": 0}  # so that no other text's number is false
        self._texts: list[str] = [""]
        self._lock = threading.Lock()
        self._array: pa.Array = pa.array([], pa.string())
        self._passes = passes
        self._passing = _Passing()
        self._step_began = 0  # texts that had passed by then

    def id(self, text: str) -> int:
        """Return the number of a text."""
        found = self._ids.get(text)
        if found is None:
            with self._lock:  # two threads with a new text each must not take the same number
                found = self._ids.setdefault(text, len(self._texts))
                if found == len(self._texts):
                    self._texts.append(text)
        return found

    @property
    def is_full(self) -> bool:
        """Tell whether a call's text that is new now passes."""
        return self._passes and len(self._texts) > MOST

    def of_call(self, text: str) -> int:
        """Return the number of a text that calls may have in any number: that of one that passes is good for two steps."""
        if self.is_full and text not in self._ids:
            return PASSING + self._passing.add(text) % PASSING
        return self.id(text)

    def begin_step(self) -> int:
        """Return how many texts have passed that no row recorded from now on has: those of the step before the last."""
        past, self._step_began = self._step_began, self._passing.count
        return past

    def forget(self, past: int) -> None:
        """Forget so many texts that have passed: all of their rows are columns."""
        self._passing.forget(past)

    def __getitem__(self, number: int) -> str:
        return self._texts[number] if number < PASSING else self._passing[number - PASSING]

    def column(self, ids: Ids) -> pa.Array:
        """Return a column of texts; a negative number is null."""
        if len(ids) and ids.max() >= PASSING:
            return pa.array([None if number < 0 else self[number] for number in ids.tolist()], pa.string())
        if len(self._array) < len(self._texts):
            new = pa.array(self._texts[len(self._array) :], pa.string())
            self._array = pa.concat_arrays([self._array, new])
        return self._array.take(nullable(ids))


class _Passing:
    """Texts one after the other as bytes, the first of them forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the writer's thread reads and forgets
        self._bytes = bytearray()
        self._ends = array("q")  # of each text, counted from the first byte ever
        self._forgotten = 0  # texts
        self._bytes_forgotten = 0

    @property
    def count(self) -> int:
        """How many texts there have been."""
        return self._forgotten + len(self._ends)

    def add(self, text: str) -> int:
        """Add a text; return its number."""
        with self._lock:
            self._bytes += text.encode("utf-8", "surrogatepass")
            self._ends.append(self._bytes_forgotten + len(self._bytes))
            return self.count - 1

    def forget(self, count: int) -> None:
        """Forget the first texts that there have been."""
        with self._lock:
            gone = min(count, self.count) - self._forgotten
            if gone > 0:
                end = self._ends[gone - 1]
                del self._bytes[: end - self._bytes_forgotten]
                del self._ends[:gone]
                self._forgotten, self._bytes_forgotten = self._forgotten + gone, end

    def __getitem__(self, number: int) -> str:
        """Return the text of a number, which is told by its remainder: there may have been more than have numbers."""
        with self._lock:
            place = (number - self._forgotten) % PASSING
            if place >= len(self._ends):
                return ""
            start = self._ends[place - 1] if place else self._bytes_forgotten
            piece = self._bytes[start - self._bytes_forgotten : self._ends[place] - self._bytes_forgotten]
            return piece.decode("utf-8", "surrogatepass")


class Shapes:
    """Interned shapes, as numbers, as an Arrow array of lists, and how many elements each has."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}
        self._shapes: list[list[int]] = []
        self._lock = threading.Lock()
        self._array: pa.Array = pa.array([], pa.list_(pa.int64()))
        self._sizes = np.empty(0, np.int64)

    def id(self, shape: tuple[int, ...]) -> int:
        """Return the number of a shape."""
        found = self._ids.get(shape)
        if found is None:
            with self._lock:
                found = self._ids.setdefault(shape, len(self._shapes))
                if found == len(self._shapes):
                    self._shapes.append(list(shape))
        return found

    def column(self, ids: Ids) -> pa.Array:
        """Return a column of shapes."""
        if len(self._array) < len(self._shapes):
            new = pa.array(self._shapes[len(self._array) :], self._array.type)
            self._array = pa.concat_arrays([self._array, new])
        return self._array.take(pa.array(ids))

    def elements(self, ids: Ids) -> pa.Array:
        """Return a column of the numbers of elements."""
        if len(self._sizes) < len(self._shapes):
            new = [math.prod(shape) for shape in self._shapes[len(self._sizes) :]]
            self._sizes = np.append(self._sizes, np.array(new, np.int64))
        return pa.array(self._sizes[ids])


class Numbering(NamedTuple):
    """The numbers of one step's calls of one thing."""

    epoch: int  # of the step
    numbers: Iterator[int]  # the next ones
    given_back: list[int]  # which come first


class Series:
    """The names of the successive calls of one thing: `Functional.linear.0.forward`, `….1.forward` …"""

    __slots__ = ("_lock", "_strings", "_template", "backward", "forward", "head", "now")

    def __init__(self, strings: Strings, head: str, template: str) -> None:
        self.head = head
        self._strings = strings
        self._template = template  # "{head}.{n}.{phase}" or "{head}.{phase}.{n}"
        self._lock = threading.Lock()  # threads that begin the same call at once have a number each
        self.now = Numbering(-1, itertools.count(), [])
        self.forward: list[int] = []  # interned names by number, as far as they were asked for
        self.backward: list[int] = []

    def next(self, epoch: int) -> int:
        """Return the next number in this step."""
        now = self.now
        if now.epoch != epoch:
            with self._lock:
                if self.now.epoch != epoch:
                    self.now = Numbering(epoch, itertools.count(), [])
                now = self.now
        return now.given_back.pop() if now.given_back else next(now.numbers)

    def give_back(self, number: int) -> None:
        """Give a number back that no call will have."""
        self.now.given_back.append(number)

    def name(self, number: int, phase: str = "forward") -> int:
        """Return the interned name of the call of that number."""
        names = self.backward if phase == "backward" else self.forward
        if number >= len(names):
            if self._strings.is_full:
                return self._strings.of_call(self._template.format(head=self.head, n=number, phase=phase))
            with self._lock:
                while len(names) <= number:
                    text = self._template.format(head=self.head, n=len(names), phase=phase)
                    names.append(self._strings.id(text))
        return names[number]


def nullable(ids: Ids) -> pa.Array:
    """Return numbers as a column; a negative one is null."""
    if not len(ids) or ids.min() >= 0:
        return pa.array(ids)
    if ids.max() < 0:
        return pa.nulls(len(ids), pa.int32())
    return pa.array(ids, mask=ids < 0)
