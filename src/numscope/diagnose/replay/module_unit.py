"""A module replayed as a unit: built again from the run and the job's own code, and called with its recorded inputs.

The recorded calls inside it are not needed, so a run of modules alone can be replayed, and code between the calls that
is not torch's. The two sides' modules get the same inputs and parameters and are lifted as a group of calls is. A unit
is believed only where it gives its own recorded output; else the reason is said and the recorded calls are replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from numscope.diagnose.intervene.run_elsewhere import Moving, OnCpu, map_leaves
from numscope.diagnose.recorded.evidence import Place
from numscope.diagnose.recorded.invocation import CannotReplay, Given, arguments_of
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import Call, NotKept, Record
from numscope.diagnose.replay.calls import _flatten, quiet
from numscope.diagnose.replay.calls import lift as lifted
from numscope.diagnose.replay.lift import Lift, lift
from numscope.diagnose.replay.measures import unit_roundoff
from numscope.diagnose.replay.rebuilt_module import Plan, lost, state_numbers

Values = Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Unit:
    """One call of a module, forward or backward, that can be made again; it looks like a group of calls."""

    record: Record
    calls: tuple[Call, ...]  # the module's call alone
    output: int
    plan: Plan
    state: Mapping[tuple[str, str], int]  # parameters and buffers by path and name
    autocast: torch.dtype | None = None  # under which the module ran

    @property
    def call(self) -> Call:
        """The module's call."""
        return self.calls[0]

    @property
    def forward(self) -> Call:
        """The forward call: itself, or that of a backward call."""
        return self.record.calls[self.call.forward] if self.call.forward is not None else self.call

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the tensors that go in, parameters included."""
        given = [*self.record.slots(self.forward.order, "input", "kwargs").values(), *self.state.values()]
        if self.call.is_gradient:
            given += self.record.slots(self.call.order, "input").values()
        return tuple(dict.fromkeys(number for number in given if number is not None))

    def named_inputs(self) -> Iterator[tuple[object, int]]:
        """Yield the inputs by what they are for the module, so that two units' inputs can be paired."""
        yield from ((key, number) for key, number in self.state.items())
        for order in {self.forward.order, self.call.order}:
            for slot, number in self.record.slots(order, "input", "kwargs").items():
                if number is not None:
                    yield (order == self.forward.order, slot), number

    def run(self, values: Values | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Call the module again and return the output in question."""
        found = self.outputs(values or {}, dtype)
        if self.output not in found:
            raise CannotReplay(f"{self.call.name} gives no such output when it is called again")
        return lifted(found[self.output].detach(), dtype)

    def outputs(self, values: Values, dtype: torch.dtype | None) -> dict[int, torch.Tensor]:
        """Return all outputs of the call by number."""
        leaves: dict[int, torch.Tensor] = {}

        def fetch(number: int) -> torch.Tensor:
            if number not in leaves:
                value = values[number] if number in values else self.record.data(number)
                value = lifted(value, dtype).detach().clone()
                wanted = self.call.is_gradient and (value.is_floating_point() or value.is_complex())
                leaves[number] = value.requires_grad_() if wanted else value
            return leaves[number]

        args, kwargs = self.arguments(fetch)
        module = self.module(lambda number: fetch(number).detach().clone())
        with torch.set_grad_enabled(self.call.is_gradient), _quiet_failure(self), self.device(dtype):
            result = module(*args, **kwargs)
        if self.call.is_gradient:
            return self._gradients(result, leaves, module, fetch)
        flat: dict[str, torch.Tensor] = {}
        _flatten("output", result, flat, top=True)
        flat |= {f"output.buffers.{name}": value for name, value in module._buffers.items() if value is not None}
        return {number: flat[slot] for slot, number in self.record.outputs(self.call.order).items() if slot in flat}

    def arguments(self, fetch: Any) -> tuple[Any, Any]:
        """Return the recorded arguments with tensors in their places."""

        def fill(leaf: Any) -> Any:
            return fetch(leaf.number) if isinstance(leaf, Given) else leaf

        args, kwargs = arguments_of(self.record, self.forward)
        return map_leaves(args, fill), map_leaves(kwargs, fill)

    def module(self, fetch: Any) -> torch.nn.Module:
        """Return the module, built again."""
        made: dict[int, torch.Tensor] = {}

        def tensor(path: str, name: str) -> torch.Tensor:
            number = self.state.get((path, name))
            if number is None:
                raise CannotReplay(f"{path}.{name} was not recorded: its module is never called itself")
            if number not in made:
                made[number] = fetch(number)
            return made[number]

        return self.plan.build(self.forward.module, tensor)

    @contextmanager
    def device(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Run on the CPU, under the autocast that the module ran under, or in a dtype."""
        autocast = self.autocast if dtype is None else None
        cast = torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None)
        with cast, quiet(), OnCpu(Moving(dtype)):
            yield

    def incoming(self, result: Any, fetch: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the outputs of a call that gradients came into, and those gradients."""
        flat: dict[str, torch.Tensor] = {}
        _flatten("output", result, flat, top=True)
        outputs, gradients = [], []
        for slot, number in self.record.slots(self.call.order, "input").items():
            made = flat.get("output" + slot.removeprefix("input"))
            if number is not None and made is not None and made.requires_grad:
                outputs.append(made)
                gradients.append(fetch(number).detach().to(made.dtype))
        if not outputs:
            raise CannotReplay("no gradient that comes in was recorded")
        return outputs, gradients

    def _gradients(
        self, result: Any, leaves: dict[int, torch.Tensor], module: torch.nn.Module, fetch: Any
    ) -> dict[int, torch.Tensor]:
        """Send the recorded gradients through the module and return those that come out, by number."""
        outputs, incoming = self.incoming(result, fetch)
        forward = {s: n for s, n in self.record.slots(self.forward.order, "input", "kwargs").items() if n is not None}
        wanted: dict[int, torch.Tensor] = {}
        for slot, number in self.record.slots(self.call.order, "output", "parameters_grad").items():
            group, _, tail = slot.partition(".")
            if number is None:
                continue
            given = forward.get(tail if tail.startswith("kwargs.") else f"input.{tail}")
            leaf = module._parameters.get(tail) if group == "parameters_grad" else leaves.get(given or -1)
            if leaf is not None and leaf.requires_grad:
                wanted[number] = leaf
        got = torch.autograd.grad(outputs, list(wanted.values()), incoming, allow_unused=True)
        return {number: gradient for number, gradient in zip(wanted, got) if gradient is not None}


@contextmanager
def _quiet_failure(unit: Unit) -> Iterator[None]:
    """Say what a module's own code raised as a reason, with the attributes that could not be recorded."""
    try:
        yield
    except (CannotReplay, NotKept):
        raise
    except Exception as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        for path in unit.plan.tree(unit.forward.module):
            for name, kind in lost(unit.plan.modules[path]).items():
                if f"'{name}'" in text:
                    text = f"its attribute {name} is a {kind}, which can't be recorded"
        raise CannotReplay(f"calling it again raised {type(error).__name__}: {text}") from error


def unit_of(record: Record, order: int, output: int) -> Unit:
    """Return a module's call as a unit that gives its recorded output again, or raise CannotReplay."""
    call = record.calls[order]
    if call.kind != "module" or call.error is not None:
        raise CannotReplay("it is no module's call")
    plan = Plan(record.run, record.rank)
    forward = record.calls.get(call.forward) if call.is_gradient and call.forward is not None else call
    if forward is None or (call.is_gradient and call.forward is None):
        raise CannotReplay("its forward call is not in this step")
    state = state_numbers(record, list(plan.tree(forward.module)), forward.order)
    unit = Unit(record, (call,), output, plan, state)
    narrow = {record.tensors[n].dtype for n in record.outputs(forward.order).values()} & {"bfloat16", "float16"}
    casts = [None, *(getattr(torch, name) for name in narrow)]
    if not record.kept(output):
        raise NotKept(f"the data of {record.name_of(output)} was not kept")
    error: float | None = None
    for autocast in casts:
        unit = Unit(record, (call,), output, plan, state, autocast)
        error = _distance(unit)
        if error == 0.0:
            return unit
    if record.tensors[output].device not in ("", "cpu"):
        return Unit(record, (call,), output, plan, state)  # the device computes otherwise: that may be the fault itself
    if error is not None and error <= 64 * unit_roundoff(record.data(output).dtype):
        return unit  # other threads, or another machine
    raise CannotReplay(
        f"built again from {plan.how(forward.module).partition(' from ')[2] or 'the run'}, {call.name} does not give "
        f"its recorded output (off by {error:.1e}): it draws numbers, has state of its own, or its code has changed"
    )


def _distance(unit: Unit) -> float:
    from numscope.diagnose.replay.measures import relative

    return relative(unit.run(), unit.record.data(unit.output))


@dataclass(frozen=True)
class UnitFigures:
    """The lift test of two modules as units."""

    target: Unit
    reference: Unit
    shared: Values
    reference_values: Values
    lift: Lift
    unlike: tuple[str, ...]  # inputs that the two sides don't share
    how: str  # in words, where the classes come from


def figures(pairs: Pairing, target_order: int, reference_order: int, place: Place) -> UnitFigures:
    """Lift a module's two calls as units, on the same inputs and parameters, or raise CannotReplay."""
    target = unit_of(pairs.target, target_order, place.target)
    reference = unit_of(pairs.reference, reference_order, place.reference)
    theirs = dict(reference.named_inputs())
    shared: dict[int, torch.Tensor] = {}
    values: dict[int, torch.Tensor] = {}
    unlike = []
    for key, number in target.named_inputs():
        partner = theirs.get(key)
        if partner is None:
            continue
        a, b = pairs.target.data(number), pairs.reference.data(partner)
        if a.shape != b.shape or not pairs.same(number, partner):
            unlike.append(pairs.target.name_of(number))
        if a.shape != b.shape:
            continue
        narrow = a if unit_roundoff(a.dtype) > unit_roundoff(b.dtype) else b
        shared[number], values[partner] = narrow.to(a.dtype), narrow.to(b.dtype)
    found = lift(target, reference, shared, values)
    how = ", ".join(
        dict.fromkeys((target.plan.how(target.forward.module), reference.plan.how(reference.forward.module)))
    )
    return UnitFigures(target, reference, shared, values, found, tuple(unlike), how)
