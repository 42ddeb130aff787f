"""One component under examination: what was measured of it, and what is thought of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from numscope.core.json_value import JsonObject
from numscope.weights.judge.content import Finding
from numscope.weights.judge.structure import Relation, Structure
from numscope.weights.matching.components import Component
from numscope.weights.matching.lines import Placement
from numscope.weights.measure import Difference
from numscope.weights.pair import FaultName, Pair, PairVerdict, TensorFacts
from numscope.weights.tensor import Tensor


@dataclass
class Case:
    """A component with what was found."""

    component: Component
    relation: Relation = "none"
    verdict: PairVerdict = "diverged"
    reason: str = ""
    relative: float | None = None
    fault: FaultName | None = None
    repair: str | None = None
    structure: Structure | None = None
    placement: Placement | None = None
    difference: Difference | None = None
    finding: Finding | None = None
    holder: Tensor | None = None  # the reference's tensor that the suspect's really is
    explain: list[str] = field(default_factory=list)
    details: JsonObject = field(default_factory=dict)

    @property
    def a(self) -> list[Tensor]:
        """The suspect's tensors."""
        return self.component.a

    @property
    def b(self) -> list[Tensor]:
        """The reference's tensors."""
        return self.component.b

    @property
    def is_single(self) -> bool:
        """Whether it is one tensor on either side."""
        return len(self.a) == len(self.b) == 1

    def settle(self, relation: Relation, verdict: PairVerdict, reason: str, relative: float | None) -> Case:
        """Give the case its answer."""
        self.relation, self.verdict, self.reason, self.relative = relation, verdict, reason, relative
        self.fault = self.repair = None
        return self

    def blame(self, fault: FaultName, reason: str, repair: str | None = None) -> None:
        """Give the case a fault."""
        self.verdict, self.fault, self.reason, self.repair = "diverged", fault, reason, repair

    def pair(self) -> Pair:
        """Return the answer for this case."""
        names_a = tuple(name for tensor in self.a for name in tensor.names)
        names_b = tuple(name for tensor in self.b for name in tensor.names)
        explain = (f"paired because of {self.component.why}", *self.explain)
        relative = self.relative
        return Pair(
            names_a,
            names_b,
            self.relation,
            relative,
            self.verdict,
            self.reason,
            self.fault,
            explain,
            self.repair,
            self.details,
            *(tuple(TensorFacts(one.name, one.dtype, one.shape) for one in side) for side in (self.a, self.b)),
        )
