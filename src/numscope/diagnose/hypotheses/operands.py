"""The right calls on the wrong tensors: operands swapped, or another tensor that both runs have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numscope.diagnose.hypotheses.arguments import _order
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.intervene.run_elsewhere import map_leaves
from numscope.diagnose.recorded.invocation import Given, Invocation


@hypothesis("operand")
def operand(case: Case) -> Iterator[Repair]:
    """Give the target's call the tensors that the reference's call has."""
    back = {there: here for here, there in case.reference_number.items()}
    for target, reference in case.paired():
        now, then = _givens(target), [back.get(number) for number in _givens(reference)]
        if len(now) != len(then) or None in then or now == then:
            continue
        wanted = [number for number in then if number is not None]
        edited = _with(target, wanted)
        record = case.target.record
        changed = [(a, b) for a, b in zip(now, wanted) if a != b]
        if sorted(now) == sorted(wanted):
            change = f"the operands of {target.call.name} swapped (in the reference's order)"
        elif record.producer.get(changed[0][0]) == record.producer.get(changed[0][1]) is not None:
            pairs = ", ".join(f"{_slot(record.name_of(b))} (now {_slot(record.name_of(a))})" for a, b in changed)
            maker = record.calls[record.producer[changed[0][1]]].name
            change = f"the outputs of {maker} taken in the reference's order in {target.call.name}: {pairs}"
        else:
            pairs = ", ".join(f"operand {record.name_of(b)} (now {record.name_of(a)})" for a, b in changed)
            change = f"{pairs} in {target.call.name}"
        yield Repair(change, _run(case, target, edited))


def _run(case: Case, target: Invocation, edited: Invocation) -> Any:
    return lambda: case.edited({_order(case, target): edited})


def _slot(name: str) -> str:
    return "output" + name.rpartition(".output")[2]


def _givens(made: Invocation) -> list[int]:
    found: list[int] = []

    def see(leaf: Any) -> Any:
        if isinstance(leaf, Given):
            found.append(leaf.number)
        return leaf

    map_leaves((made.args, made.kwargs), see)
    return found


def _with(made: Invocation, numbers: list[int]) -> Invocation:
    waiting = iter(numbers)

    def fill(leaf: Any) -> Any:
        return Given(next(waiting)) if isinstance(leaf, Given) else leaf

    args, kwargs = map_leaves((made.args, made.kwargs), fill)
    return Invocation(made.call, made.function, args, kwargs)
