"""The target is the reference times a number."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.numbers import recognise, spoken

_CHANNELS = 64  # more places than this are no channels


def factor(given: torch.Tensor, wanted: torch.Tensor) -> float | None:
    """Return the number by which `given` has to be multiplied to be nearest to `wanted`."""
    if given.shape != wanted.shape or not given.is_floating_point():
        return None
    a, b = given.double().flatten(), wanted.double().flatten()
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    square = float((a * a).sum())
    return float((a * b).sum()) / square if square and a.numel() > 1 else None


@hypothesis("scale factor")
def scale(case: Case) -> Iterator[Repair]:
    """Solve for the factor by least squares, and say it as people know it: 1/√128, 2, -1."""
    found = factor(case.given, case.wanted)
    if found is None or found == 0:
        return
    if abs(found + 1) < 1e-9:
        yield Repair("the opposite sign", lambda: -case.given)
    said = spoken(found)
    more = "" if recognise(found) else f"; the target is {spoken(1 / found)} times the reference"
    yield Repair(f"a scale factor of {said} on the output{more}", lambda: case.given * found, is_vague=True)


@hypothesis("scale of an input")
def scale_of_input(case: Case) -> Iterator[Repair]:
    """The factor belongs to an input: exp(x) for exp(x/2)."""
    for number in case.target.inputs:
        tensor = case.input64(number)
        if not tensor.is_floating_point():
            continue
        for value in (0.5, 2.0, -1.0):
            changed = {**case.shared, number: tensor * value}
            yield Repair(
                f"a scale factor of {value:g} on the input {case.target.record.name_of(number)}",
                lambda changed=changed: case.target.run(changed, torch.float64),  # type: ignore[misc]
            )


@hypothesis("scale and shift")
def scale_and_shift(case: Case) -> Iterator[Repair]:
    """The reference is the target times a number plus a number, for each place of one axis: normalised data."""
    if case.target.calls or case.reference.calls:
        return  # what calls do is said by calls
    given, wanted = case.given, case.wanted
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
            continue  # a place that is as it was: to normalise changes all
        made = (rows * slope + shift).reshape(given.movedim(axis, 0).shape).movedim(0, axis)
        words = f"x - {_few(-shift / slope)}"
        if bool(((slope - 1).abs() > 1e-6).any()):
            words = f"({words}) / {_few(1 / slope)}"
        yield Repair(f"{words} along axis {axis} (now x: it is not normalised so)", lambda made=made: made)  # type: ignore[misc]


def _few(values: torch.Tensor) -> str:
    found = [f"{value:.4g}" if abs(value) > 1e-9 else "0" for value in values.flatten().tolist()]
    return found[0] if len(set(found)) == 1 else "[" + ", ".join(found[:4]) + (", …]" if len(found) > 4 else "]")
