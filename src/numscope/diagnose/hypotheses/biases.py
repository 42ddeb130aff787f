"""A bias that is missing, or added twice."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.recorded.step_graph import Record


@hypothesis("bias")
def bias(case: Case) -> Iterator[Repair]:
    """Add or take away a vector among the parameters."""
    if case.given.shape != case.wanted.shape or not case.given.dim():
        return
    if not case.target.calls and not case.reference.calls:
        return  # the tensors themselves would be the vectors that are tried
    width = case.given.shape[-1]
    for record, number, tensor in _vectors(case, width):
        name = record.name_of(number)
        yield Repair(f"the bias {name} added (now missing)", lambda t=tensor: case.given + t)  # type: ignore[misc]
        yield Repair(f"the bias {name} added once (now twice)", lambda t=tensor: case.given - t)  # type: ignore[misc]


def _vectors(case: Case, width: int) -> Iterator[tuple[Record, int, torch.Tensor]]:
    """Yield the one-dimensional tensors of that width that the groups or their modules have."""
    for group in (case.target, case.reference):
        record = group.record
        numbers = dict.fromkeys(group.inputs)
        modules = {call.module for call in group.calls}
        for call in record.calls.values():
            if call.kind == "module" and call.module in modules:
                numbers.update(
                    dict.fromkeys(n for n in record.slots(call.order, "parameters").values() if n is not None)
                )
        for number in numbers:
            if record.tensors[number].shape == (width,) and record.kept(number):
                tensor = record.data(number)
                if tensor.is_floating_point():
                    yield record, number, tensor.to(torch.float64)
