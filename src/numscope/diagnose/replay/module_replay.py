"""Replays a whole module: builds it from the run and the job's own code, and calls it with its recorded inputs.

This does not need the recorded calls inside, so it also works for a run of modules alone, and for code between the calls
that is not torch's. Both sides' modules get the same inputs and parameters, and are lift-tested like a subgraph of calls.
A replay is used only if it gives the module's recorded output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from numscope.core.errors import NotKeptError
from numscope.diagnose.intervene.run_on_cpu import CpuCopies, CpuMode
from numscope.diagnose.pytree import tree_map
from numscope.diagnose.recorded.differing_tensors import DifferingTensor
from numscope.diagnose.recorded.invocation import CannotReplay, TensorRef, arguments_of
from numscope.diagnose.recorded.paired_step import MatchedOrders, PairedStep
from numscope.diagnose.recorded.shared_inputs import narrower
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.replay.calls import (
    Fetch,
    Values,
    cast_floating,
    first_line,
    flatten_outputs,
    forward_slot,
    quiet,
)
from numscope.diagnose.replay.lift import Lift, lift
from numscope.diagnose.replay.measures import relative_error, unit_roundoff
from numscope.diagnose.replay.rebuilt_module import RecordedModules, StateName, lost_attributes, state_numbers


class InputName(NamedTuple):
    """The name of a tensor that goes into a module's call."""

    is_forward: bool  # False for an incoming gradient of the backward call
    slot: str


@dataclass(frozen=True)
class ModuleReplay:
    """One call of a module, forward or backward, that can be made again; a `Replayable` as a subgraph is."""

    graph: StepGraph
    calls: tuple[RecordedCall, ...]  # the module's call alone
    output: int
    modules: RecordedModules
    state: Mapping[StateName, int]  # parameters and buffers
    autocast: torch.dtype | None = None  # the dtype of the autocast that the module ran under

    @property
    def call(self) -> RecordedCall:
        """The module's call."""
        (call,) = self.calls
        return call

    @property
    def forward(self) -> RecordedCall:
        """The forward call: the call itself, or the forward call of a backward call."""
        return self.graph.calls[self.call.forward] if self.call.forward is not None else self.call

    @property
    def inputs(self) -> tuple[int, ...]:
        """The numbers of the tensors that go in, parameters included."""
        given = [*self.graph.slots(self.forward.order, "input", "kwargs").values(), *self.state.values()]
        if self.call.is_gradient:
            given += self.graph.slots(self.call.order, "input").values()
        return tuple(dict.fromkeys(number for number in given if number is not None))

    def named_inputs(self) -> Iterator[tuple[StateName | InputName, int]]:
        """Yield the inputs by name, so that the inputs of two replays can be paired."""
        yield from self.state.items()
        for order in {self.forward.order, self.call.order}:
            for slot, number in self.graph.slots(order, "input", "kwargs").items():
                if number is not None:
                    yield InputName(order == self.forward.order, slot), number

    def run(self, values: Values | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Call the module again and return `output`."""
        found = self.outputs(values or {}, dtype)
        if self.output not in found:
            raise CannotReplay(f"{self.call.name} gives no such output when it is called again")
        return cast_floating(found[self.output].detach(), dtype)

    def outputs(self, values: Values, dtype: torch.dtype | None) -> dict[int, torch.Tensor]:
        """Call the module again and return all outputs by number."""
        leaves: dict[int, torch.Tensor] = {}

        def fetch(number: int) -> torch.Tensor:
            if number not in leaves:
                value = values[number] if number in values else self.graph.data(number)
                value = cast_floating(value, dtype).detach().clone()
                wanted = self.call.is_gradient and (value.is_floating_point() or value.is_complex())
                leaves[number] = value.requires_grad_() if wanted else value
            return leaves[number]

        args, kwargs = self.arguments(fetch)
        module = self.module(lambda number: fetch(number).detach().clone())
        with torch.set_grad_enabled(self.call.is_gradient), self.module_errors(), self.on_cpu(dtype):
            result = module(*args, **kwargs)
        if self.call.is_gradient:
            return self._gradients(result, leaves, module, fetch)
        flat = flatten_outputs(result)
        flat |= {f"output.buffers.{name}": value for name, value in module._buffers.items() if value is not None}
        return {number: flat[slot] for slot, number in self.graph.outputs(self.call.order).items() if slot in flat}

    def arguments(self, fetch: Fetch) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the recorded positional and named arguments, with their tensors from `fetch`."""

        def fill(leaf: object) -> object:
            return fetch(leaf.number) if isinstance(leaf, TensorRef) else leaf

        args, kwargs = arguments_of(self.graph, self.forward)
        return tree_map(args, fill), tree_map(kwargs, fill)

    def module(self, fetch: Fetch) -> torch.nn.Module:
        """Return the module, built again."""
        made: dict[int, torch.Tensor] = {}

        def tensor(path: str, name: str) -> torch.Tensor:
            number = self.state.get(StateName(path, name))
            if number is None:
                raise CannotReplay(f"{path}.{name} was not recorded: its module is never called itself")
            if number not in made:
                made[number] = fetch(number)
            return made[number]

        return self.modules.build(self.forward.module, tensor)

    @contextmanager
    def on_cpu(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Run on the CPU: in a dtype, or under the autocast that the module ran under."""
        autocast = self.autocast if dtype is None else None
        cast = torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None)
        with cast, quiet(), CpuMode(CpuCopies(dtype)):
            yield

    @contextmanager
    def module_errors(self) -> Iterator[None]:
        """Turn any error of the module's code into CannotReplay, which names an attribute that was not recorded."""
        try:
            yield
        except (CannotReplay, NotKeptError):
            raise
        except Exception as error:
            text = first_line(error)
            if isinstance(error, AttributeError):
                for path in self.modules.tree(self.forward.module):
                    kind = lost_attributes(self.modules.modules[path]).get(error.name or "")
                    if kind is not None:
                        text = f"its attribute {error.name} is a {kind}, which can't be recorded"
            raise CannotReplay(f"calling it again raised {type(error).__name__}: {text}") from error

    def incoming(self, result: object, fetch: Fetch) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the outputs that have an incoming gradient, and those gradients."""
        flat = flatten_outputs(result)
        outputs, gradients = [], []
        for slot, number in self.graph.slots(self.call.order, "input").items():
            made = flat.get("output" + slot.removeprefix("input"))
            if number is not None and made is not None and made.requires_grad:
                outputs.append(made)
                gradients.append(fetch(number).detach().to(made.dtype))
        if not outputs:
            raise CannotReplay("no gradient that comes in was recorded")
        return outputs, gradients

    def _gradients(
        self, result: object, leaves: Mapping[int, torch.Tensor], module: torch.nn.Module, fetch: Fetch
    ) -> dict[int, torch.Tensor]:
        """Send the recorded gradients through the module and return those that come out, by number."""
        outputs, incoming = self.incoming(result, fetch)
        forward = {s: n for s, n in self.graph.slots(self.forward.order, "input", "kwargs").items() if n is not None}
        wanted: dict[int, torch.Tensor] = {}
        for slot, number in self.graph.slots(self.call.order, "output", "parameters_grad").items():
            group, _, name = slot.partition(".")
            if number is None:
                continue
            leaf = (
                module._parameters.get(name)
                if group == "parameters_grad"
                else leaves.get(forward.get(forward_slot(slot), -1))
            )
            if leaf is not None and leaf.requires_grad:
                wanted[number] = leaf
        with self.module_errors():
            got = torch.autograd.grad(outputs, list(wanted.values()), incoming, allow_unused=True)
        return {number: gradient for number, gradient in zip(wanted, got) if gradient is not None}


def module_replay(graph: StepGraph, order: int, output: int) -> ModuleReplay:
    """Return a replay of a module's call that gives the recorded output, or raise CannotReplay."""
    call = graph.calls[order]
    if call.kind != "module" or call.error is not None:
        raise CannotReplay("it is no module's call")
    modules = RecordedModules(graph.run, graph.rank)
    forward = graph.calls.get(call.forward) if call.is_gradient and call.forward is not None else call
    if forward is None or (call.is_gradient and call.forward is None):
        raise CannotReplay("its forward call is not in this step")
    state = state_numbers(graph, list(modules.tree(forward.module)), forward.order)
    narrow = {graph.tensors[n].dtype for n in graph.outputs(forward.order).values()} & {"bfloat16", "float16"}
    if not graph.kept(output):
        raise NotKeptError(f"the data of {graph.name_of(output)} was not kept")
    plain = found = ModuleReplay(graph, (call,), output, modules, state)
    error = 0.0
    for autocast in (None, *(getattr(torch, name) for name in narrow)):
        found = ModuleReplay(graph, (call,), output, modules, state, autocast)
        error = relative_error(found.run(), graph.data(output))
        if error == 0.0:
            return found
    if graph.tensors[output].device not in ("", "cpu"):
        return plain  # the device computes something else: that may be the fault
    if error <= 64 * unit_roundoff(graph.data(output).dtype):
        return found  # rounding: other threads, or another machine
    raise CannotReplay(
        f"built again from {modules.code_origin(forward.module).place}, {call.name} does "
        f"not give its recorded output (off by {error:.1e}): it draws numbers, has state of its own, or its code has "
        "changed"
    )


@dataclass(frozen=True)
class ModuleLift:
    """The lift test of a module that was replayed as a whole, on both sides."""

    target: ModuleReplay
    reference: ModuleReplay
    values: Values  # the inputs of both sides, by the target's numbers
    reference_values: Values
    figures: Lift
    unlike: tuple[str, ...]  # inputs that differ between the two sides
    class_words: str  # where the classes come from


def lift_modules(pairs: PairedStep, orders: MatchedOrders, tensor: DifferingTensor) -> ModuleLift:
    """Lift-test the two calls of a module on the same inputs and parameters, or raise CannotReplay."""
    target = module_replay(pairs.target, orders.target, tensor.target)
    reference = module_replay(pairs.reference, orders.reference, tensor.reference)
    theirs = dict(reference.named_inputs())
    values: dict[int, torch.Tensor] = {}
    reference_values: dict[int, torch.Tensor] = {}
    unlike = []
    for name, number in target.named_inputs():
        partner = theirs.get(name)
        if partner is None:
            continue
        a, b = pairs.target.data(number), pairs.reference.data(partner)
        if a.shape != b.shape or not pairs.same(number, partner):
            unlike.append(pairs.target.name_of(number))
        if a.shape == b.shape:
            values[number], reference_values[partner] = narrower(a, b)
    figures = lift(target, reference, values, reference_values)
    origins = dict.fromkeys(str(side.modules.code_origin(side.forward.module)) for side in (target, reference))
    return ModuleLift(target, reference, values, reference_values, figures, tuple(unlike), ", ".join(origins))
