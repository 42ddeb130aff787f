"""The outcome of a suspect's replays, and the mechanism that follows: one table, which docs/explanation/mechanisms.md has too.

Two questions are answered apart. Do the two *programs* compute the same, made here on the same inputs? And is each
side's *recorded* output what its own recorded inputs give? A device is at fault where the programs are the same and one
recorded output is not what its inputs give.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from numscope.core.words import Mechanism


class Programs(Enum):
    """How the two sides' calls differ when both are made here, on the same inputs."""

    SAME = "the same to the bit"
    OTHER_DTYPES = "the same but for dtypes and casts"
    OTHER_ORDER = "the same in float64, rounded otherwise"
    OTHER_MEANING = "different in float64"
    UNKNOWN = "not replayed"


class Recorded(Enum):
    """Whether a side's recorded output is what its own recorded inputs give in float64."""

    RIGHT = "within rounding"
    OFF = "beyond rounding"
    NOT_KEPT = "not kept"


_OF_PROGRAMS: dict[Programs, Mechanism] = {
    Programs.OTHER_DTYPES: "precision",
    Programs.OTHER_ORDER: "order",
    Programs.OTHER_MEANING: "semantic",
    Programs.UNKNOWN: "unknown",
}


class Outcome(NamedTuple):
    """The outcome of the replays of both sides."""

    programs: Programs
    target: Recorded
    reference: Recorded

    @property
    def mechanism(self) -> Mechanism:
        """The kind of fault that explains the outcome; no other kind agrees with it."""
        if self.programs in (Programs.OTHER_MEANING, Programs.UNKNOWN):
            return _OF_PROGRAMS[self.programs]
        off = (self.target, self.reference).count(Recorded.OFF)
        if off == 2:
            return "unknown"  # on neither side do the recorded inputs give the recorded output
        if off == 1:
            return "device"
        if self.programs is not Programs.SAME:
            return _OF_PROGRAMS[self.programs]
        # The same program, and both outputs are right: what differs is how two machines round.
        return "order" if self.target is self.reference is Recorded.RIGHT else "unknown"
