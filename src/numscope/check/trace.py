"""Follows non-finite values through the calls of a rank: who made them, who passed them on, and from what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from numscope.check.between import (
    around_step,
    blame,
    did_harm,
    has_wrong_gradients,
    inside_step,
    is_aside,
    left_by,
    skipped_stretches,
)
from numscope.check.steps import Call, Facts, Slot, Step
from numscope.nonfinite.rule import State, Value, is_workspace, judge


@dataclass(frozen=True)
class Found:
    """An origin in one rank, or what came in through a collective."""

    step: int
    rank: int
    call: Call
    slot: Slot
    kind: str
    reason: str
    phase: str
    stack: int  # of the call, or of its forward part where it has none
    finer: str = ""  # how to have the line inside the call, where the run does not have it
    stray: bool = False  # no recorded call made it: another rank may have, through something that was not recorded


@dataclass
class Spread:
    """What is known of one rank, step after step."""

    rank: int
    origins: list[Found] = field(default_factory=list)
    arrived: list[Found] = field(default_factory=list)  # through collectives, from other ranks
    given: set[tuple[int, str]] = field(default_factory=set)  # collectives to which this rank gave something wrong
    skipped: list[int] = field(default_factory=list)  # steps that a loss scaler skipped
    inherited: list[tuple[int, Call, int]] = field(default_factory=list)  # step, call, order of the call it has it from
    meant: int = 0  # tensors with infinities that somebody put there
    first_meant: str = ""  # and where the first of them shows
    facts: dict[int, dict[int, Facts]] = field(default_factory=dict)  # of the tensors of steps with an origin


class Tracer:
    """Judges the steps of one rank in their order."""

    def __init__(self, rank: int, world: int) -> None:
        self.found = Spread(rank)
        self._world = world
        self._poisoned = False  # something wrong may have come into the parameters

    def take(self, step: Step, left: Callable[[], bool] = lambda: False) -> None:
        """Judge a step; `left` tells whether no optimizer took its gradients."""
        self._states: dict[Any, State] = {}
        self._makers: dict[Any, int] = {}
        self._wrong_forward: set[int] = set()
        self._wrong_inside: dict[int, int] = {}  # call → the last call inside it that went wrong
        self._parents = {call.order: call.parent for call in step.calls}
        self._owners = {
            key: (call, slot)
            for call in step.calls
            if call.kind == "module"
            for slot in call.inputs
            if slot.name.startswith("parameters.")
            for key in (slot.tensor, slot.content)
            if key is not None
        }
        self._wrong_backward = -1
        self._constants: set[State] = set()  # made in this step: NaN, "constant"; +inf, "meant"
        self._step = step
        self._skips = skipped_stretches(step)
        if step.modules_only and has_wrong_gradients(step) and left():
            self._skips = [(0, step.calls[-1].last)]
        before = len(self.found.origins)
        self._added: list[Call] = []  # modules whose parameters' gradients are wrong; they are added up over the pass
        for call in step.calls:
            if call.kind == "optimizer":
                self._judge_added()
            if call.dirty and call.recompute:
                self._wrong_again(call)
            elif call.dirty:
                self._judge(call)
            elif call.kind == "collective":
                self._note_given(call)
        self._judge_added()
        if len(self.found.origins) > before:
            self.found.facts[step.step] = step.facts
        self._count_meant(step)
        self._poisoned = self._poisoned or len(self.found.origins) > before or bool(self.found.arrived)

    def _wrong_again(self, call: Call) -> None:
        """A checkpoint runs a call again: what comes back from there has it from the first time."""
        if any(c.name == call.name for c in self._step.calls if c.order in self._wrong_forward):
            self._wrong_forward.add(call.order)
            self._mark([slot for slot in call.outputs if not slot.counts.clean], "wrong", call.order)

    def _count_meant(self, step: Step) -> None:
        there: dict[Any, str] = {}
        for call in step.calls:
            for slot in (*call.inputs, *call.outputs):
                state = self._state_of(slot)
                if not slot.counts.clean and (state == "meant" or (state != "wrong" and not self.found.origins)):
                    there.setdefault(slot.key, f"{call.name}.{slot.name}")
        self.found.meant += len(there)
        self.found.first_meant = self.found.first_meant or next(iter(there.values()), "")

    def _judge(self, call: Call) -> None:
        if call.kind == "collective":
            self._collective(call)
        elif call.kind == "optimizer" or call.phase == "optimizer":
            self._optimizer(call)
        elif call.phase == "backward" and call.kind == "aten":
            self._operator_in_backward(call)
        elif call.phase == "backward":
            self._backward(call)
        elif call.kind == "data" or call.phase == "input":
            self._data(call)
        else:
            self._forward(call)

    def _forward(self, call: Call) -> None:
        new = [slot for slot in left_by(call) if self._state_of(slot) is None]
        inputs = [Value(slot.name, slot.counts, self._input_state(slot)) for slot in call.inputs]
        if not new:  # made by a call inside it, or only handed on
            if any(self._state_of(slot) == "wrong" for slot in call.outputs):
                self._wrong(call)
            return
        constants = call.constants() if self._step.has_arguments else None
        made = [Value(slot.name, slot.counts) for slot in new]
        result = judge(call.op, inputs, made, constants, aside=is_aside(self._step, call))
        if result.answer == "handed on":
            return  # the call that computes with it will tell
        if result.answer in ("meant", "ignored", "constant"):
            state: State = "constant" if result.answer == "constant" else "meant"
            self._mark(new, state, call.order)
            if state == "constant" or any(slot.counts.posinf for slot in new):
                self._constants.add(state)
            return
        given = [slot for slot in new if not is_workspace(call.op, slot.name)]
        if result.answer == "origin" and not did_harm(self._step, call, given):
            self._mark(new, "meant", call.order)
            return
        self._mark(new, "wrong", call.order)
        inside = self._wrong_inside.get(call.order)
        self._wrong(call)
        cause = next((s for s, v in zip(call.inputs, inputs) if v is result.cause), None)
        if result.answer == "inherited":
            self._inherit(call, cause, self._wrong_backward)
            return
        if inside is not None:  # what a call inside it has made
            self._inherit_from(call, inside)
            return
        if call.unmeasured and self._wrong_forward - {call.order}:
            self._inherit_from(call, max(self._wrong_forward - {call.order}))  # as far as can be known
            return
        if result.answer == "entered" and cause is not None:
            self._mark([cause], "wrong", call.order)
            owned = self._owners.get(cause.tensor) or self._owners.get(cause.content)
            if owned is not None or cause.name.startswith("parameters."):
                owner, slot = owned or (call, cause)
                what = f"the parameter {slot.name.partition('.')[2]} of {owner.module or owner.name}"
                reason = f"{what} holds {cause.counts} before anything computes with it"
                self._origin(owner, slot, "parameter", reason)
                return
            outer, first = blame(self._step, call)
            if outer is not None:
                reason = (
                    f"{outer.name} made {cause.counts} in code of its own, before it called {first.name} with it: "
                    "a run of level mix names the call"
                )
                self._origin(outer, cause, "module", reason, first)
            else:
                reason = f"{cause.name} of {call.name} holds {cause.counts} on entry, and no recorded call made it"
                self._origin(call, cause, "data", reason, stray=True)
            return
        assert result.output is not None
        shown = next(slot for slot in new if slot.name == result.output.slot)
        if result.cause is None and call.unmeasured:
            reason = f"{call.name} made {shown.counts}; its {call.unmeasured} was not measured"
        elif result.cause is None:
            reason = f"{call.name} turned finite inputs into {shown.counts}"
        elif result.cause.state == "constant":
            reason = f"a constant of NaN enters {call.name} as {result.cause.slot}, and the output has {shown.counts}"
        else:
            reason = f"{call.name} made {shown.counts} out of infinities: {result.cause.slot} has {result.cause.counts}"
        self._origin(call, shown, call.kind, reason)

    def _operator_in_backward(self, call: Call) -> None:
        """Judge an operator that an autograd node runs: it is given gradients and what the forward part has left."""
        first = call.forward if call.forward in self._wrong_forward else self._first_time(call)
        if first >= 0:
            self._mark([slot for slot in call.outputs if not slot.counts.clean], "wrong", call.order)
            self._wrong_forward.add(call.order)
            self._inherit_from(call, first)
        else:
            self._forward(call)
        if any(self._state_of(slot) == "wrong" for slot in call.outputs):
            self._wrong_backward = call.order

    def _first_time(self, call: Call) -> int:
        """Return the order of a wrong forward operator that a checkpoint runs again here, or -1."""
        told = self._told(call)
        wrong = [c for c in self._step.calls if c.order in self._wrong_forward and c.op == call.op and c is not call]
        return next((c.order for c in wrong if c.phase == "forward" and self._told(c) == told), -1)

    def _told(self, call: Call) -> list[Any]:
        facts = self._step.facts
        return [(slot.name, slot.counts, facts.get(slot.tensor)) for slot in call.inputs + call.outputs]

    def _judge_added(self) -> None:
        """Judge the gradients of parameters: a module that is called several times has them from all of its calls."""
        added, self._added = self._added, []
        for call in added:
            self._backward(call, parameters=True)

    def _backward(self, call: Call, parameters: bool = False) -> None:
        new = [
            slot
            for slot in call.outputs
            if not slot.counts.clean
            and self._state_of(slot) is None
            and slot.name.startswith("parameters_grad") == parameters
        ]
        if not parameters and any(slot.name.startswith("parameters_grad") for slot in call.outputs):
            self._added.append(call)
        if not new:
            return
        dirty = next((slot for slot in call.inputs if not slot.counts.clean), None)
        known = self._wrong_backward
        self._mark(new, "wrong", call.order)
        self._wrong_backward = call.order
        if call.forward in self._wrong_forward:
            self._inherit_from(call, call.forward)
        elif known > call.order or (
            parameters and known >= 0
        ):  # gradients went through it in two passes, or were added up
            self._inherit_from(call, known)
        elif self._wrong_forward and call.name.endswith(".forward"):  # it runs on the way back from what was wrong
            self._inherit_from(call, max(self._wrong_forward))
        elif dirty is not None and (known >= 0 or self._state_of(dirty) == "wrong" or self._wrong_forward):
            self._inherit(call, dirty, known if known >= 0 else max(self._wrong_forward, default=-1))
        elif dirty is not None:
            self._came_in(call, dirty)
        else:
            self._origin(call, new[0], call.kind, f"{call.name} turned finite gradients into {new[0].counts}")

    def _came_in(self, call: Call, gradient: Slot) -> None:
        """A gradient is wrong that no recorded call has made."""
        outer, first = blame(self._step, call)
        if outer is not None:
            reason = (
                f"{outer.name} made {gradient.counts} in code of its own, before the gradient came to {first.name}: "
                "a run of level mix names the call"
            )
            self._origin(outer, gradient, "module", reason, first)
            return
        where = "the loss, or code that follows it" if self._step.modules_only else "a sum that overflowed"
        reason = (
            f"the gradient that comes into {first.name} has {gradient.counts}, and no recorded call made it: "
            f"it comes from {where}, or it was given to backward"
        )
        self._origin(first, gradient, call.kind, reason, stray=True)

    def _optimizer(self, call: Call) -> None:
        bad = [slot for slot in call.outputs if not slot.counts.clean]
        inside = max((order for order in self._wrong_forward if call.order < order <= call.last), default=-1)
        self._mark(bad, "wrong", call.order)
        if inside >= 0:
            self._inherit_from(call, inside)
            return
        label = bad[0].name.partition(".")[2]
        own = [
            slot
            for slot in call.inputs
            if not slot.counts.clean and (slot.name.partition(".")[2] + ".").startswith(f"{label}.")
        ]
        if any(self._input_state(slot) == "wrong" for slot in own):
            self._inherit(call, own[0], self._wrong_backward)
        elif own:
            if own[0].name.startswith("parameters_grad") and self._world > 1:
                reason = f"the gradient of {label} came in with {own[0].counts}: this rank's own backward was finite"
                self.found.arrived.append(self._found(call, own[0], "collective", reason))
                return
            reason = f"{own[0].name} has {own[0].counts} before {call.name}, and no recorded call made it"
            self._origin(call, own[0], "optimizer", reason)
        else:
            reason = f"{call.name} turned finite parameters, gradients and state into {bad[0].counts} in {label}"
            reason += around_step(self._step, call, label)
            self._origin(call, bad[0], "optimizer", reason, finer=inside_step(self._step, call))

    def _collective(self, call: Call) -> None:
        self._note_given(call)
        bad = [slot for slot in call.outputs if not slot.counts.clean]
        dirty = [slot for slot in call.inputs if not slot.counts.clean]
        if dirty and all(self._input_state(slot) == "meant" for slot in dirty):
            self._mark(bad, "meant", call.order)
            return
        self._mark(bad, "wrong", call.order)
        self._wrong_backward = call.order
        if dirty:
            if self._input_state(dirty[0]) == "wrong" or self.found.origins:
                self._inherit(call, dirty[0])
            else:
                reason = f"{dirty[0].name} of {call.name} holds {dirty[0].counts}, and no recorded call made it"
                self._origin(call, dirty[0], "data", reason)
            return
        reason = f"{call.name} gave {bad[0].counts}, and this rank's own part was finite"
        self.found.arrived.append(self._found(call, bad[0], "collective", reason))

    def _note_given(self, call: Call) -> None:
        if any(not slot.counts.clean and self._input_state(slot) != "meant" for slot in call.inputs):
            self.found.given.add((self._step.step, call.name))

    def _data(self, call: Call) -> None:
        for slot in call.outputs:
            if slot.counts.clean or self._state_of(slot) == "meant":
                continue
            if self._state_of(slot) == "wrong":
                self._inherit(call, slot)
                continue
            if not slot.counts.nan and not slot.counts.posinf:
                self._mark([slot], "meant", call.order)
                continue
            self._mark([slot], "wrong", call.order)
            self._origin(call, slot, "data", f"the data that enters the model holds {slot.counts}")

    def _wrong(self, call: Call) -> None:
        """Remember that a forward call has something wrong, and that the calls around it have it from there."""
        self._wrong_forward.add(call.order)
        outer, seen = call.parent, {call.order}
        while outer >= 0 and outer not in seen:
            self._wrong_inside[outer] = call.order
            seen.add(outer)
            outer = self._parents.get(outer, -1)

    def _state_of(self, slot: Slot) -> State | None:
        return self._states.get(slot.tensor) or (self._states.get(slot.content) if slot.content else None)

    def _input_state(self, slot: Slot) -> State:
        known = self._state_of(slot)
        if known is not None:
            return known
        about = self._poisoned or self.found.origins or self._wrong_backward >= 0
        if about and (slot.counts.nan or slot.counts.posinf):
            return "wrong"  # a dump does not tell which tensor is which, a gradient is added to: it is about already
        if slot.tensor in self._step.parameters or slot.name.startswith("parameters."):
            return "parameter"
        # A tensor of constants that was written to through a view is a tensor of which nobody knows where it is from.
        kind: State = "constant" if slot.counts.nan else "meant"
        return kind if kind in self._constants else "unknown"

    def _mark(self, slots: list[Slot], state: State, order: int) -> None:
        for slot in slots:
            for key in (slot.tensor, slot.content):
                if key is not None:
                    self._states[key] = state
                    self._makers.setdefault(key, order)

    def _inherit(self, call: Call, cause: Slot | None, known: int = -1) -> None:
        maker = -1
        if cause is not None:
            maker = self._makers.get(cause.tensor, self._makers.get(cause.content, known))
        self._inherit_from(call, maker if maker >= 0 else known)

    def _inherit_from(self, call: Call, maker: int) -> None:
        self.found.inherited.append((self._step.step, call, maker))

    def _origin(
        self, call: Call, slot: Slot, kind: str, reason: str, seen_at: Call | None = None, stray: bool = False,
        finer: str = "",
    ) -> None:  # fmt: skip
        """Take an origin; `seen_at`: the call at whose line it showed; `finer`: how to learn more."""
        scaled = call.phase == "backward" or call.stack in self._step.scaling
        if scaled and any(first <= call.order <= last for first, last in self._skips):
            if self._step.step not in self.found.skipped:
                self.found.skipped.append(self._step.step)
            self._poisoned = False
            return
        self.found.origins.append(replace(self._found(call, slot, kind, reason, seen_at), stray=stray, finer=finer))

    def _found(self, call: Call, slot: Slot, kind: str, reason: str, seen_at: Call | None = None) -> Found:
        stack = self._stack_of(seen_at or call)
        return Found(self._step.step, self._step.rank, call, slot, kind, reason, call.phase, stack)

    def _stack_of(self, call: Call) -> int:
        """Return a call's stack; a backward call without one has its forward call's, found by link or by name."""
        if call.stack >= 0 or call.phase != "backward":
            return call.stack
        name = call.name.replace(".backward", ".forward")
        return next((c.stack for c in self._step.calls if c.order == call.forward or c.name == name), -1)
