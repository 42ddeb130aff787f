"""The subgraphs that made a differing tensor in both runs, and common values for their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from numscope.diagnose.recorded.differing_tensors import DifferingTensor
from numscope.diagnose.recorded.invocation import CannotReplay, TensorRef
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.recorded.subgraph import Subgraph, matched_calls, upstream
from numscope.diagnose.replay.measures import unit_roundoff


def subgraphs_of(pairs: PairedStep, tensor: DifferingTensor) -> tuple[Subgraph, Subgraph]:
    """Return the subgraphs of target and reference that made a differing tensor.

    The suspect itself belongs to its subgraph where it made the tensor.
    """
    target, reference = pairs.target, pairs.reference
    made_here = tensor.target_maker is not None and target.producer.get(tensor.target) == tensor.target_maker
    made_there = (
        tensor.reference_maker is not None and reference.producer.get(tensor.reference) == tensor.reference_maker
    )
    return (
        upstream(target, tensor.target, pairs.target_to_reference, made_here),
        upstream(reference, tensor.reference, pairs.reference_to_target, made_there),
    )


@dataclass(frozen=True)
class SharedInputs:
    """Common values for the inputs of two subgraphs, by each side's own tensor numbers."""

    target: dict[int, torch.Tensor]
    reference: dict[int, torch.Tensor]
    counterpart: dict[int, int]  # the target's tensors → the reference's
    unlike: list[str]  # names of inputs that differ between the runs, or that one run lacks


def shared_inputs(pairs: PairedStep, target: Subgraph, reference: Subgraph) -> SharedInputs:
    """Return common values for the inputs of both subgraphs.

    Where an input has different dtypes, both sides get the values of the narrower one, because the other side never
    had the additional digits of the wider one.
    """
    counterpart = dict(pairs.target_to_reference)
    for mine, other in inputs_in_same_argument(pairs, target, reference):
        counterpart.setdefault(mine, other)
    ours: dict[int, torch.Tensor] = {}
    theirs: dict[int, torch.Tensor] = {}
    unlike = [
        f"{pairs.reference.name_of(number)} of the reference"
        for number in reference.inputs
        if number not in pairs.reference_to_target
    ]
    for number in target.inputs:
        partner = counterpart.get(number)
        if partner is None or pairs.reference.tensors[partner].shape != pairs.target.tensors[number].shape:
            unlike.append(pairs.target.name_of(number))
            continue
        if number not in pairs.target_to_reference:
            unlike.append(pairs.target.name_of(number))
        a, b = _data(pairs.target, number), _data(pairs.reference, partner)
        if a is not None and b is not None:
            ours[number], theirs[partner] = narrower(a, b)
    return SharedInputs(ours, theirs, counterpart, unlike)


def narrower(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values of the tensor with the narrower dtype, in the dtype of each."""
    values = a if unit_roundoff(a.dtype) > unit_roundoff(b.dtype) else b
    return values.to(a.dtype), values.to(b.dtype)


def _data(graph: StepGraph, number: int) -> torch.Tensor | None:
    return graph.data(number) if graph.kept(number) else None


def inputs_in_same_argument(pairs: PairedStep, target: Subgraph, reference: Subgraph) -> Iterator[tuple[int, int]]:
    """Yield pairs of inputs that are the same argument of matched calls, though their values differ."""
    try:
        ours, theirs = target.invocations(), reference.invocations()
    except CannotReplay:
        return
    for mine, other in matched_calls(target, reference):
        for a, b in _tensor_pairs(ours[mine.order].args, theirs[other.order].args):
            shared = a.number in pairs.target_to_reference or b.number in pairs.reference_to_target
            if not shared and a.number in target.inputs and b.number in reference.inputs:
                yield a.number, b.number


def _tensor_pairs(ours: object, theirs: object) -> Iterator[tuple[TensorRef, TensorRef]]:
    """Yield pairs of recorded tensors in the same place of two calls' arguments, lists included."""
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        for a, b in zip(ours, theirs):
            yield from _tensor_pairs(a, b)
    elif isinstance(ours, TensorRef) and isinstance(theirs, TensorRef):
        yield ours, theirs
