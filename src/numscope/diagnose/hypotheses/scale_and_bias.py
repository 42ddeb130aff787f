"""The target differs by a factor or by an added vector: a scale, or a bias that is missing or added twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.wording import recognise, spoken
from numscope.diagnose.recorded.step_graph import StepGraph

_CHANNELS = 64  # a longer axis is not one of channels


@hypothesis("bias")
def bias(case: Case) -> Iterator[Repair]:
    """Add or subtract a vector among the parameters."""
    if case.target_output.shape != case.reference_output.shape or not case.target_output.dim():
        return
    if case.is_bare:
        return  # the tensors themselves would be the vectors that are tried
    width = case.target_output.shape[-1]
    for graph, number, tensor in _vectors(case, width):
        name = graph.name_of(number)
        yield Repair(f"the bias {name} added (now missing)", partial(torch.add, case.target_output, tensor))
        yield Repair(f"the bias {name} added once (now twice)", partial(torch.sub, case.target_output, tensor))


def _vectors(case: Case, width: int) -> Iterator[tuple[StepGraph, int, torch.Tensor]]:
    """Yield the vectors of a width among the inputs of the subgraphs and the parameters of their modules."""
    for subgraph in (case.target, case.reference):
        graph = subgraph.graph
        numbers = dict.fromkeys(subgraph.inputs)
        modules = {call.module for call in subgraph.calls}
        for call in graph.calls.values():
            if call.kind == "module" and call.module in modules:
                numbers.update(
                    dict.fromkeys(n for n in graph.slots(call.order, "parameters").values() if n is not None)
                )
        for number in numbers:
            if graph.tensors[number].shape == (width,) and graph.kept(number):
                tensor = graph.data(number)
                if tensor.is_floating_point():
                    yield graph, number, tensor.to(torch.float64)


def factor(actual: torch.Tensor, expected: torch.Tensor) -> float | None:
    """Return the factor that brings `actual` nearest to `expected`, by least squares."""
    if actual.shape != expected.shape or not actual.is_floating_point():
        return None
    a, b = actual.double().flatten(), expected.double().flatten()
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    square = float((a * a).sum())
    return float((a * b).sum()) / square if square and a.numel() > 1 else None


@hypothesis("scale factor")
def scale(case: Case) -> Iterator[Repair]:
    """Multiply the output by a factor, given in closed form where it has one: 1/√128, 2, -1."""
    found = factor(case.target_output, case.reference_output)
    if found is None or found == 0:
        return
    if abs(found + 1) < 1e-9:
        yield Repair("the opposite sign", lambda: -case.target_output)
    said = spoken(found)
    more = "" if recognise(found) else f"; the target is {spoken(1 / found)} times the reference"
    where = "" if case.is_bare else " on the output"

    def scaled(one: Case) -> torch.Tensor:
        return one.target_output * found

    yield Repair(f"a scale factor of {said}{where}{more}", partial(scaled, case), is_vague=True, fitted=scaled)


@hypothesis("scale of an input")
def scale_of_input(case: Case) -> Iterator[Repair]:
    """Multiply an input by a factor: exp(x) instead of exp(x/2)."""
    for number in case.target.inputs:
        tensor = case.input64(number)
        if not tensor.is_floating_point():
            continue
        for value in (0.5, 2.0, -1.0):
            changed = {**case.values, number: tensor * value}
            yield Repair(
                f"a scale factor of {value:g} on the input {case.target.graph.name_of(number)}",
                partial(case.target.run, changed, torch.float64),
            )


@hypothesis("scale and shift")
def scale_and_shift(case: Case) -> Iterator[Repair]:
    """Scale and shift each slice along one axis: data that were not normalised."""
    if not case.is_bare:
        return  # hypotheses about the calls explain more
    given, wanted = case.target_output, case.reference_output
    if given.shape != wanted.shape or not given.is_floating_point() or given.dim() < 2:
        return
    for axis in range(given.dim()):
        rows, there = given.movedim(axis, 0).flatten(1), wanted.movedim(axis, 0).flatten(1)
        if rows.shape[0] > _CHANNELS or rows.shape[1] < 8:
            continue
        centre = rows.mean(1, keepdim=True)
        spread = (rows - centre).square().sum(1, keepdim=True)
        slope = ((rows - centre) * there).sum(1, keepdim=True) / spread
        shift = there.mean(1, keepdim=True) - slope * centre
        if bool((((slope - 1).abs() < 1e-9) & (shift.abs() < 1e-9)).any()):
            continue  # a slice that is unchanged: normalisation changes all
        made = (rows * slope + shift).reshape(given.movedim(axis, 0).shape).movedim(0, axis)
        words = f"x - {_few(-shift / slope)}"
        if bool(((slope - 1).abs() > 1e-6).any()):
            words = f"({words}) / {_few(1 / slope)}"
        yield Repair.giving(f"{words} along axis {axis} (now x: it is not normalised so)", made)


def _few(values: torch.Tensor) -> str:
    found = [f"{value:.4g}" if abs(value) > 1e-9 else "0" for value in values.flatten().tolist()]
    return found[0] if len(set(found)) == 1 else "[" + ", ".join(found[:4]) + (", …]" if len(found) > 4 else "]")
