"""Feeds the calls of a stored rank to the tracker of non-finite values, and answers what the tracker asks from tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from numscope.check.harmless import did_harm, gradients_flow
from numscope.check.loss_scaling import Stretch, has_wrong_gradients, skipped_stretches
from numscope.check.steps import StoredCall, StoredStep, StoredTensor, TensorFacts
from numscope.core.names import label_of
from numscope.core.report import Origin, Source
from numscope.core.words import OriginKind, Phase
from numscope.nonfinite.rule import State, is_mask, is_workspace
from numscope.nonfinite.tracker import (
    RECORDED_RUN,
    Adapter,
    FoundOrigin,
    OwnCode,
    ParameterOwner,
    StepDetails,
    TrackedCall,
    Tracker,
)

RunOrigin = FoundOrigin[StoredCall, StoredTensor]


class Inherited(NamedTuple):
    """A call that only passed a non-finite value on."""

    step: int
    call: StoredCall
    maker: int  # the order of the call from which it inherits, or -1


class GivenToRanks(NamedTuple):
    """A collective to which a rank gave a wrong tensor."""

    step: int
    call: str


@dataclass
class RankOutcome:
    """Origins of one rank, and the other facts that its calls show."""

    rank: int
    origins: list[RunOrigin] = field(default_factory=list)
    arrived: list[RunOrigin] = field(default_factory=list)  # through collectives, from other ranks
    given: set[GivenToRanks] = field(default_factory=set)
    skipped: list[int] = field(default_factory=list)  # steps that a loss scaler skipped
    inherited: list[Inherited] = field(default_factory=list)
    meant: int = 0  # tensors with infinities put there on purpose
    first_meant: str = ""  # the place of the first of them
    facts: dict[int, dict[int, TensorFacts]] = field(default_factory=dict)  # of the tensors of steps with an origin


class RankTracking(Adapter[StoredCall, StoredTensor]):
    """Judges the steps of one rank in their order."""

    def __init__(self, rank: int, world: int, source: Callable[[int], Source | None] = lambda stack: None) -> None:
        self.outcome = RankOutcome(rank)
        self._tracker = Tracker(self, RECORDED_RUN, world)
        self._source = source  # gives the line of a stack

    def take(self, step: StoredStep, gradients_were_left: Callable[[], bool] = lambda: False) -> None:
        """Judge a step."""
        self._step = step
        self.modules_only = step.modules_only
        self._states: dict[Hashable, State] = {}
        self._makers: dict[Hashable, int] = {}  # the first call that showed a tensor
        self._owners = {
            key: ParameterOwner[StoredCall, StoredTensor](call, tensor.slot, _parameter_name(call, tensor), ())
            for call in step.calls
            if call.kind == "module"
            for tensor in call.inputs
            if tensor.slot.startswith("parameters.")
            for key in (tensor.tensor, tensor.content)
            if key is not None
        }
        self._skipped_stretches = skipped_stretches(step)
        if step.modules_only and has_wrong_gradients(step) and gradients_were_left():
            self._skipped_stretches = [Stretch(0, step.calls[-1].last)]
        before = len(self.outcome.origins)
        self._tracker.begin_step(step.step)
        added_up: list[
            StoredCall
        ] = []  # modules whose parameters' gradients were wrong; they are added up over the pass
        for call in step.calls:
            if call.kind == "optimizer":
                self._judge_added_up(added_up)
            if not call.nonfinite:
                if call.kind == "collective":
                    self._note_given(call)
            elif call.recompute:
                self._take_recomputation(call)
            else:
                self._judge(call, added_up)
        self._judge_added_up(added_up)
        if len(self.outcome.origins) > before:
            self.outcome.facts[step.step] = step.facts
        self._count_meant(step)

    def _judge(self, call: StoredCall, added_up: list[StoredCall]) -> None:
        if call.kind == "collective":
            self._note_given(call)
            self._tracker.collective(call, call.phase, call.inputs, call.outputs)
        elif call.kind == "optimizer" or call.phase == "optimizer":
            self._tracker.stepping(call.inputs)
            self._tracker.optimizer(call, call.inputs, call.outputs, lambda label: self._details(call, label))
        elif call.phase == "backward" and call.kind == "aten":
            self._judge_operator_in_backward(call)
        elif call.phase == "backward":
            made = self._new(call)
            if any(tensor.is_gradient for tensor in call.outputs):
                added_up.append(call)
                made = [tensor for tensor in made if not tensor.is_gradient]
            if made:
                self._tracker.backward(call, call.inputs, made, runs_forward=call.name.endswith(".forward"))
        elif call.kind == "data" or call.phase == "input":
            self._tracker.data(call, call.outputs)
        else:
            self._judge_forward(call)

    def _judge_forward(self, call: StoredCall) -> None:
        kept = {f"output.{t.slot}" for t in call.inputs if t.slot.startswith("buffers.") and not t.counts.clean}
        made = [tensor for tensor in self._new(call) if tensor.slot not in kept]
        if made:
            constants = call.constants() if self._step.has_arguments else None
            self._tracker.forward(call, call.inputs, made, constants)
        elif any(self.state(tensor) == "wrong" for tensor in call.outputs):
            self._tracker.shows_again(call)  # made by an inner call, or only passed on

    def _judge_operator_in_backward(self, call: StoredCall) -> None:
        """Judge an operator that an autograd node runs: its inputs are gradients and tensors that the forward part saved."""
        first = self._wrong_call(self.forward_part(call)) or self._first_execution(call)
        if first is not None:
            self._tracker.runs_again(call, call.outputs)
            self.inherits_from(call, first)
        else:
            self._judge_forward(call)
        if any(self.state(tensor) == "wrong" for tensor in call.outputs):
            self._tracker.wrong_backward = call

    def _judge_added_up(self, calls: list[StoredCall]) -> None:
        """Judge the gradients of parameters, which add up over all calls of a module."""
        for call in calls:
            made = [tensor for tensor in self._new(call) if tensor.is_gradient]
            if made:
                again = call.name.endswith(".forward")
                self._tracker.backward(call, call.inputs, made, runs_forward=again, added_up=True)
        calls.clear()

    def _take_recomputation(self, call: StoredCall) -> None:
        """Take a call that a checkpoint runs again: its results inherit from the first execution."""
        if any(other.name == call.name and other.wrong is other for other in self._step.calls):
            self._tracker.runs_again(call, call.outputs)

    def _first_execution(self, call: StoredCall) -> StoredCall | None:
        """Return a wrong forward operator that a checkpoint runs again here."""
        shown = self._shown(call)
        return next(
            (
                other
                for other in self._step.calls
                if other.wrong is other and other is not call and other.op == call.op and other.phase == "forward"
                if self._shown(other) == shown
            ),
            None,
        )

    def _shown(self, call: StoredCall) -> list[tuple[object, ...]]:
        facts = self._step.facts
        return [(tensor.slot, tensor.counts, facts.get(tensor.tensor)) for tensor in call.inputs + call.outputs]

    def _wrong_call(self, call: StoredCall | None) -> StoredCall | None:
        return call if call is not None and call.wrong is call else None

    def _new(self, call: StoredCall) -> list[StoredTensor]:
        """Return a call's non-finite results that no call has shown before."""
        return [tensor for tensor in call.nonfinite if self.state(tensor) is None]

    def _note_given(self, call: StoredCall) -> None:
        if any(not tensor.counts.clean and self._tracker.state(tensor) != "meant" for tensor in call.inputs):
            self.outcome.given.add(GivenToRanks(self._step.step, call.name))

    def _count_meant(self, step: StoredStep) -> None:
        there: dict[Hashable, str] = {}
        for call in step.calls:
            for tensor in (*call.inputs, *call.outputs):
                state = self.state(tensor)
                if not tensor.counts.clean and (state == "meant" or (state != "wrong" and not self.outcome.origins)):
                    there.setdefault(tensor.key, f"{call.name}.{tensor.slot}")
        self.outcome.meant += len(there)
        self.outcome.first_meant = self.outcome.first_meant or next(iter(there.values()), "")

    # Answers to the tracker ---------------------------------------------------------------------------------------------

    def name(self, call: StoredCall, phase: str) -> str:
        """Return a call's name, which says its phase."""
        return call.name

    def key(self, tensor: StoredTensor) -> Hashable:
        """Return the key of a tensor's content."""
        return tensor.key

    def state(self, tensor: StoredTensor) -> State | None:
        """Return the state that a tensor, or one with the same content, was marked with in this step."""
        return self._states.get(tensor.tensor) or (self._states.get(tensor.content) if tensor.content else None)

    def mark(self, tensor: StoredTensor, state: State, call: StoredCall) -> None:
        """Remember a tensor's state, and the first call that showed it."""
        for key in (tensor.tensor, tensor.content):
            if key is not None:
                self._states[key] = state
                self._makers.setdefault(key, call.order)

    def is_parameter(self, tensor: StoredTensor) -> bool:
        """Tell whether a tensor is a parameter of a module."""
        return tensor.tensor in self._step.parameters or tensor.slot.startswith("parameters.")

    def enclosing(self, call: StoredCall) -> Iterable[StoredCall]:
        """Return the calls that a call runs inside."""
        seen = {call.order}
        outer = self._step.by_order.get(call.parent)
        while outer is not None and outer.order not in seen:
            yield outer
            seen.add(outer.order)
            outer = self._step.by_order.get(outer.parent)

    def outlook(self, call: StoredCall, made: Sequence[StoredTensor]) -> State:
        """Tell what became of a call's non-finite results, which the rest of the step shows."""
        given_away = [tensor for tensor in made if not is_workspace(call.op, tensor.slot)]
        return "wrong" if did_harm(self._step, call, given_away) else "meant"

    def forward_part(self, call: StoredCall) -> StoredCall | None:
        """Return the forward part that a call is linked to."""
        return self._step.by_order.get(call.forward)

    def is_aside(self, call: StoredCall) -> bool:
        """Tell whether a call is outside all modules, with no gradient flowing through its results."""
        return call.parent < 0 and not gradients_flow(self._step, call)

    def owner(
        self, call: StoredCall, tensor: StoredTensor, inputs: Sequence[StoredTensor]
    ) -> ParameterOwner[StoredCall, StoredTensor] | None:
        """Return the module whose parameter a tensor is."""
        owner = self._owners.get(tensor.tensor) or self._owners.get(tensor.content)
        if owner is None and tensor.slot.startswith("parameters."):
            return ParameterOwner(call, tensor.slot, _parameter_name(call, tensor), inputs)
        return owner

    def own_code(self, call: StoredCall, phase: str) -> OwnCode[StoredCall]:
        """Return the module whose own code called a module with a wrong input, and the outermost module so called.

        Only where calls between modules were not recorded; for a backward part it is the backward part of the
        module around it, because gradients pass through its code.
        """
        if not self.modules_only or call.kind != "module":
            return OwnCode(None, call)
        outer = self._outer(call)
        while outer is not None and any(_is_wrong(tensor, outer.phase) for tensor in outer.inputs):
            call, outer = outer, self._outer(outer)
        return OwnCode(outer, call)

    def _outer(self, call: StoredCall) -> StoredCall | None:
        first = self.forward_part(call) if call.phase == "backward" else None
        if first is None:
            return self._step.by_order.get(call.parent)
        return next(
            (other for other in self._step.calls if other.phase == "backward" and other.forward == first.parent >= 0),
            None,
        )

    def wrong_inside(self, optimizer: StoredCall) -> StoredCall | None:
        """Return the last call inside an optimizer's step that went wrong."""
        inside = [c for c in self._step.calls if c.wrong is c and optimizer.order < c.order <= optimizer.last]
        return max(inside, key=lambda call: call.order, default=None)

    def is_skipped(self, origin: RunOrigin) -> bool:
        """Tell whether a loss scaler skipped the step of an origin, and note the step."""
        call = origin.call
        scaled = call.phase == "backward" or call.stack in self._step.scaling
        if not scaled or not any(item.first <= call.order <= item.last for item in self._skipped_stretches):
            return False
        if self._step.step not in self.outcome.skipped:
            self.outcome.skipped.append(self._step.step)
        return True

    def describe(self, origin: RunOrigin) -> None:
        """Write an origin's report."""
        call, counts = origin.call, origin.counts
        kind = "data" if origin.kind == "save" else origin.kind
        origin.report = Origin(
            call=call.name,
            kind=cast(OriginKind, kind),
            phase=cast(Phase, call.phase),
            step=origin.step,
            rank=self._step.rank,
            reason=origin.reason,
            module=call.module,
            source=self._source(self._stack_of(origin.shown_at)),
            mechanism="input" if origin.kind == "data" else "parameter" if origin.kind == "parameter" else "unknown",
            details={
                "slot": origin.slot,
                "nan": counts.nan,
                "posinf": counts.posinf,
                "neginf": counts.neginf,
                "elements": counts.elements,
                **({"finer": origin.finer} if origin.finer else {}),
            },
        )

    def found(self, origin: RunOrigin) -> None:
        """Keep an origin."""
        self.outcome.origins.append(origin)

    def arrived(self, origin: RunOrigin) -> None:
        """Keep an origin that came in from another rank."""
        self.outcome.arrived.append(origin)

    def inherits(self, call: StoredCall, cause: StoredTensor | None, otherwise: TrackedCall | None) -> None:
        """Note the call that showed an input first."""
        known = otherwise.order if otherwise is not None else -1
        maker = -1 if cause is None else self._makers.get(cause.tensor, self._makers.get(cause.content, known))
        self.outcome.inherited.append(Inherited(self._step.step, call, maker if maker >= 0 else known))

    def inherits_from(self, call: StoredCall, maker: TrackedCall | None) -> None:
        """Note the call from which a call inherits."""
        order = maker.order if maker is not None else -1
        self.outcome.inherited.append(Inherited(self._step.step, call, order))

    def _stack_of(self, call: StoredCall) -> int:
        """Return a call's stack; a backward call without one has its forward call's, found by link or by name."""
        if call.stack >= 0 or call.phase != "backward":
            return call.stack
        name = call.name.replace(".backward", ".forward")
        return next((c.stack for c in self._step.calls if c.order == call.forward or c.name == name), -1)

    def _details(self, optimizer: StoredCall, label: str) -> StepDetails[StoredTensor]:
        """Return the facts of one parameter's step: its gradient's and state's size, the settings, how to learn more."""
        told = []
        for tensor in optimizer.inputs:
            group, _, name = tensor.slot.partition(".")
            if group not in ("parameters_grad", "state") or (name != label and not name.startswith(f"{label}.")):
                continue
            facts = self._step.facts.get(tensor.tensor)
            if facts is None or facts.low is None or facts.high is None or not math.isfinite(facts.high - facts.low):
                continue
            what = "its gradient" if group == "parameters_grad" else name.rpartition(".")[2]
            largest = max(abs(facts.low), abs(facts.high))
            told.append(f"{what} is 0" if largest == 0 else f"{what} is {largest:.3g} at most")
        settings = json.loads(optimizer.arguments or "{}").get("kwargs", {})
        if len(settings) == 1 and isinstance(group := next(iter(settings.values())), dict):
            told += [f"{key}={group[key]:g}" for key in ("lr", "eps") if isinstance(group.get(key), (int, float))]
        finer = (
            f"what {optimizer.op or 'it'} runs inside its step is not in a run of this level: a run of --level aten names the "
            "operator, and numscope run --guard the line, where the optimizer is your own"
        )
        has_operators = any(call.kind == "aten" for call in self._step.calls)
        return StepDetails(f": {', '.join(told)}" if told else "", "" if has_operators else finer)


def _parameter_name(owner: StoredCall, tensor: StoredTensor) -> str:
    return f"{label_of(tensor.slot)} of {owner.module or owner.name}"


def _is_wrong(tensor: StoredTensor, phase: str) -> bool:
    return not (tensor.counts.clean or (phase != "backward" and is_mask(tensor.counts)))
