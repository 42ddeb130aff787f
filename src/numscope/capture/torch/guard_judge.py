"""The guard's judge: who made it, who only passed it on, and what somebody meant; in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from numscope.capture.recorder import Strings
from numscope.capture.scope import Call, Scope
from numscope.capture.sites import Sites
from numscope.capture.torch.flags import count
from numscope.capture.torch.guard_calls import Entry, Item, Marks, OpenModule, Seen, key_of, resolve
from numscope.core.nonfinite import Counts, Judgement, Value, judge
from numscope.core.report import Origin, Source

Tensor = torch.Tensor


class Strike:
    """An origin, with the call and the tensors that show it."""

    __slots__ = ("inputs", "origin", "outputs", "phase", "seen")

    def __init__(self, origin: Origin, seen: Seen, phase: str, inputs: Sequence[Item], outputs: Sequence[Item]) -> None:
        self.origin = origin
        self.seen = seen
        self.phase = phase
        self.inputs = inputs
        self.outputs = outputs


class Judge:
    """Decides calls that have something non-finite; all others never come here."""

    def __init__(
        self, strings: Strings, sites: Sites, allow: Sequence[str], found: Callable[[Strike], None],
        reference: Callable[[int], Any] = lambda key: None,
    ) -> None:  # fmt: skip
        self.marks = Marks()
        self.step = 0
        self.rank = 0
        self.world = 1
        self.scaled = False  # a loss scale is in force: gradients may overflow, and the step is then skipped
        self.always_scaled = False  # the user scales the loss by hand
        self._scaling = False  # the loss is being scaled
        self.pending: list[Strike] = []
        self.inherited_ranks: list[str] = []  # collectives through which another rank's values came in
        self._strings = strings
        self._sites = sites
        self._allow = Scope(allow) if allow else None
        self._found = found
        self._reference = reference  # gives a weak reference to a storage whose tensor is gone
        self.inside = False  # an optimizer of the user's own steps
        self.hint: tuple[str, int] | None = None  # the first origin inside it: its name, its site
        self._wrong_pass = False  # this backward pass has something non-finite already
        self._wrong_step = False  # a forward call of this step has: what comes back from there is no news

    def forward(self, seen: Seen, inputs: list[Item], outputs: list[Item], constants: list[float]) -> None:
        """Judge a forward call, an optimizer's step, or data that comes in."""
        made = [Value(item.slot, item.found()) for item in outputs]
        if all(value.counts.clean for value in made):
            return
        name = self._strings[seen.name("forward")]
        values = [Value(item.slot, item.found(), self._state(item)) for item in inputs]
        result = judge(seen.op, values, made, constants)
        if result.answer in ("origin", "entered") and self._is_allowed(name, seen):
            result = Judgement("meant", result.output, result.cause)
        if result.answer == "meant":
            for item, value in zip(inputs, values):
                if not value.counts.clean:
                    self._mark(item, "meant")
        if result.answer in ("meant", "constant"):
            self._mark_all(outputs, "meant" if result.answer == "meant" else "constant")
            return
        if result.answer == "ignored":
            return
        inside = seen.wrong  # what runs inside it was
        self._went_wrong(seen)
        self._mark_all(outputs, "wrong")
        if result.answer == "inherited" or inside:
            return
        for item, value in zip(inputs, values):
            if not value.counts.clean and value.state != "meant":
                self._mark(item, "wrong")
        cause = next((i for i, v in zip(inputs, values) if v is result.cause), None)
        if result.answer == "entered" and cause is not None:
            self._enter(seen, cause, inputs, outputs)
            return
        assert result.output is not None
        self._strike(seen, "forward", result.output, _reason(name, result), inputs, outputs, values)

    def _went_wrong(self, seen: Seen) -> None:
        """Remember that a forward call has something wrong, and that the modules around it have it from there."""
        seen.wrong = self._wrong_step = True
        outer = seen.parent
        if isinstance(outer, OpenModule) and outer.seen is seen:  # a module stands for where it runs, too
            outer = outer.outer
        while isinstance(outer, OpenModule) and not outer.seen.wrong:
            outer.seen.wrong = True
            outer = outer.outer

    def late(self, entry: Entry) -> None:
        """Judge a call whose flags have come."""
        inputs, outputs = entry.items("input"), entry.items("output")
        if entry.phase == "backward":
            self.backward(entry.seen, inputs, outputs)
        else:
            self.forward(entry.seen, inputs, outputs, list(entry.constants))

    def backward(self, seen: Seen, incoming: list[Item], outgoing: list[Item]) -> None:
        """Judge the gradients that came into a call and those that went out of it."""
        made = [Value(item.slot, item.found()) for item in outgoing]
        bad = next((value for value in made if not value.counts.clean), None)
        if bad is None:
            return
        values = [Value(item.slot, item.found(), self._state(item)) for item in incoming]
        dirty = next((value for value in values if not value.counts.clean), None)
        self._mark_all(outgoing, "wrong")
        name = self._strings[seen.name("backward")]
        if seen.wrong or self._is_allowed(name, seen):
            self._wrong_pass = True
            return
        known, self._wrong_pass = self._wrong_pass, True
        if dirty is not None and (known or self._wrong_step or dirty.state == "wrong"):
            return  # a sum of gradients is a new tensor: that one of its parts was wrong is known from this very pass
        if dirty is not None:
            reason = (
                f"the gradient that comes into {name} has {dirty.counts}, and no call that is watched made it: "
                "it is a sum that overflowed, or it was given to backward"
            )
            self._strike(seen, "backward", dirty, reason, incoming, outgoing, values)
            return
        reason = f"{name} turned finite gradients into {bad.counts}"
        self._strike(seen, "backward", bad, reason, incoming, outgoing, values)

    def new_pass(self) -> None:
        """A forward call runs: the next backward pass is another one."""
        self._wrong_pass = False

    def begin_step(self, step: int) -> None:
        """What follows belongs to a step."""
        self.step = step
        self._wrong_pass = self._wrong_step = False

    def collective(self, seen: Seen, phase: str, inputs: list[Item], outputs: list[Item], world: int) -> None:
        """Judge a collective: what this rank did not give, another one did."""
        values = [Value(item.slot, item.found(), self._state(item)) for item in inputs]
        made = [Value(item.slot, item.found()) for item in outputs]
        bad = next((value for value in made if not value.counts.clean), None)
        if bad is None:
            return
        if all(self._state(item) == "meant" for item, v in zip(inputs, values) if not v.counts.clean) and not all(
            v.counts.clean for v in values
        ):
            self._mark_all(outputs, "meant")
            return
        self._mark_all(outputs, "wrong")
        self._wrong_pass = True
        seen.wrong = True
        name = self._strings[seen.name("forward")]
        if not all(value.counts.clean for value in values):
            if any(v.state == "unknown" and not v.counts.clean for v in values):
                cause = next(i for i, v in zip(inputs, values) if v.state == "unknown" and not v.counts.clean)
                self._enter(seen, cause, inputs, outputs)
            return
        if world > 1:
            self.inherited_ranks.append(name)
            return
        self._strike(seen, phase, bad, f"{name} turned finite values into {bad.counts}", inputs, outputs, values)

    def set_inside(self, inside: bool) -> None:
        """A step of the user's own optimizer begins or ends: a call inside it tells the line."""
        self.inside = inside
        if inside:
            self.hint = None

    def optimizer(self, seen: Seen, inputs: list[Item], outputs: list[Item]) -> None:
        """Judge an optimizer's step from parameters, gradients and state before it, and parameters after it."""
        values = [Value(item.slot, item.found(), self._state(item)) for item in inputs]
        made = [Value(item.slot, item.found()) for item in outputs]
        bad = next((value for value in made if not value.counts.clean), None)
        if bad is None:
            return
        label = bad.slot.partition(".")[2]
        own = [
            (i, v) for i, v in zip(inputs, values) if not v.counts.clean and v.slot.partition(".")[2].startswith(label)
        ]
        self._mark_all(outputs, "wrong")
        seen.wrong = True
        if any(v.state == "wrong" for _, v in own) or (own and self._wrong_step):
            return
        name = self._strings[seen.name("forward")]
        if self._is_allowed(name, seen):
            return
        if own:
            item, value = own[0]
            if self.world > 1 and item.slot.startswith("parameters_grad"):
                self.inherited_ranks.append(name)  # this rank's own backward was finite: the reduction brought it
                return
            what = "the gradient" if item.slot.startswith("parameters_grad") else "the optimizer's state or parameter"
            reason = f"{what} of {label} has {value.counts} before {name}, and no call that is watched made it"
            self._strike(seen, "optimizer", value, reason, inputs, outputs, values)
            return
        hint = self.hint
        inside = f" ({hint[0]} inside it)" if hint else ""
        reason = f"{name}{inside} turned finite parameters, gradients and state into {bad.counts} in {label}"
        if hint:
            seen.site = hint[1]
        self._strike(seen, "optimizer", bad, reason, inputs, outputs, values)

    def item(self, slot: str, tensor: Tensor, parameter: str = "", clean: bool = False) -> Item:
        """Return a tensor of the CPU in a slot; `clean`: it is known to be, or to have been, finite."""
        counts = Counts(elements=tensor.numel()) if clean else count(tensor)
        return Item(slot, key_of(tensor), counts, None, parameter, tensor)

    def set_scaled(self, scaled: bool, scaling: bool) -> None:
        """A loss scale is in force from here on."""
        self.scaled = scaled
        self._scaling = scaling

    def settle(self) -> None:
        """A step with a loss scale was skipped, or its gradients were no concern: what waited is dropped."""
        self.pending.clear()
        self.scaled, self._scaling = self.always_scaled, False

    def stepping(self, given: list[Item]) -> None:
        """An optimizer steps: what waited counts if the step takes it."""
        if all(item.found().clean for item in given if item.slot.startswith("parameters_grad")):
            self.settle()
            return
        waiting, self.pending = self.pending, []
        for strike in waiting[:1]:
            self._found(strike)

    def _state(self, item: Item) -> Any:
        known = item.look.state if item.look is not None else None
        return known or self.marks.get(item.key) or ("parameter" if item.parameter else "unknown")

    def _mark(self, item: Item, state: Any) -> None:
        if item.look is not None:
            item.look.state = state
        tensor = resolve(item.tensor)
        if tensor is None and item.look is not None:
            self.marks.adopt(item.key, state, self._reference(item.key))
        else:
            self.marks.set(tensor, item.key, state)

    def _mark_all(self, items: list[Item], state: Any) -> None:
        for item in items:
            if not item.found().clean:
                self._mark(item, state)

    def _is_allowed(self, name: str, seen: Seen) -> bool:
        if self._allow is None:
            return False
        parent = seen.parent
        path, kind = (self._strings[parent.module], self._strings[parent.module_class]) if parent else ("", "")
        return self._allow(Call(name, path, kind, seen.kind, seen.phase))

    def _enter(self, seen: Seen, cause: Item, inputs: list[Item], outputs: list[Item]) -> None:
        """An input was non-finite before any call that is watched: a parameter, or data."""
        counts = cause.found()
        name = self._strings[seen.name("forward")]
        if cause.parameter:
            reason = f"the parameter {cause.parameter} holds {counts} before anything computes with it"
            owner = seen.parent
            path, _, own = cause.parameter.rpartition(".")
            if isinstance(owner, OpenModule) and owner.path == path:
                holder = owner.seen
                value = Value(f"parameters.{own}", counts)
                self._strike(holder, "forward", value, reason, inputs, outputs, [], kind="parameter")
                return
            self._strike(seen, "forward", Value(cause.slot, counts), reason, inputs, outputs, [], kind="parameter")
            return
        blank = self.marks.get(cause.key) == "blank"
        where = "it is memory that nothing was written to" if blank else "no call that is watched made it"
        reason = f"{cause.slot} of {name} holds {counts} on entry: {where}"
        self._strike(seen, "forward", Value(cause.slot, counts), reason, inputs, outputs, [], kind="data")

    def data(self, seen: Seen, outputs: list[Item]) -> None:
        """Judge what enters a root module."""
        for item in outputs:
            counts = item.found()
            if counts.clean or self.marks.get(item.key) in ("wrong", "meant"):
                continue
            if not counts.nan and not counts.posinf:
                self._mark(item, "meant")
                continue
            name = self._strings[seen.name("input")]
            if self._is_allowed(name, seen):
                self._mark(item, "meant")
                continue
            self._mark(item, "wrong")
            reason = f"the data that enters the model holds {counts}"
            self._strike(seen, "input", Value(item.slot, counts), reason, [], outputs, [], kind="data")

    def _strike(
        self, seen: Seen, phase: str, value: Value, reason: str, inputs: Sequence[Item], outputs: Sequence[Item],
        values: Sequence[Value], kind: str | None = None,
    ) -> None:  # fmt: skip
        counts = value.counts
        frame = self._sites.source(seen.site)
        parent = seen.parent
        tensor = next((resolve(item.tensor) for item in [*outputs, *inputs] if item.slot == value.slot), None)
        origin = Origin(
            call=self._strings[seen.name(phase if phase in ("backward", "input") else "forward")],
            kind=kind or seen.kind,  # type: ignore[arg-type]
            phase=phase,  # type: ignore[arg-type]
            step=self.step,
            rank=self.rank,
            reason=reason,
            module=self._strings[parent.module] if parent is not None else "",
            source=Source(**frame) if frame else None,
            mechanism="input" if kind == "data" else "parameter" if kind == "parameter" else "unknown",
            details={
                "slot": value.slot,
                "nan": counts.nan,
                "posinf": counts.posinf,
                "neginf": counts.neginf,
                "elements": counts.elements,
                **(
                    {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
                    if tensor is not None
                    else {}
                ),
                "inputs": {item.slot: str(item.found()) for item in inputs if not item.found().clean},
            },
        )
        strike = Strike(origin, seen, phase, inputs, outputs)
        if self.scaled and (phase == "backward" or self._scaling):
            self.pending.append(strike)
        else:
            self._found(strike)


def _reason(name: str, result: Judgement) -> str:
    assert result.output is not None
    counts, cause = result.output.counts, result.cause
    if cause is None:
        return f"{name} turned finite inputs into {counts}"
    if cause.state == "constant":
        return f"a constant of NaN enters {name} as {cause.slot}, and the output has {counts}"
    return f"{name} made {counts} out of infinities: {cause.slot} has {cause.counts}"
