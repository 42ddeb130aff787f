"""How far a repair carries: the target's whole pass made again with the reference's calls at the origin.

That a change reproduces a call and that it reproduces the loss and the gradients are two statements. So the calls of the
reference are put into the target's program, at the origin and wherever else the same line is at fault, and both programs
are made again from the same parameters and data. Where only dtypes differ they compute as recorded, else in float64:
there rounding hides nothing, and what is left is another fault, named by the first call whose result still differs.

    repaired here, the whole pass gives the reference's loss and all 37 gradients
    repaired here, the loss is off by 3e-2 (before 4e-2); 12 of 37 gradients too; what is left begins at mse_loss
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import CallPair, MatchedOrders, PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import upstream
from numscope.diagnose.repairs.carried import makes_a_loss
from numscope.diagnose.replay.measures import relative_error, unit_roundoff
from numscope.diagnose.replay.whole_pass import MOST_BYTES, Graft, WholePass

Tensor = torch.Tensor


@dataclass(frozen=True)
class Repaired:
    """The rest of the difference when the target does at the origin what the reference does there."""

    loss: str  # the name of the call that makes it
    places: int  # where the target's calls were replaced
    before: float  # the loss' error, both programs made again
    after: float
    gradients: int  # of parameters, that were compared
    recorded: int  # gradients that both runs have; both passes, made again, must give a gradient as it was recorded
    left: dict[str, float]  # the gradients that are still off, by parameter, the worst first
    begins: str | None  # the first call whose result still differs
    carries: bool  # what is left begins behind the places
    explained: float  # by rounding

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left."""
        return self.after <= self.explained and not self.left

    @property
    def sentence(self) -> str:
        """The finding in words."""
        where = "repaired here" if self.places == 1 else f"repaired in {self.places} places"
        if self.is_complete:
            gradients = f" and all {self.gradients} gradients" if self.gradients > 1 else ""
            return (
                f"{where}, the whole pass gives the reference's loss ({self.loss}){gradients}: that is the whole of it"
            )
        if self.after <= self.explained:
            told = f"{where}, the whole pass gives the reference's loss ({self.loss})"
        else:
            told = f"{where}, the loss ({self.loss}) is off by {self.after:.1e}, before {self.before:.1e}"
        if self.gradients:
            told += f"; {len(self.left)} of {self.gradients} gradients are off"
        if self.left:
            worst, error = next(iter(self.left.items()))
            told += f", most that of {worst} by {error:.1e}"
        return f"{told}; what is left begins at {self.begins}" if self.begins else told

    def to_dict(self) -> dict[str, object]:
        """Return it for the report."""
        return {
            "sentence": self.sentence,
            "loss": self.loss,
            "places": self.places,
            "before": self.before,
            "after": self.after,
            "gradients": self.gradients,
            "recorded_gradients": self.recorded,
            "left": self.left,
            "begins": self.begins,
            "complete": self.is_complete,
        }


def repaired(pairs: PairedStep, origin: Origin) -> Repaired | None:
    """Return what is left when the target does at the origin what the reference does; None where that can't be made."""
    loss = MatchedOrders(_loss(pairs.target), _loss(pairs.reference))
    if min(loss) < 0 or origin.phase != "forward" or origin.kind not in ("api", "aten", "module", "missing", "extra"):
        return None
    if any(_bytes(graph) > MOST_BYTES for graph in (pairs.target, pairs.reference)):
        return None
    try:
        return _Programs(pairs, origin, loss).held_together()
    except (CannotReplay, NotKeptError):
        return None


def _loss(graph: StepGraph) -> int:
    """Return the last call that makes a single number from which a backward pass begins; -1 for none."""
    calls = reversed(graph.calls.values())
    return next((one.order for one in calls if one.phase == "forward" and makes_a_loss(graph, one.order)), -1)


def _bytes(graph: StepGraph) -> int:
    return sum(4 * math.prod(graph.tensors[number].shape) for number in graph.producer)


class _Programs:
    """The two programs of a step, and the target's with the reference's calls in some places."""

    def __init__(self, pairs: PairedStep, origin: Origin, loss: MatchedOrders) -> None:
        self.pairs, self.origin, self.loss = pairs, origin, loss
        self.dtype = None if origin.mechanism == "precision" else torch.float64
        self.counterpart = self._counterparts()  # the reference's tensors → the target's
        self.grafts = dict(self._grafts())
        if not self.grafts:
            raise CannotReplay("the origin has no place in the pass")

    def held_together(self) -> Repaired | None:
        """Return what is left of the difference with the reference's calls in their places."""
        pairs, (target, reference) = self.pairs, self.loss
        (made,), (wanted,) = pairs.target.outputs(target).values(), pairs.reference.outputs(reference).values()
        ours, theirs = self._parameters()
        goal = WholePass(pairs.reference, self.dtype, self._leaf_of_reference, parameters=frozenset(theirs.values()))
        right = goal.make(wanted)
        plain = WholePass(pairs.target, self.dtype, self._leaf_of_target, parameters=frozenset(ours.values()))
        wrong = plain.make(made)
        rounding = _half_of(pairs.target.data(made).dtype)
        for graph, number, value in ((pairs.reference, wanted, right), (pairs.target, made, wrong)):
            if relative_error(value, graph.data(number)) > rounding:
                return None  # what is made again is not what was recorded: there was more in it
        mended = WholePass(
            pairs.target, self.dtype, self._leaf_of_target, self.grafts, parameters=frozenset(ours.values())
        )
        last = mended.make(made)
        if mended.used != self.grafts.keys():
            self.grafts = {number: graft for number, graft in self.grafts.items() if number in mended.used}
            if not self.grafts:
                return None  # the loss does not come from it
        explained = _half_of(right.dtype)
        gradients = self._gradients(
            _Gradients(ours, plain.gradients(made), mended.gradients(made)), theirs, goal.gradients(wanted)
        )
        left = {name: error for name, error in gradients.items() if error > explained}
        after = relative_error(last, right)
        begins = self._first_difference(mended, goal, explained) if after > explained or left else None
        return Repaired(
            pairs.target.calls[target].name,
            len(self.grafts),
            relative_error(wrong, right),
            after,
            len(gradients),
            len(theirs),
            dict(sorted(left.items(), key=lambda item: -item[1])),
            begins.target_name or begins.reference_name if begins is not None else None,
            begins is None or begins.target_order not in self._makers(),
            explained,
        )

    # The places -----------------------------------------------------------------------------------------------------

    def _counterparts(self) -> dict[int, int]:
        """Return the reference's tensors that the target has, or that a paired call makes there, right or wrong."""
        pairs = self.pairs
        found = dict(pairs.reference_to_target)
        for pair in pairs.calls:
            if (orders := pair.matched) is None or pair.phase != "forward":
                continue
            ours, theirs = pairs.target.slots(orders.target), pairs.reference.slots(orders.reference)
            for slot, other in theirs.items():
                mine = ours.get(slot)
                if mine is None or other is None or other in found:
                    continue
                made = mine in pairs.target.producer, other in pairs.reference.producer
                if (pair.kind == "module" or not slot.startswith("output")) and any(made):
                    continue  # calls that do not belong together may have made it
                if pairs.target.tensors[mine].shape == pairs.reference.tensors[other].shape:
                    found[other] = mine
        return found

    def _grafts(self) -> Iterator[tuple[int, Graft]]:
        """Yield the reference's calls for each place of the origin's cause, by the target's tensor that they replace."""
        names = [self.origin.call, *map(str, self.origin.details.get("elsewhere") or ())]
        chosen: dict[int, CallPair] = {}
        for name in names:
            pair = self.pairs.call(name, self.origin.kind)
            if pair is not None and pair.phase == "forward":
                chosen[pair.pair] = pair
        for pair in chosen.values():
            for orders in [pair.matched] if pair.matched is not None else self._behind(pair):
                theirs = self.pairs.reference.outputs(self.pairs.reference.outermost_wrapper(orders.reference))
                mine = self.pairs.target.outputs(self.pairs.target.outermost_wrapper(orders.target))
                for slot, number in mine.items():
                    if slot in theirs:
                        yield number, self._graft(theirs[slot])

    def _behind(self, lone: CallPair) -> Iterator[MatchedOrders]:
        """Yield the paired calls that read what a call of one side alone made, through others of that side."""
        is_extra = lone.target_order is not None
        graph = self.pairs.target if is_extra else self.pairs.reference
        matched = {
            orders.target if is_extra else orders.reference: orders
            for pair in self.pairs.calls
            if (orders := pair.matched) is not None and pair.phase == "forward" and pair.kind != "module"
        }
        first = lone.target_order if is_extra else lone.reference_order
        waiting, seen = [first], {first}
        while waiting:
            order = waiting.pop()
            for number in graph.outputs(order).values() if order is not None else ():
                for reader in graph.consumers.get(number, ()):
                    if reader in seen or graph.calls[reader].is_gradient or graph.calls[reader].kind == "module":
                        continue
                    seen.add(reader)
                    if reader in matched:
                        yield matched[reader]
                    else:
                        waiting.append(reader)

    def _graft(self, number: int) -> Graft:
        reference = self.pairs.reference
        known = self.counterpart.keys() - {number}
        subgraph = upstream(reference, number, known, include_maker=True)
        if not subgraph.calls or not set(subgraph.inputs) <= known:
            raise CannotReplay("what the reference's calls are given is not in the target")
        return Graft(subgraph, self.counterpart)

    # What no call made ----------------------------------------------------------------------------------------------

    def _leaf_of_reference(self, number: int) -> Tensor:
        return self.pairs.reference.data(number)

    def _leaf_of_target(self, number: int) -> Tensor:
        """Return the reference's tensor where both runs have it, the target's own where that is a parameter or data."""
        pairs = self.pairs
        partner = pairs.target_to_reference.get(number)
        if partner is not None and pairs.same(number, partner):
            return pairs.reference.data(partner).to(pairs.target.data(number).dtype)
        if number in pairs.target.producer:
            raise CannotReplay("a call that can't be made again made something else")
        return pairs.target.data(number)

    # Gradients ------------------------------------------------------------------------------------------------------

    def _parameters(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the parameters that have a gradient in both runs, by name."""
        ours, theirs = self.pairs.target.gradients_of_parameters, self.pairs.reference.gradients_of_parameters
        common = ours.keys() & theirs.keys()
        return {name: ours[name].parameter for name in common}, {name: theirs[name].parameter for name in common}

    def _gradients(self, ours: _Gradients, theirs: dict[str, int], wanted: dict[int, Tensor]) -> dict[str, float]:
        """Return the errors of the gradients, of those that both passes, made again, give as recorded.

        A gradient that is nothing but rounding is held against the largest: its own norm is no measure.
        """
        kept = {name: (_recorded(self.pairs.target, name), _recorded(self.pairs.reference, name)) for name in theirs}
        largest = max((float(right.double().norm()) for _, right in kept.values() if right is not None), default=0.0)
        found = {}
        for name, (own, right) in kept.items():
            number, mine = theirs[name], ours.parameters[name]
            if (
                own is None
                or right is None
                or number not in wanted
                or mine not in ours.repaired
                or mine not in ours.plain
            ):
                continue
            half = _half_of(own.dtype, right.dtype)
            seen = _off(ours.plain[mine], own, half * largest), _off(wanted[number], right, half * largest)
            if max(seen) <= half:
                found[name] = _off(ours.repaired[mine], wanted[number], half * largest)
        return found

    def _first_difference(self, mended: WholePass, goal: WholePass, explained: float) -> CallPair | None:
        """Return the first paired call whose result still differs; else one that stands alone behind all of them."""
        pairs, behind = self.pairs, None
        for pair in pairs.calls:
            orders = pair.matched
            if pair.phase != "forward" or pair.kind == "module":
                continue
            if orders is None:
                behind = behind or pair
                continue
            behind = None
            theirs = pairs.reference.outputs(orders.reference)
            for slot, number in pairs.target.outputs(orders.target).items():
                mine, other = mended.values.get(number), goal.values.get(theirs.get(slot, -1))
                if mine is not None and other is not None and relative_error(mine, other) > explained:
                    return pair
        return behind

    def _makers(self) -> set[int | None]:
        """Return the orders of the target's calls whose results were replaced."""
        return {self.pairs.target.producer.get(number) for number in self.grafts}


class _Gradients(NamedTuple):
    """The parameters of the target by name, and their gradients: as the target makes them, and with the repair."""

    parameters: dict[str, int]
    plain: dict[int, Tensor]
    repaired: dict[int, Tensor]


def _recorded(graph: StepGraph, parameter: str) -> Tensor | None:
    """Return the recorded gradient of a parameter, None where it was not kept."""
    number = graph.gradients_of_parameters[parameter].gradient
    return graph.data(number) if graph.kept(number) else None


def _off(made: Tensor, wanted: Tensor, least: float) -> float:
    """Return how far a gradient is off, relative to its norm or to the least that counts."""
    if made.shape != wanted.shape:
        return math.inf
    norm = max(float(wanted.double().norm()), least)
    return float((made.double() - wanted.double()).norm()) / norm if norm else 0.0


def _half_of(*dtypes: torch.dtype) -> float:
    """Return the error at which half of a dtype's digits agree, of several the coarsest's.

    Between two results of the same program there is rounding alone, which leaves more of them; a fault leaves fewer.
    """
    return math.sqrt(unit_roundoff(*dtypes))
