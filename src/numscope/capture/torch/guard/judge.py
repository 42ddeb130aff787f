"""The guard's judge: who made it, who only passed it on, and what somebody meant; in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from numscope.capture.interned import Strings
from numscope.capture.sites import Sites
from numscope.capture.torch.guard.calls import Entry, Item, OpenCall, OpenModule, Seen
from numscope.capture.torch.guard.doubts import Doubt, Doubts
from numscope.capture.torch.guard.memory import Memory
from numscope.capture.torch.guard.strike import FINER, Strike, around, as_parameter, counts_of, describe, reason_of
from numscope.nonfinite.rule import Judgement, Value, judge

Tensor = torch.Tensor


class Judge(Memory):
    """Decides calls that have something non-finite; all others never come here."""

    def __init__(
        self, strings: Strings, sites: Sites, allow: Sequence[str], found: Callable[[Strike], None],
        reference: Callable[[int], Any] = lambda key: None,
    ) -> None:  # fmt: skip
        super().__init__(strings, allow, reference)
        self.step = 0
        self.rank = 0
        self.world = 1
        self.scaled = False  # a loss scale is in force: gradients may overflow, and the step is then skipped
        self.always_scaled = False  # the user scales the loss by hand
        self._scaling = False  # the loss is being scaled
        self.pending: list[Strike] = []
        self.inherited_ranks: list[str] = []  # collectives through which another rank's values came in
        self.sites = sites
        self._found = found
        self.doubts = Doubts()
        self.inside = False  # an optimizer of the user's own steps
        self.hint: tuple[str, int] | None = None  # the first origin inside it: its name, its site
        self._poisoned = False  # a parameter is wrong
        self._strikes = self._before_step = 0  # how many there were, in all and when an optimizer's step began
        self._struck = -1  # the step of the last one
        self.is_gradient: Callable[[int], bool] = lambda key: (
            False
        )  # tells whether a storage is a parameter's gradient's
        self._wrong_pass = False  # this backward pass has something non-finite already
        self._wrong_step = False  # a forward call of this step has: what comes back from there is no news
        self._made_on_the_way: set[int] = set()  # storages of gradients that calls in the user's own backward made

    def forward(self, seen: Seen, inputs: list[Item], outputs: list[Item], constants: list[float]) -> None:
        """Judge a forward call, an optimizer's step, or data that comes in."""
        made = [Value(item.slot, item.found()) for item in outputs]
        if all(value.counts.clean for value in made):
            if self.doubts:
                self.take(seen.op, (item.key for item in inputs))
            return
        name = self.strings[seen.name("forward")]
        values = [Value(item.slot, item.found(), self._state(item)) for item in inputs]
        if self.world > 1 and self._was_reduced(name, inputs, values):
            self._mark_all(outputs, "wrong")
            return
        result = judge(seen.op, values, made, constants, aside=seen.aside)
        if result.answer in ("origin", "entered") and self._is_allowed(name, seen):
            result = Judgement("meant", result.output, result.cause)
        if result.answer == "meant":
            for item, value in zip(inputs, values):
                if not value.counts.clean:
                    self._mark(item, "meant")
        if result.answer in ("meant", "constant"):
            self._mark_all(outputs, "meant" if result.answer == "meant" else "constant")
            return
        if result.answer in ("ignored", "handed on"):
            return
        taken: list[Item] = []  # what is in doubt already, and is in the result
        if result.answer == "inherited" and result.cause is not None and result.cause.state == "doubtful":
            taken = inputs
        elif result.answer == "origin" and self.doubts.inside(seen):
            taken = outputs  # a call inside it has made it
        if taken:
            struck = self.doubts.hand_on(seen, taken, outputs)
            if not struck:
                self._mark_all(outputs, "doubtful")
                return
            self._strike_late(struck)
        elif result.answer == "origin" and not seen.at_once and not any(value.counts.nan for value in made):
            assert result.output is not None
            self._mark_all(outputs, "doubtful")
            strike = describe(self, seen, "forward", result.output, reason_of(name, result), inputs, outputs)
            self.doubts.add(strike, outputs)
            return
        # What runs inside it was, or it is part of the way back from what was, or gives back gradients (autograd.grad).
        inside = seen.wrong or (seen.in_backward and self._wrong_step) or (seen.op == "grad" and self._wrong_pass)
        about = self._is_about()
        self._went_wrong(seen)
        self._mark_all(outputs, "wrong")
        if seen.in_backward:
            self._made_on_the_way.update(item.key for item in outputs)
        if result.answer == "inherited" or inside:
            return
        if self._poisoned and self.world > 1:
            return  # a module's shards are gathered for it and gone when it is done, some tensors can't be looked at
        for item, value in zip(inputs, values):
            if not value.counts.clean and value.state != "meant":
                self._mark(item, "wrong")
        cause = next((i for i, v in zip(inputs, values) if v is result.cause), None)
        if result.answer == "entered" and cause is not None:
            if not about:
                self._enter(seen, cause, inputs, outputs)
            return
        assert result.output is not None
        self._strike(seen, "forward", result.output, reason_of(name, result), inputs, outputs)

    def _was_reduced(self, name: str, inputs: list[Item], values: list[Value]) -> bool:
        """Tell whether a call takes a parameter's gradient in which no call of this rank has put what is wrong."""
        unknown = [i for i, v in zip(inputs, values) if v.state == "unknown" and not v.counts.clean]
        if not any(self.is_gradient(item.key) for item in unknown):
            return False
        if not (self._is_about() or self.scaled):  # the reduction brought it
            self.inherited_ranks.append(name)
        for item in unknown:
            self._mark(item, "wrong")
        return True

    def _is_about(self) -> bool:
        """Tell whether something wrong is known in this step: what is of unknown origin has it from there."""
        return self._wrong_step or self._wrong_pass or self._struck == self.step

    def take(self, op: str, keys: Iterable[int]) -> None:
        """A call with finite results took these storages: one that computes with what is doubted removes the doubt."""
        self._strike_late(self.doubts.take(op, keys))

    def end_model(self) -> None:
        """A root module has given back its result: what is doubted and still there counts."""
        if not self.doubts:
            return
        left, nothing = self.doubts.end()
        for doubt in nothing:
            for item in doubt.items:
                self._mark(item, "meant")
        self._strike_late(left)

    def _strike_late(self, doubts: list[Doubt]) -> None:
        for doubt in doubts:
            self._went_wrong(doubt.strike.seen)
            for item in doubt.items:
                self._mark(item, "wrong")
            self._found(doubt.strike)

    def _went_wrong(self, seen: Seen) -> None:
        """Remember that a forward call has something wrong, and that the calls around it have it from there."""
        seen.wrong = self._wrong_step = True
        outer = seen.parent
        if isinstance(outer, OpenCall) and outer.seen is seen:  # a module stands for where it runs, too
            outer = outer.outer
        while isinstance(outer, OpenCall) and not outer.seen.wrong:
            outer.seen.wrong = True
            outer = outer.outer

    def late(self, entry: Entry) -> None:
        """Judge a call whose flags have come."""
        inputs, outputs = entry.items("input"), entry.items("output")
        if entry.phase == "backward":
            self.backward(entry.seen, inputs, outputs)
        else:
            self.forward(entry.seen, inputs, outputs, list(entry.constants))

    def added_up(self, entry: Entry) -> None:
        """Judge a parameter's gradient: other passes, and other calls, may have added to it."""
        if self._wrong_pass or self._wrong_step:
            self._mark_all(entry.items("output"), "wrong")
        else:
            self.late(entry)

    def backward(self, seen: Seen, incoming: list[Item], outgoing: list[Item]) -> None:
        """Judge the gradients that came into a call and those that went out of it."""
        made = [Value(item.slot, item.found()) for item in outgoing]
        bad = next((value for value in made if not value.counts.clean), None)
        if bad is None and outgoing:
            return
        values = [Value(item.slot, item.found(), self._state(item)) for item in incoming]
        dirty = next((value for value in values if not value.counts.clean), None)
        if bad is None and dirty is None:
            return
        made_before = any(item.key in self._made_on_the_way for item in outgoing if not item.found().clean)
        self._mark_all(outgoing, "wrong")
        name = self.strings[seen.name("backward")]
        if seen.wrong or made_before or (self._poisoned and self.world > 1) or self._is_allowed(name, seen):
            self._wrong_pass = True
            return
        known, self._wrong_pass = self._wrong_pass, True
        if dirty is not None and (known or self._wrong_step or dirty.state == "wrong"):
            return  # a sum of gradients is a new tensor: that one of its parts was wrong is known from this very pass
        if dirty is not None:
            self._came_in(seen, dirty, incoming, outgoing)
            return
        assert bad is not None
        reason = f"{name} turned finite gradients into {bad.counts}"
        self._strike(seen, "backward", bad, reason, incoming, outgoing)

    def _came_in(self, seen: Seen, dirty: Value, incoming: list[Item], outgoing: list[Item]) -> None:
        """A gradient is wrong that no call has made."""
        outer = around(seen)
        while outer is not None and any(not counts_of(gradient).clean for gradient in outer.came):
            seen, outer = outer, around(outer)
        name = self.strings[seen.name("backward")]
        if outer is not None:
            place = self.strings[outer.name("backward")]
            reason = f"{place} made {dirty.counts} in code of its own, before the gradient came to {name}: {FINER}"
            self._strike(outer, "backward", dirty, reason, incoming, outgoing, site=seen.site)
            return
        where = "the loss, or code that follows it" if seen.kind == "module" else "a sum that overflowed"
        reason = (
            f"the gradient that comes into {name} has {dirty.counts}, and no call that is watched made it: "
            f"it comes from {where}, or it was given to backward"
        )
        self._strike(seen, "backward", dirty, reason, incoming, outgoing)

    def loss(self, seen: Seen, inputs: list[Item]) -> None:
        """Judge what a backward pass starts from, where calls outside modules are not watched."""
        for item in inputs:
            counts = item.found()
            if counts.clean or self._wrong_step or self._state(item) in ("wrong", "meant"):
                continue
            self._mark(item, "wrong")
            name = self.strings[seen.name("forward")]
            reason = f"the loss that {name} starts from holds {counts}, and no module made it: {FINER}"
            self._strike(seen, "forward", Value(item.slot, counts), reason, inputs, [], waits=True)
            self._wrong_step = True

    def new_pass(self) -> None:
        """A forward call runs: the next backward pass is another one."""
        self._wrong_pass = False
        self._made_on_the_way.clear()

    def begin_step(self, step: int) -> None:
        """What follows belongs to a step."""
        self.end_model()
        self._made_on_the_way.clear()
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
        known, self._wrong_pass = self._wrong_pass, True
        seen.wrong = True
        name = self.strings[seen.name("forward")]
        if not all(value.counts.clean for value in values):
            if not known and any(v.state == "unknown" and not v.counts.clean for v in values):
                cause = next(i for i, v in zip(inputs, values) if v.state == "unknown" and not v.counts.clean)
                self._enter(seen, cause, inputs, outputs)
            return
        if world > 1:
            self.inherited_ranks.append(name)
            return
        self._strike(seen, phase, bad, f"{name} turned finite values into {bad.counts}", inputs, outputs)

    def set_inside(self, inside: bool) -> None:
        """A step of the user's own optimizer begins or ends: a call inside it tells the line."""
        self.inside = inside
        if inside:
            self.hint = None

    def optimizer(
        self, seen: Seen, inputs: list[Item], outputs: list[Item], around: Any = lambda label: ([], [], "")
    ) -> None:
        """Judge an optimizer's step from parameters and gradients before it, and parameters after it.

        `around` gives what else is known of one parameter's step: tensors before and after, and a sentence.
        """
        values = [Value(item.slot, item.found(), self._state(item)) for item in inputs]
        made = [Value(item.slot, item.found()) for item in outputs]
        bad = next((value for value in made if not value.counts.clean), None)
        if bad is None:
            return
        self._poisoned = True
        label = bad.slot.partition(".")[2]
        own = [
            (i, v) for i, v in zip(inputs, values) if not v.counts.clean and v.slot.partition(".")[2].startswith(label)
        ]
        self._mark_all(outputs, "wrong")
        seen.wrong = True
        closure = self._strikes > self._before_step and self.hint is None  # what it calls has gone wrong
        if any(v.state == "wrong" for _, v in own) or (own and self._is_about()) or closure:
            return
        name = self.strings[seen.name("forward")]
        if self._is_allowed(name, seen):
            return
        if own:
            item, value = own[0]
            if self.world > 1 and item.slot.startswith("parameters_grad"):
                if not self._is_about():
                    self.inherited_ranks.append(name)  # this rank's own backward was finite: the reduction brought it
                return
            what = "the gradient" if item.slot.startswith("parameters_grad") else "the optimizer's state or parameter"
            reason = f"{what} of {label} has {value.counts} before {name}, and no call that is watched made it"
            self._strike(seen, "optimizer", value, reason, inputs, outputs)
            return
        given, left, sentence = around(label)
        before = {item.slot: item for item in given} | {i.slot: i for i in inputs if i.slot.endswith(f".{label}")}
        after = [*(item for item in outputs if item.slot == bad.slot), *left]  # of a whole model, only what went wrong
        hint = self.hint
        inside = f" ({hint[0]} inside it)" if hint else ""
        reason = f"{name}{inside} turned finite parameters, gradients and state into {bad.counts} in {label}{sentence}"
        if hint:
            seen.site = hint[1]
        self._strike(seen, "optimizer", bad, reason, list(before.values()), after)

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
        self._before_step = self._strikes
        if all(item.found().clean for item in given if item.slot.startswith("parameters_grad")):
            self.settle()
            return
        waiting, self.pending = self.pending, []
        for strike in waiting[:1]:
            self._found(strike)

    def _enter(self, seen: Seen, cause: Item, inputs: list[Item], outputs: list[Item]) -> None:
        """An input was non-finite before any call that is watched: a parameter, or data."""
        counts = cause.found()
        name = self.strings[seen.name("forward")]
        if self.inherited_ranks or (self._poisoned and self.world > 1):
            return  # what is wrong already comes back, not always by a way that is watched: shards are copied about
        if cause.parameter:
            reason = f"the parameter {cause.parameter} holds {counts} before anything computes with it"
            owner = seen.parent
            path, _, own = cause.parameter.rpartition(".")
            if isinstance(owner, OpenModule) and owner.path == path:
                value = Value(f"parameters.{own}", counts)
                inputs = [as_parameter(item, path) for item in inputs]
                self._strike(owner.seen, "forward", value, reason, inputs, outputs, kind="parameter")
                return
            self._strike(seen, "forward", Value(cause.slot, counts), reason, inputs, outputs, kind="parameter")
            return
        outer = around(seen)
        if outer is not None:
            place = self.strings[outer.name("forward")]
            reason = f"{place} made {counts} in code of its own, before it called {name} with it: {FINER}"
            value = Value(cause.slot, counts)
            self._strike(outer, "forward", value, reason, inputs, outputs, site=seen.site)
            return
        blank = self.marks.get(cause.key) == "blank"
        where = "it is memory that nothing was written to" if blank else "no call that is watched made it"
        reason = f"{cause.slot} of {name} holds {counts} on entry: {where}"
        self._strike(seen, "forward", Value(cause.slot, counts), reason, inputs, outputs, kind="data")

    def data(self, seen: Seen, outputs: list[Item]) -> None:
        """Judge what enters a root module."""
        for item in outputs:
            counts = item.found()
            if counts.clean or self.marks.get(item.key) in ("wrong", "meant"):
                continue
            if not counts.nan and not counts.posinf:
                self._mark(item, "meant")
                continue
            name = self.strings[seen.name("input")]
            if self._is_allowed(name, seen):
                self._mark(item, "meant")
                continue
            self._mark(item, "wrong")
            reason = f"the data that enters the model holds {counts}"
            self._strike(seen, "input", Value(item.slot, counts), reason, [], outputs, kind="data")

    def _strike(
        self, seen: Seen, phase: str, value: Value, reason: str, inputs: Sequence[Item], outputs: Sequence[Item],
        kind: str | None = None, site: int | None = None, waits: bool = False,
    ) -> None:  # fmt: skip
        """Tell of an origin, or let it wait where a loss scale may explain it, as `waits` says of some."""
        self._strikes += 1
        self._struck = self.step
        strike = describe(self, seen, phase, value, reason, inputs, outputs, kind, site)
        if self.scaled and (phase == "backward" or self._scaling or waits):
            self.pending.append(strike)
        else:
            self._found(strike)
