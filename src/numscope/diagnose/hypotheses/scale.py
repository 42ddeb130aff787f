"""The target is the reference times a number."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.numbers import recognise, spoken


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
