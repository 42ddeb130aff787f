"""The right numbers in the wrong places: transposed, permuted, shifted, split otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.constants import involves
from numscope.diagnose.replay.measures import relative


@hypothesis("transposed weight")
def transposed_weight(case: Case) -> Iterator[Repair]:
    """Transpose a square matrix among the inputs."""
    for number in case.target.inputs:
        tensor = case.input64(number)
        if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] and tensor.is_floating_point():
            changed = {**case.shared, number: tensor.mT}
            yield Repair(
                f"the weight {case.target.record.name_of(number)} transposed",
                lambda changed=changed: case.target.run(changed, torch.float64),  # type: ignore[misc]
            )


@hypothesis("transposed output")
def transposed_output(case: Case) -> Iterator[Repair]:
    """Exchange two axes of the output."""
    rank = case.given.dim()
    for first in range(rank):
        for second in range(first + 1, rank):
            yield Repair(
                f"axes {first} and {second} of the output transposed",
                lambda a=first, b=second: case.given.transpose(a, b),  # type: ignore[misc]
            )


@hypothesis("shift")
def shift(case: Case) -> Iterator[Repair]:
    """Shift the output by one along an axis; what enters at the border is not judged."""
    for axis in range(case.given.dim()):
        length = case.given.shape[axis]
        if length < 4 or case.given.shape != case.wanted.shape:
            continue
        for by in (1, -1):
            inner = case.given.narrow(axis, max(0, -by), length - 1)
            there = case.wanted.narrow(axis, max(0, by), length - 1)
            if relative(inner, there) == 0 and float(inner.abs().max()) > 0 and inner.unique().numel() > 2:
                yield Repair(f"the output shifted by {by} along axis {axis} (off by one)", lambda: case.wanted)


@hypothesis("selection")
def selection(case: Case) -> Iterator[Repair]:
    """Both outputs are slices of one input, but not the same ones: split or interleaved otherwise."""
    for number in case.target.inputs:
        source = case.input64(number)
        if not source.is_floating_point() or number == case.target.output:
            continue  # the slices of a mask are not distinct; of itself, a permutation says it better
        for axis in range(source.dim()):
            now, then = _places(source, case.given, axis), _places(source, case.wanted, axis)
            if now is None or then is None or now == then:
                continue
            name = case.target.record.name_of(number)
            yield Repair(
                f"another split or order of {name}: places {_ranges(then)} of axis {axis} (now {_ranges(now)})"
                + (", interleaved or not" if _is_strided(then) or _is_strided(now) else ""),
                lambda source=source, axis=axis, then=then: source.index_select(axis, torch.tensor(then)),  # type: ignore[misc]
            )


@hypothesis("permutation")
def permutation(case: Case) -> Iterator[Repair]:
    """The same slices in another order along one axis."""
    for axis in range(case.given.dim()):
        if case.given.shape[axis] < 2 or case.given.shape != case.wanted.shape:
            continue
        order = _places(case.given, case.wanted, axis)
        if order is None or order == sorted(order) or 2 * len(set(order)) <= len(order):
            continue  # where most slices are alike, as in a mask, any order fits
        kind = "permuted"
        if involves(case, "repeat", "repeat_interleave", "expand", "tile"):
            kind = "permuted: each copied in its place (interleaved), not all copied after another"
        yield Repair(
            f"axis {axis} of the output {kind}, as {_ranges(order)}",
            lambda axis=axis, order=order: case.given.index_select(axis, torch.tensor(order)),  # type: ignore[misc]
        )


@hypothesis("same values")
def same_values(case: Case) -> Iterator[Repair]:
    """The same numbers in another order, whatever that order is."""
    a, b = case.given.flatten(), case.wanted.flatten()
    if a.numel() == b.numel() and a.numel() > 4 and a.unique().numel() > a.numel() // 4 and not a.is_complex():
        same = torch.equal(a.sort().values, b.sort().values)
        if same:
            yield Repair("its elements permuted: the same numbers in another order of axes", lambda: case.wanted)


def _places(source: torch.Tensor, selected: torch.Tensor, axis: int) -> list[int] | None:
    """Return which slices of `source` along an axis `selected` is made of, or None where it is not."""
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
    known: dict[bytes, int] = {}
    for place in range(source.shape[axis]):
        known.setdefault(source.select(axis, place).contiguous().numpy().tobytes(), place)
    found = [known.get(selected.select(axis, i).contiguous().numpy().tobytes()) for i in range(selected.shape[axis])]
    if None in found:
        return None
    return [place for place in found if place is not None]


def _is_strided(places: list[int]) -> bool:
    steps = {b - a for a, b in itertools.pairwise(places)}
    return len(steps) == 1 and steps != {1}


def _ranges(places: list[int]) -> str:
    """Return places in short: 0-31, 64-95."""
    parts: list[list[int]] = []
    for place in places:
        if parts and place == parts[-1][-1] + 1:
            parts[-1].append(place)
        else:
            parts.append([place])
    shown = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts[:8]]
    return ", ".join(shown) + (" …" if len(parts) > 8 else "")
