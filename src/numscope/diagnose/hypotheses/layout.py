"""The right numbers in the wrong order: transposed, permuted, shifted, or split in another way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.replay.measures import relative_error


@hypothesis("transposed weight")
def transposed_weight(case: Case) -> Iterator[Repair]:
    """Transpose a square matrix among the inputs."""
    for number in case.target.inputs:
        tensor = case.input64(number)
        if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] and tensor.is_floating_point():
            changed = {**case.values, number: tensor.mT}
            yield Repair(
                f"the weight {case.target.graph.name_of(number)} transposed",
                partial(case.target.run, changed, torch.float64),
            )


@hypothesis("transposed output")
def transposed_output(case: Case) -> Iterator[Repair]:
    """Exchange two axes of the output."""
    rank = case.target_output.dim()
    for first in range(rank):
        for second in range(first + 1, rank):
            yield Repair(
                f"axes {first} and {second} of {case.output_words} transposed",
                partial(torch.transpose, case.target_output, first, second),
            )


@hypothesis("shift")
def shift(case: Case) -> Iterator[Repair]:
    """Shift the output by one along an axis; the elements at the border are not compared."""
    for axis in range(case.target_output.dim()):
        length = case.target_output.shape[axis]
        if length < 4 or case.target_output.shape != case.reference_output.shape:
            continue
        for by in (1, -1):
            inner = case.target_output.narrow(axis, max(0, -by), length - 1)
            there = case.reference_output.narrow(axis, max(0, by), length - 1)
            if relative_error(inner, there) == 0 and float(inner.abs().max()) > 0 and inner.unique().numel() > 2:
                yield Repair(
                    f"the output shifted by {by} along axis {axis} (off by one)", lambda: case.reference_output
                )


@hypothesis("selection")
def selection(case: Case) -> Iterator[Repair]:
    """Select other slices of an input that both outputs consist of: another split, or interleaved."""
    for number in case.target.inputs:
        source = case.input64(number)
        if not source.is_floating_point() or number == case.target.output:
            continue  # the slices of a mask are not distinct; the output itself is left to "permutation"
        for axis in range(source.dim()):
            now, then = (
                _selected_slices(source, case.target_output, axis),
                _selected_slices(source, case.reference_output, axis),
            )
            if now is None or then is None or now == then:
                continue
            name = case.target.graph.name_of(number)
            yield Repair(
                f"another split or order of {name}: places {_ranges(then)} of axis {axis} (now {_ranges(now)})"
                + (", interleaved or not" if _is_strided(then) or _is_strided(now) else ""),
                partial(torch.index_select, source, axis, torch.tensor(then)),
            )


@hypothesis("permutation")
def permutation(case: Case) -> Iterator[Repair]:
    """Permute the slices along one axis."""
    for axis in range(case.target_output.dim()):
        if case.target_output.shape[axis] < 2 or case.target_output.shape != case.reference_output.shape:
            continue
        order = _selected_slices(case.target_output, case.reference_output, axis)
        if order is None or order == sorted(order) or 2 * len(set(order)) <= len(order):
            continue  # where most slices are alike, as in a mask, any order fits
        kind = "permuted"
        if case.involves("repeat", "repeat_interleave", "expand", "tile"):
            kind = "permuted: each copied in its place (interleaved), not all copied after another"
        yield Repair(
            f"axis {axis} of {case.output_words} {kind}, as {_ranges(order)}",
            partial(torch.index_select, case.target_output, axis, torch.tensor(order)),
        )


@hypothesis("same values")
def same_values(case: Case) -> Iterator[Repair]:
    """Permute the elements in an unknown way: the sorted elements are equal."""
    a, b = case.target_output.flatten(), case.reference_output.flatten()
    if a.numel() == b.numel() and a.numel() > 4 and a.unique().numel() > a.numel() // 4 and not a.is_complex():
        same = torch.equal(a.sort().values, b.sort().values)
        if same:
            yield Repair(
                "its elements permuted: the same numbers in another order of axes", lambda: case.reference_output
            )


def _selected_slices(source: torch.Tensor, selected: torch.Tensor, axis: int) -> list[int] | None:
    """Return the indices of the slices of `source` along an axis that `selected` consists of; None where it does not."""
    if (
        not source.is_floating_point()
        or source.dim() != selected.dim()
        or source.dtype != selected.dtype
        or source.shape[axis] > 4096
    ):
        return None
    shape = list(source.shape)
    if [n for i, n in enumerate(selected.shape) if i != axis] != [n for i, n in enumerate(shape) if i != axis]:
        return None
    slices: dict[bytes, int] = {}
    for place in range(source.shape[axis]):
        slices.setdefault(source.select(axis, place).contiguous().numpy().tobytes(), place)
    found = [slices.get(selected.select(axis, i).contiguous().numpy().tobytes()) for i in range(selected.shape[axis])]
    if None in found:
        return None
    return [place for place in found if place is not None]


def _is_strided(places: list[int]) -> bool:
    steps = {b - a for a, b in itertools.pairwise(places)}
    return len(steps) == 1 and steps != {1}


def _ranges(places: list[int]) -> str:
    """Return places in words, as ranges: 0-31, 64-95."""
    parts: list[list[int]] = []
    for place in places:
        if parts and place == parts[-1][-1] + 1:
            parts[-1].append(place)
        else:
            parts.append([place])
    shown = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts[:8]]
    return ", ".join(shown) + (" …" if len(parts) > 8 else "")
