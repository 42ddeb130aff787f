"""Explains optimizer steps by a replay of each parameter, with its state rebuilt from the gradients of earlier steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.diagnose.explain.calls import explain_tensor
from numscope.diagnose.explain.explanation import Explanation, obstacle
from numscope.diagnose.hypotheses.scale_and_bias import factor
from numscope.diagnose.hypotheses.wording import spoken, value_words
from numscope.diagnose.recorded.differing_tensors import DifferingTensor
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.repairs.fitted import MOST_STEPS, held_in, refuted
from numscope.diagnose.replay.calls import operator_errors
from numscope.diagnose.replay.measures import relative_error, unit_roundoff
from numscope.store.reader import Run

Settings = Mapping[str, object]  # of a parameter group: lr, betas …
SettingsByGroup = dict[str, dict[str, object]]

_NO_CAUSE = {
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "initial_lr",
    "params",
    "decoupled_weight_decay",
    "parameters",
}  # settings that change how an optimizer computes, not its result
_MOST = 8  # parameters that are replayed
_SCALED = 4  # parameters to whose updates a factor is fitted
_SAME_FACTOR = 1e-3  # relative


@dataclass(frozen=True)
class StepSeen:
    """The inputs of one optimizer step for one parameter."""

    value: torch.Tensor
    gradient: torch.Tensor
    settings: Settings


History = tuple[StepSeen, ...]  # of one parameter: its steps up to the one in question


@dataclass(frozen=True)
class OptimizerStep:
    """One step of an optimizer in one run."""

    graph: StepGraph
    call: RecordedCall

    @property
    def groups(self) -> SettingsByGroup:
        """The settings of each parameter group."""
        kwargs = self.call.plain_arguments().kwargs
        return {group: dict(values) for group, values in kwargs.items() if isinstance(values, dict)}

    def output(self, parameter: str) -> torch.Tensor | None:
        """Return a parameter after the step, where its data was kept."""
        number = self.graph.outputs(self.call.order).get(f"output.{parameter}")
        return self.graph.data(number) if number is not None and self.graph.kept(number) else None

    def given(self, parameter: str) -> torch.Tensor | None:
        """Return a parameter before the step, where its data was kept."""
        number = self.graph.slots(self.call.order).get(f"parameters.{parameter}")
        return self.graph.data(number) if number is not None and self.graph.kept(number) else None

    def gradient(self, parameter: str) -> torch.Tensor | None:
        """Return the gradient of a parameter, where its data was kept."""
        number = self.graph.slots(self.call.order).get(f"parameters_grad.{parameter}")
        return self.graph.data(number) if number is not None and self.graph.kept(number) else None

    def update(self, parameter: str) -> torch.Tensor | None:
        """Return in float64 what the step added to a parameter, where its data was kept."""
        before, after = self.given(parameter), self.output(parameter)
        return after.double() - before.double() if before is not None and after is not None else None

    def history(self, parameter: str, group: str, fresh: bool = False) -> History:
        """Return the inputs that all steps up to this one had for a parameter; with `fresh` those of this step alone."""
        seen = []
        steps = [self.graph.step]
        if not fresh:
            steps = [step for step in self.graph.run.rank_steps(self.graph.rank) if step <= self.graph.step]
        for step in steps:
            here = self.graph if step == self.graph.step else _earlier(self.graph.run, step, self.graph.rank)
            if self.call.name not in here.by_name:
                continue
            made = OptimizerStep(here, here.by_name[self.call.name])
            slots = here.slots(made.call.order)
            value, gradient = slots.get(f"parameters.{parameter}"), slots.get(f"parameters_grad.{parameter}")
            if value is None or gradient is None:
                if step == self.graph.step:
                    raise CannotReplay(f"{parameter} has no gradient in step {step}")
                continue
            seen.append(StepSeen(here.data(value), here.data(gradient), made.groups.get(group, {})))
        if not seen:
            raise CannotReplay("no step of this optimizer was recorded")
        return tuple(seen)


_LAST_EARLIER: dict[tuple[str, int, int], StepGraph] = {}


def _earlier(run: Run, step: int, rank: int) -> StepGraph:
    key = (str(run.path), step, rank)
    if key not in _LAST_EARLIER:
        _LAST_EARLIER.clear()  # steps are asked for in order, and may be large: one is kept
        _LAST_EARLIER[key] = StepGraph(run, step, rank)
    return _LAST_EARLIER[key]


class FittedFactor(NamedTuple):
    """A factor that was fitted to the updates of one step."""

    factor: float

    @property
    def words(self) -> str:
        return f"a scale factor of {spoken(round(self.factor, 6))} on the update"


class Trials(NamedTuple):
    """The other steps in which a fitted factor holds, and the first that refutes it."""

    holds: tuple[int, ...]
    refutes: int | None = None


@dataclass(frozen=True)
class Change:
    """A setting that differs, and the target's settings with the reference's in its place."""

    words: str
    settings: SettingsByGroup
    optimizer: str  # class


class OptimizerStepPair:
    """The same step of an optimizer in target and reference."""

    def __init__(self, pairs: PairedStep, target: RecordedCall, reference: RecordedCall) -> None:
        self.pairs = pairs
        self.target = OptimizerStep(pairs.target, target)
        self.reference = OptimizerStep(pairs.reference, reference)

    def explain(self) -> Explanation:
        """Explain parameters that differ after the step: by settings, gradients, state, or another computation."""
        details: dict[str, object] = {}
        changes = self._changes()
        for change in changes:
            try:
                if self._fits(change):
                    sentence = f"equal to the reference with {change.words} in {self.target.call.name}"
                    return Explanation("semantic", sentence)
            except (CannotReplay, NotKeptError) as why:
                details = obstacle(why)
        if (gradient := self._differing_gradient()) is not None:
            try:
                found = explain_tensor(self.pairs, gradient)
            except (CannotReplay, NotKeptError) as why:
                return Explanation.could_not(why)
            if found.mechanism == "semantic" and found.repair:
                return found
            note = {"note": "the gradients that come in differ"}
            return Explanation("input", found.repair, details={**note, **found.details})
        if (other_history := self._other_history()) is not None:
            return other_history
        scaled = self._scaled()
        repair = f"equal to the reference with {scaled.words}" if scaled is not None else None
        if scaled is not None and repair is not None:
            here, found = self.pairs.target.step, Explanation("semantic", repair, details=details)
            there = self._tried(scaled)
            return (
                held_in(found, [here, *there.holds]) if there.refutes is None else refuted(found, here, there.refutes)
            )
        if len(changes) == 1:
            details["note"] = f"an argument differs, but could not be proven to be it: {changes[0].words}"
        if not changes and self._computes_otherwise():
            details["note"] = (
                "the same parameters and gradients in its first step: the optimizer computes something else"
            )
            return Explanation("semantic", details=details)
        return Explanation("semantic" if changes else "unknown", details=details)

    def _changes(self) -> list[Change]:
        """Return the settings that differ, one by one, then all together."""
        ours, theirs = self.target.groups, self.reference.groups
        here, there = self.target.call.op, self.reference.call.op
        found: list[Change] = []
        if here != there:
            found.append(Change(f"{there} in place of {here}{self._weight_decay_words()}", ours, there))
        everything = {group: dict(values) for group, values in ours.items()}
        for group, values in ours.items():
            for name, now in values.items():
                then = theirs.get(group, {}).get(name, now)
                if then == now or name in _NO_CAUSE:
                    continue
                edited = {key: dict(item) for key, item in ours.items()}
                edited[group][name] = everything[group][name] = then
                where = f" of parameter group {group}" if len(ours) > 1 else ""
                found.append(Change(f"{name}={value_words(then)}{where} (now {value_words(now)})", edited, here))
        if len(found) > 1:
            found.append(Change(", ".join(change.words for change in found), everything, there))
        return found

    def _weight_decay_words(self) -> str:
        """Return in words how the two optimizers treat weight decay, where that is known."""
        decays = (values["weight_decay"] for values in self.target.groups.values() if values.get("weight_decay"))
        decay = next((value_words(value) for value in decays), "")
        if (self.target.call.op, self.reference.call.op) == ("Adam", "AdamW"):
            return f": decoupled weight decay {decay} (now it is added to the gradient)"
        if (self.target.call.op, self.reference.call.op) == ("AdamW", "Adam"):
            return f": weight decay {decay} added to the gradient (now decoupled from it)"
        return ""

    def _fits(self, change: Change) -> bool:
        """Tell whether a change gives the reference's parameters.

        It is applied to the target's inputs, in this step or in all steps. The last attempt applies it to the
        reference's inputs, because rounding may have set the inputs of the two runs apart.
        """
        parameters = self._parameters()
        if not parameters:
            raise NotKeptError("no parameter's data was kept")
        return (
            self._gives(change, parameters, self.target, throughout=False)
            or self._gives(change, parameters, self.target, throughout=True)
            or self._gives(change, parameters, self.reference, throughout=True)
        )

    def _gives(self, change: Change, parameters: list[str], seen_by: OptimizerStep, throughout: bool) -> bool:
        moved = 0
        for parameter in parameters:
            group = self._group_of(parameter)
            history = seen_by.history(parameter, group)
            wanted = self.reference.output(parameter)
            if wanted is None:
                continue
            now = self.target.groups[group]
            differing = {key: value for key, value in change.settings[group].items() if value != now.get(key)}
            before = [replace(s, settings={**s.settings, **differing}) if throughout else s for s in history[:-1]]
            last = replace(history[-1], settings=change.settings[group])
            made = simulate(_class(change.optimizer), (*before, last))
            floor = 8 * unit_roundoff(wanted.dtype)
            if relative_error(made, wanted) > floor:
                return False
            ours = self.target.output(parameter)
            if seen_by is self.reference:
                unchanged = tuple(replace(seen, settings=now) for seen in history)
                ours = simulate(_class(self.target.call.op), unchanged)
            moved += ours is not None and relative_error(ours, wanted) > (floor if seen_by is self.reference else 0)
        return moved > 0

    def _parameters(self) -> list[str]:
        """Return some parameters, those that differ most first."""
        found: list[tuple[float, str]] = []
        for slot in self.target.graph.outputs(self.target.call.order):
            parameter = slot.removeprefix("output.")
            ours, theirs = self.target.output(parameter), self.reference.output(parameter)
            if ours is not None and theirs is not None:
                found.append((-relative_error(ours, theirs), parameter))
        names = [parameter for _, parameter in sorted(found)]
        # A repair must leave those that agree as they are.
        return names[:_MOST] + names[_MOST:][-2:]

    def _group_of(self, parameter: str) -> str:
        """Return the group of a parameter: the one whose settings give the recorded parameter, in both runs."""
        groups = [group for group in self.target.groups if group in self.reference.groups]
        if len(groups) == 1:
            return groups[0]
        errors = dict.fromkeys(groups, 0.0)
        for side in (self.target, self.reference):
            wanted = side.output(parameter)
            if wanted is None:
                raise NotKeptError(f"the parameter {parameter} was not kept")
            for group in groups:
                made = simulate(_class(side.call.op), side.history(parameter, group))
                errors[group] += relative_error(made, wanted)
        return min(errors, key=lambda group: errors[group])

    def _differing_gradient(self) -> DifferingTensor | None:
        theirs = self.pairs.reference.slots(self.reference.call.order, "parameters_grad")
        for slot, number in self.pairs.target.slots(self.target.call.order, "parameters_grad").items():
            partner = theirs.get(slot)
            if number is not None and partner is not None and not self.pairs.same(number, partner):
                return DifferingTensor(slot, number, partner)
        return None

    def _other_history(self) -> Explanation | None:
        """Explain a step that starts from a fresh optimizer state in one run, and from earlier steps in the other."""
        try:
            for parameter in self._parameters()[:1]:
                optimizer = _class(self.target.call.op)
                ours, theirs = self.target.output(parameter), self.reference.output(parameter)
                if ours is None or theirs is None:
                    return None
                floor = 8 * unit_roundoff(ours.dtype)
                group = self._group_of(parameter)
                with_history = simulate(optimizer, self.target.history(parameter, group))
                alone = simulate(optimizer, self.target.history(parameter, group, fresh=True))
                if relative_error(alone, ours) <= floor and relative_error(with_history, theirs) <= floor:
                    return Explanation(
                        "input",
                        "equal to the reference with the optimizer's state of the steps before (now it starts fresh)",
                    )
                if relative_error(alone, theirs) <= floor and relative_error(with_history, ours) <= floor:
                    return Explanation(
                        "input", "equal to the reference with a fresh optimizer state (now it has a history)"
                    )
        except (CannotReplay, NotKeptError):
            return None
        return None

    def _scaled(self) -> FittedFactor | None:
        """Return the factor between the two sides' updates, where one factor fits all parameters."""
        factors = []
        for parameter in self._parameters()[:_SCALED]:
            a, b = self.target.update(parameter), self.reference.update(parameter)
            before = self.target.given(parameter)
            if a is None or b is None or before is None:
                return None
            found = factor(a, b)
            if found is None or not float(b.norm()):
                return None
            rounding = 4 * unit_roundoff(before.dtype) * float(before.double().norm()) / float(b.norm())
            if relative_error(a * found, b) > max(1e-4, rounding):
                return None
            factors.append(found)
        if not factors or max(factors) - min(factors) > _SAME_FACTOR * abs(factors[0]) or abs(factors[0] - 1) < 1e-6:
            return None
        return FittedFactor(factors[0])

    def _tried(self, fitted: FittedFactor) -> Trials:
        """Try a factor in the other steps of both runs: the updates there must have the same."""
        ours, theirs = self.pairs.target, self.pairs.reference
        common = [step for step in ours.run.rank_steps(ours.rank) if step in theirs.run.rank_steps(theirs.rank)]
        nearest = sorted((step for step in common if step != ours.step), key=lambda step: abs(step - ours.step))
        holds = []
        for step in sorted(nearest[:MOST_STEPS]):
            graphs = (_earlier(ours.run, step, ours.rank), _earlier(theirs.run, step, theirs.rank))
            names = (self.target.call.name, self.reference.call.name)
            if not all(name in graph.by_name for graph, name in zip(graphs, names)):
                continue
            mine, other = (OptimizerStep(graph, graph.by_name[name]) for graph, name in zip(graphs, names))
            for parameter in self._parameters()[:_SCALED]:
                a, b = mine.update(parameter), other.update(parameter)
                if a is None or b is None:
                    break
                best = factor(a, b)
                if best is None or not float(b.norm()):
                    break
                # The two runs have parted: the best factor there is known to what it leaves unexplained, and to what the
                # gradients differ by; an optimizer that remembers them has that of two steps.
                parted = 2 * _apart(mine.gradient(parameter), other.gradient(parameter))
                if abs(best - fitted.factor) > max(_SAME_FACTOR, relative_error(a * best, b), parted) * abs(best):
                    return Trials((), step)
            else:
                holds.append(step)
        return Trials(tuple(holds))

    def _computes_otherwise(self) -> bool:
        """Tell whether the first step of an optimizer differs by far more than rounding on the same inputs."""
        first = min(self.pairs.target.run.rank_steps(self.pairs.target.rank), default=0)
        if first != 0 or self.pairs.target.step != 0:
            return False  # the optimizer has a state that was not recorded
        theirs = self.pairs.reference.slots(self.reference.call.order, "parameters")
        for slot, number in self.pairs.target.slots(self.target.call.order, "parameters").items():
            partner = theirs.get(slot)
            if number is None or partner is None or not self.pairs.same(number, partner):
                return False
        for parameter in self._parameters()[:1]:
            a, b = self.target.output(parameter), self.reference.output(parameter)
            return a is not None and b is not None and relative_error(a, b) > 100 * unit_roundoff(a.dtype, b.dtype)
        return False


def explain(pairs: PairedStep, origin: Origin) -> Explanation | None:
    """Explain an optimizer step whose parameters differ after it."""
    pair = pairs.call(origin.call, origin.kind)
    orders = pair.matched if pair is not None else None
    if orders is None:
        return None
    target, reference = pairs.target.calls[orders.target], pairs.reference.calls[orders.reference]
    return OptimizerStepPair(pairs, target, reference).explain()


def _apart(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Return how far two gradients are apart; 1 where one was not kept."""
    return 1.0 if one is None or other is None else relative_error(one, other)


def _class(name: str) -> type[torch.optim.Optimizer]:
    found = getattr(torch.optim, name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise CannotReplay(f"{name} is no optimizer of torch's own: its code is not in the run")
    return found


def simulate(kind: type[torch.optim.Optimizer], history: History) -> torch.Tensor:
    """Run an optimizer over the inputs of its steps for one parameter, and return the parameter after the last step."""
    accepted = set(inspect.signature(kind).parameters)
    first = {key: _plain(value) for key, value in history[0].settings.items() if key in accepted - _NO_CAUSE}
    parameter = torch.nn.Parameter(history[0].value.clone())
    if "foreach" in accepted:
        first["foreach"] = False
    make: Callable[..., torch.optim.Optimizer] = kind
    with operator_errors():
        optimizer = make([parameter], **first)
    (group,) = optimizer.param_groups
    for seen in history:
        with torch.no_grad():
            parameter.copy_(seen.value)
        parameter.grad = seen.gradient.clone()
        group.update({key: _plain(v) for key, v in seen.settings.items() if key in group and key not in _NO_CAUSE})
        with operator_errors():
            optimizer.step()
    return parameter.detach()


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
