"""A subgraph: the recorded calls between tensors that both runs have and one tensor that differs.

The two runs may do the same thing by different calls, fused or written out. A subgraph is found by walking back from a
tensor to the nearest tensors that the other run has too, and can be replayed from its inputs in any precision. The
simplest subgraph is a single call.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from numscope.diagnose.recorded.invocation import CannotReplay, Invocation, invocation_of
from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.replay.calls import replay

MOST_CALLS = 80  # a larger subgraph explains nothing


@dataclass(frozen=True)
class Subgraph:
    """Calls of one run, in order, that lead from `inputs` to `output`; tensors are numbers."""

    graph: StepGraph
    calls: tuple[RecordedCall, ...]
    inputs: tuple[int, ...]
    output: int
    not_replayable: dict[int, str] = field(default_factory=dict)  # input made by a call that can't be replayed → why

    def call_names(self) -> list[str]:
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
                known.update(_passed_through(self.graph, call, known))
                continue
            known.update(replay(self.graph, call, known, dtype, (edits or {}).get(call.order)))
        found = known.get(self.output)
        found = self.graph.data(self.output) if found is None else found
        return found if dtype is None or not found.is_floating_point() else found.to(dtype)

    def invocations(self) -> dict[int, Invocation]:
        """Return the calls, by order, as invocations; for a backward call that of its forward call."""
        found = {}
        for call in self.calls:
            source = self.graph.calls[call.forward] if call.is_gradient and call.forward is not None else call
            found[call.order] = invocation_of(self.graph, source)
        return found


def _passed_through(graph: StepGraph, call: RecordedCall, known: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return a call's outputs as if it were the identity: its only input, or its first input of the same shape."""
    found = {}
    for number in graph.outputs(call.order).values():
        inputs = graph.inputs(call.order)
        for given in inputs:
            if len(inputs) == 1 or graph.tensors[given].shape == graph.tensors[number].shape:
                found[number] = known[given] if given in known else graph.data(given)
                break
        else:
            raise CannotReplay(f"{call.name} can't be left out: its output has another shape than its inputs")
    return found


def upstream(
    graph: StepGraph, output: int, shared: Collection[int], include_maker: bool = False, most: int = MOST_CALLS
) -> Subgraph:
    """Return the subgraph of at most so many calls that leads from shared tensors to `output`.

    With `include_maker` the call that made the output is included even if the output itself is shared.
    """
    calls: dict[int, RecordedCall] = {}
    inputs: dict[int, None] = {}
    not_replayable: dict[int, str] = {}
    waiting, seen = [output], {output}
    while waiting:
        number = waiting.pop()
        maker = graph.producer.get(number)
        is_shared = number in shared and not (include_maker and number == output)
        if is_shared or maker is None or len(calls) >= most:
            inputs[number] = None
            continue
        call = graph.calls[maker]
        try:
            _check_replayable(graph, call)
        except CannotReplay as why:
            inputs[number] = None
            not_replayable[number] = f"{call.name}: {why}"
            continue
        calls[maker] = call
        for given in graph.inputs(maker):
            if given not in seen:
                seen.add(given)
                waiting.append(given)
    chosen = tuple(call for _, call in sorted(calls.items()))
    return Subgraph(graph, chosen, tuple(inputs), output, not_replayable)


def _check_replayable(graph: StepGraph, call: RecordedCall) -> None:
    """Raise CannotReplay where a call can't be made again."""
    if call.is_gradient:
        if call.forward is None or call.forward not in graph.calls:
            raise CannotReplay("its forward call is not in this step")
        invocation_of(graph, graph.calls[call.forward])
    else:
        invocation_of(graph, call)


def is_replayable(graph: StepGraph, order: int) -> bool:
    """Tell whether a call can be made again."""
    try:
        _check_replayable(graph, graph.calls[order])
    except CannotReplay:
        return False
    return True


def matched_calls(target: Subgraph, reference: Subgraph) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Yield the calls of both subgraphs that run the same operator, in order."""
    for block in _matcher(target, reference).get_matching_blocks():
        yield from zip(
            target.calls[block.a : block.a + block.size], reference.calls[block.b : block.b + block.size], strict=True
        )


class UnmatchedCalls(NamedTuple):
    """The calls of two subgraphs that have no counterpart in the other one."""

    extra: list[RecordedCall]  # the target's
    missing: list[RecordedCall]  # the reference's


def unmatched_calls(target: Subgraph, reference: Subgraph) -> UnmatchedCalls:
    """Return the calls that only the target has, and those that only the reference has."""
    found = UnmatchedCalls([], [])
    here = there = 0
    for block in _matcher(target, reference).get_matching_blocks():
        found.extra.extend(target.calls[here : block.a])
        found.missing.extend(reference.calls[there : block.b])
        here, there = block.a + block.size, block.b + block.size
    return found


def _matcher(target: Subgraph, reference: Subgraph) -> difflib.SequenceMatcher[str]:
    ours, theirs = ([call.operator for call in side.calls] for side in (target, reference))
    return difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
