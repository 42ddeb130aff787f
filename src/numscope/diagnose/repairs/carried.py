"""How far a repair of a call carries: the rest of the forward pass made again, with the reference's tensor in its place.

That a change reproduces a call and that it reproduces the loss are two statements. The second one holds only if nothing
else is wrong behind the call.
"""

from __future__ import annotations

from dataclasses import dataclass

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import MatchedOrders, PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import upstream
from numscope.diagnose.replay.measures import relative_error, unit_roundoff

_MOST_CALLS = 2000  # from the origin to the loss
_ROUNDOFFS = 16.0  # the rest of the pass is made again in another order of sums


@dataclass(frozen=True)
class Carried:
    """The loss' error as recorded, and with the reference's tensor in place of the origin's output."""

    loss: str  # the name of the call that makes it
    before: float
    after: float
    explained: float  # of `after`, by rounding

    def to_dict(self) -> dict[str, object]:
        """Return it for the report."""
        if self.after <= self.explained:
            told = "that is the whole of it"
        elif self.after < self.before / 2:
            told = "something behind it differs too"
        else:
            told = "something else makes most of it"
        sentence = (
            f"with the reference's tensor here the loss ({self.loss}) is off by {self.after:.1e}, now {self.before:.1e}: "
            f"{told}"
        )
        return {"sentence": sentence, "loss": self.loss, "before": self.before, "after": self.after}


def carried_to_loss(pairs: PairedStep, origin: Origin) -> Carried | None:
    """Return how much of the loss' error goes with a forward call's; None where the rest can't be made again."""
    pair = pairs.call(origin.call, origin.kind)
    orders = pair.matched if pair is not None else None
    ends = _losses(pairs)
    if orders is None or origin.phase != "forward" or ends is None or ends.target <= orders.target:
        return None
    try:
        return _carried(pairs, orders, ends)
    except (CannotReplay, NotKeptError):
        return None


def _carried(pairs: PairedStep, orders: MatchedOrders, losses: MatchedOrders) -> Carried | None:
    graph, reference = pairs.target, pairs.reference
    (made,), (wanted,) = graph.outputs(losses.target).values(), reference.outputs(losses.reference).values()
    theirs = reference.outputs(orders.reference)
    ours = graph.outputs(orders.target)
    if not ours or ours.keys() != theirs.keys():
        return None
    earlier = {number for number in graph.tensors if graph.producer.get(number, -1) <= orders.target}
    rest = upstream(graph, made, earlier | set(ours.values()), most=_MOST_CALLS)
    if rest.not_replayable or not set(rest.inputs) <= earlier | set(ours.values()):
        return None
    if not set(rest.inputs) & set(ours.values()):
        return None  # the loss does not come from it
    loss, goal = graph.data(made), reference.data(wanted)
    explained = _ROUNDOFFS * unit_roundoff(loss.dtype, goal.dtype)
    if relative_error(rest.run({}), loss) > explained:
        return None  # this machine does not make the rest of the pass as it was
    values = {number: reference.data(theirs[slot]).to(graph.data(number).dtype) for slot, number in ours.items()}
    return Carried(
        graph.calls[losses.target].name,
        relative_error(loss, goal),
        relative_error(rest.run(values), goal),
        explained,
    )


def _losses(pairs: PairedStep) -> MatchedOrders | None:
    """Return the calls that make the loss in both runs, where they are a pair."""
    for pair in reversed(pairs.calls):
        orders = pair.matched
        if orders is None or pair.phase != "forward" or pair.kind == "module":
            continue
        if makes_a_loss(pairs.target, orders.target) and makes_a_loss(pairs.reference, orders.reference):
            return orders
    return None


def makes_a_loss(graph: StepGraph, order: int) -> bool:
    """Tell whether a call makes a single number that a backward pass begins from."""
    outputs = list(graph.outputs(order).values())
    is_number = len(outputs) == 1 and not graph.tensors[outputs[0]].shape
    return is_number and any(call.is_gradient and call.forward == order for call in graph.calls.values())
