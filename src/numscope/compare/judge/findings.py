"""What is found: origins before they are put into words, suspicions that may be withdrawn, and what earlier steps left."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from numscope.compare.align.arguments import Difference
from numscope.compare.judge.precisions import Precisions

IDENTICAL, EQUIVALENT, ORIGIN, INHERITED = range(4)
VERDICTS = ("identical", "equivalent", "origin", "inherited")
RIGHT, TAINTED, FAILED = range(
    3
)  # of a tensor: it is right, follows from something wrong, or is wrong for no known reason
Status = tuple[int, int]  # and the suspicion that is its cause, -1 for none
PLAIN = 16  # unit roundoffs: what follows from something wrong and is as small as this is right again


@dataclass(frozen=True)
class Finding:
    """One origin, before it is put into words."""

    kind: str  # call, data, parameter, missing, extra, gap, optimizer
    pair: int  # row in the alignment, -1 for a call that one side alone has
    target: int  # row of the target's call, -1
    reference: int
    step: int
    rank: int
    order: float  # place in the target's order
    relative: float
    expected: float
    came_in: float
    differences: tuple[Difference, ...] = ()
    slot: str = ""
    note: str = ""
    random: bool = False
    dtypes: tuple[str, str] | None = None
    given: str = ""  # what is known of its inputs, where that is not how far they are apart
    parts: str = ""  # the shapes of the data, where the two sides are given parts of other sizes of a batch
    ready: Any = None  # an origin of an earlier step, already in words


@dataclass
class Suspicion:
    """A finding that a later agreement may still refute: calls that only changed places heal downstream."""

    finding: Finding
    firm: bool
    failed_at: float = 0.0
    healed_at: float = -1.0
    failures: int = 1
    last: float = np.inf  # the error when it last failed
    at: int = -1  # the pair that was given what is wrong

    @property
    def stands(self) -> bool:
        return self.firm or self.healed_at < self.failed_at


@dataclass(frozen=True)
class Made:
    """A parameter as an optimizer left it."""

    error: float
    wrong: bool


@dataclass
class History:
    """What the steps before this one showed, for one rank."""

    precisions: Precisions | None = None  # of two runs that compute in different precisions throughout
    two_frameworks: bool = False
    diverged: bool = False
    started: bool = False
    noise: float = 0.0  # the largest error that was explained so far
    parameters: dict[str, float] = field(default_factory=dict)  # largest error of each parameter, buffer and gradient
    wrong: set[str] = field(default_factory=set)  # parameters that an optimizer left wrong
    # Parameters that two classes keep in two layouts, as GPT-2's transposed weights: their elements are not compared.
    layouts: set[str] = field(default_factory=set)
    tensors: dict[int, Made] = field(default_factory=dict)  # what optimizers made, by the target's hash
    # A call whose arguments differ, by the state it changes.
    arguments: dict[str, Finding] = field(default_factory=dict)
    # Calls that one side alone has after the last step's optimizer (late.py).
    late: dict[str, Finding] = field(default_factory=dict)


def or_zero(value: float) -> float:
    """Return a measure as a finite number, 0 where it is not known; one at a time numpy's own takes twenty times as long."""
    return 0.0 if math.isnan(value) else min(float(value), sys.float_info.max)
