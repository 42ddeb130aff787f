"""What is found: origins before they are put into words, suspicions that may be withdrawn, and what earlier steps left."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

import numpy as np

from numscope.compare.align.arguments import Difference
from numscope.compare.judge.precisions import Precisions
from numscope.compare.load.side import Side
from numscope.core.report import Origin
from numscope.core.words import Mechanism, OriginKind

IDENTICAL, EQUIVALENT, ORIGIN, INHERITED = range(4)
VERDICTS = ("identical", "equivalent", "origin", "inherited")
RIGHT, TAINTED, FAILED = range(
    3
)  # of a tensor: it is right, follows from something wrong, or is wrong for no known reason
Status = tuple[int, int]  # and the suspicion that is its cause, -1 for none
PLAIN = 16  # unit roundoffs: what follows from something wrong and is as small as this is right again


class Inputs(Enum):
    """Whether a run shows what a call was given; the value is what a sentence says of it."""

    RECORDED = ""
    NONE = "it has no inputs"
    UNRECORDED = "inputs not recorded"


class Dtypes(NamedTuple):
    """The dtypes of one output on the two sides."""

    target: str
    reference: str


class Reason(ABC):
    """Why something is named as an origin (reasons.py)."""

    kind: ClassVar[OriginKind | None] = None  # None: that of the call itself
    mechanism: ClassVar[Mechanism | None] = None  # None: what the arguments and dtypes of the two calls tell

    @abstractmethod
    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        """Return what is wrong, without arguments, dtypes and source line."""

    def details(self, finding: Finding) -> Mapping[str, str]:
        """Return the fields that this reason adds to the details of the report's origin."""
        return {"slot": finding.slot} if finding.slot else {}


@dataclass(frozen=True)
class Finding:
    """One origin, before it is put into words."""

    reason: Reason
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
    random: bool = False
    dtypes: Dtypes | None = None
    inputs: Inputs = Inputs.RECORDED
    batch_shapes: str = ""  # the shapes of the data, where the two sides are given parts of other sizes of a batch
    ready: Origin | None = None  # an origin of an earlier step, already in words

    def call(self, a: Side, b: Side) -> tuple[Side, int]:
        """Return the side and the row of the call that is named: the target's where it has one."""
        return (a, self.target) if self.target >= 0 else (b, self.reference)


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
