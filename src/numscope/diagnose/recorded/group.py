"""A group: the recorded calls between tensors that both runs have in common and one tensor that differs.

The two runs may do the same thing by other calls, fused or written out. A group is found by walking back from a tensor
to the nearest tensors that the other run has too; it is a small graph, and it can be made again from its inputs in any
precision. A single call is the simplest group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from numscope.diagnose.recorded.invocation import CannotReplay, Invocation, decode
from numscope.diagnose.recorded.step_graph import Call, Record
from numscope.diagnose.replay.calls import replay

LIMIT = 80  # a group of more calls explains nothing


@dataclass(frozen=True)
class Group:
    """Calls of one run, in order, that lead from `inputs` to `output`; tensors are numbers."""

    record: Record
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    output: int
    opaque: dict[int, str] = field(default_factory=dict)  # inputs that a call made which can't be replayed: why

    def names(self) -> list[str]:
        """Return the names of the calls."""
        return [call.name for call in self.calls]

    def run(
        self,
        values: Mapping[int, torch.Tensor] | None = None,
        dtype: torch.dtype | None = None,
        edits: Mapping[int, Invocation | None] | None = None,
    ) -> torch.Tensor:
        """Make the calls again and return the output; an edit takes a call's place, None leaves the call out."""
        known = dict(values or {})
        for call in self.calls:
            if edits and call.order in edits and edits[call.order] is None:
                known.update(_passed_on(self.record, call, known))
                continue
            known.update(replay(self.record, call, known, dtype, (edits or {}).get(call.order)))
        found = known.get(self.output)
        found = self.record.data(self.output) if found is None else found
        return found if dtype is None or not found.is_floating_point() else found.to(dtype)

    def invocations(self) -> dict[int, Invocation]:
        """Return the calls, by order, as they can be made again; for a backward call its forward call's."""
        found = {}
        for call in self.calls:
            source = self.record.calls[call.forward] if call.is_gradient and call.forward is not None else call
            found[call.order] = decode(self.record, source)
        return found


def _passed_on(record: Record, call: Call, known: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return a call's outputs if it were not there: its only input, or its first one of the same shape."""
    found = {}
    for number in record.outputs(call.order).values():
        inputs = record.inputs(call.order)
        for given in inputs:
            if len(inputs) == 1 or record.tensors[given].shape == record.tensors[number].shape:
                found[number] = known[given] if given in known else record.data(given)
                break
        else:
            raise CannotReplay(f"{call.name} can't be left out: its output has another shape than its inputs")
    return found


@dataclass(frozen=True)
class Common:
    """Which tensors of one run the other one has too: number → number there."""

    partner: Mapping[int, int]

    def __contains__(self, number: int) -> bool:
        return number in self.partner


def upstream(record: Record, output: int, common: Common, forced: bool = False) -> Group:
    """Return the group that leads to a tensor; `forced`: the call that made it belongs to it in any case."""
    calls: dict[int, Call] = {}
    inputs: dict[int, None] = {}
    opaque: dict[int, str] = {}
    waiting, seen = [output], {output}
    while waiting:
        number = waiting.pop()
        maker = record.producer.get(number)
        known = number in common and not (forced and number == output)
        if known or maker is None or len(calls) >= LIMIT:
            inputs[number] = None
            continue
        call = record.calls[maker]
        try:
            _replayable(record, call)
        except CannotReplay as why:
            inputs[number] = None
            opaque[number] = f"{call.name}: {why}"
            continue
        calls[maker] = call
        for given in record.inputs(maker):
            if given not in seen:
                seen.add(given)
                waiting.append(given)
    chosen = tuple(call for _, call in sorted(calls.items()))
    return Group(record, chosen, tuple(inputs), output, opaque)


def _replayable(record: Record, call: Call) -> None:
    if call.is_gradient:
        if call.forward is None or call.forward not in record.calls:
            raise CannotReplay("its forward call is not in this step")
        decode(record, record.calls[call.forward])
    else:
        decode(record, call)
