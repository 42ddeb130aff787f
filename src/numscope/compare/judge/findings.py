"""The records of the judge: origins before they are put into words, suspicions that may be withdrawn, and the history
that one step leaves to the next."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from numscope.compare.align.arguments import Difference
from numscope.compare.judge.rounding.precisions import Precisions
from numscope.compare.load.side import Side
from numscope.core.report import Origin
from numscope.core.words import Mechanism, OriginKind

IDENTICAL, EQUIVALENT, ORIGIN, INHERITED = range(4)  # verdicts, as columns hold them
VERDICTS = ("identical", "equivalent", "origin", "inherited")
PLAIN_ROUNDING = 16  # unit roundoffs: a tensor that is made from a wrong one and is as near as this is right again
Who = Literal["target", "reference"]
NO_CAUSE = -1  # in place of a suspicion's number: there is none, or it lies in an earlier step


class Standing(Enum):
    """Whether a tensor that a call is given is right."""

    RIGHT = "right"
    TAINTED = "tainted"  # it follows from something wrong
    UNEXPLAINED = "unexplained"  # it is wrong, though all that corresponds before it is right


class Status(NamedTuple):
    """The standing of a tensor, and the number of the suspicion that is its cause."""

    standing: Standing
    cause: int = NO_CAUSE

    @property
    def is_right(self) -> bool:
        return self.standing is Standing.RIGHT


RIGHT = Status(Standing.RIGHT)


class Inputs(Enum):
    """Whether a run shows what a call was given; the value is what a sentence says of it."""

    RECORDED = ""
    NONE = "it has no inputs"
    UNRECORDED = "inputs not recorded"
    UNMEASURED = "inputs not all measured"


class Weight(IntEnum):
    """How much a finding explains: findings of less weight come after those of more."""

    PROVEN = 0  # wrong from right inputs, and a loss, a gradient, a parameter or a saved tensor follows from it
    READ_BY_NONE = 1  # wrong from right inputs, but no recorded call reads it
    AFTER_ANOTHER = 2  # differs by itself, but what it is given is wrong already: how much, cannot be told


class Dtypes(NamedTuple):
    """The dtypes of one output on the two sides."""

    target: str
    reference: str


class ErrorSizes(NamedTuple):
    """The evidence of a finding: an error, how much of it rounding explains, and the error that came in."""

    error: float
    explained: float
    came_in: float = 0.0


class LoneCall(NamedTuple):
    """A call that one side alone has, as a row of that side; or two such calls, one in the other's place."""

    target: int = -1
    reference: int = -1


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
    """One origin, before it is put into words; facts.py constructs it."""

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
    weight: Weight = Weight.PROVEN

    @property
    def sizes(self) -> ErrorSizes:
        return ErrorSizes(self.relative, self.expected, self.came_in)

    @property
    def has_telling_arguments(self) -> bool:
        """Whether the two calls differ in an argument that changes numbers."""
        return any(difference.telling for difference in self.differences)

    def call(self, a: Side, b: Side) -> tuple[Side, int]:
        """Return the side and the row of the call that is named: the target's where it has one."""
        return (a, self.target) if self.target >= 0 else (b, self.reference)


@dataclass
class Suspicion:
    """A finding that a later agreement may still refute: calls that only changed places meet again further on."""

    finding: Finding
    firm: bool  # nothing refutes it any more
    failed_at: float = 0.0  # places in the target's order
    withdrawn_at: float = -1.0
    failures: int = 1
    last_error: float = np.inf  # when it last failed
    at: int = -1  # the pair that was given the wrong tensor
    reaches_end: bool = True  # a loss, a gradient, a parameter or a saved tensor (paths/reach.py)

    @property
    def stands(self) -> bool:
        return self.firm or self.withdrawn_at < self.failed_at

    def dismiss(self) -> None:
        """Withdraw it for good, whatever showed it: a rearrangement."""
        self.firm, self.withdrawn_at = False, np.inf

    def fail(self, order: float, error: float) -> None:
        """Note that one more tensor is off because of it."""
        self.failed_at, self.last_error = order, error
        self.failures += 1

    def withdraw(self, order: float) -> None:
        """Note an agreement that refutes it; a failure further on raises it again."""
        self.withdrawn_at = max(self.withdrawn_at, order)

    def confirm(self, finding: Finding | None = None) -> None:
        """Let nothing refute it from now on; `finding` replaces the suspected one."""
        self.finding, self.firm = finding or self.finding, True


@dataclass(frozen=True)
class OptimizerOutput:
    """A parameter as an optimizer left it."""

    error: float
    wrong: bool


@dataclass
class History:
    """The state that outlives a step, for one rank."""

    precisions: Precisions | None = None  # of two runs that compute in different precisions throughout
    two_frameworks: bool = False
    chips: frozenset[str] = frozenset()  # on which the two runs computed
    diverged: bool = False
    started: bool = False
    noise: float = 0.0  # the largest error that was explained so far
    parameter_errors: dict[str, float] = field(default_factory=dict)  # the largest, of buffers and gradients too
    asked: set[str] = field(default_factory=set)  # calls that are told to ask for something else, behind a fault
    wrong_parameters: set[str] = field(default_factory=set)  # those that an optimizer left wrong
    # Parameters that two classes keep in two layouts, as GPT-2's transposed weights: their elements are not compared.
    other_layouts: set[str] = field(default_factory=set)
    optimizer_outputs: dict[int, OptimizerOutput] = field(default_factory=dict)  # by the target's hash
    # Calls whose arguments differ without effect on their outputs, by the state that they change.
    state_changes: dict[str, Finding] = field(default_factory=dict)
    # Calls that one side alone has after the last step's optimizer, by the parameter they write (late_writes.py).
    late_writes: dict[str, Finding] = field(default_factory=dict)


def or_zero(value: float) -> float:
    """Return a measure as a finite number, 0 where it is not known; for one number numpy's own takes twenty times as long."""
    return 0.0 if math.isnan(value) else min(float(value), sys.float_info.max)
