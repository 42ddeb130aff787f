"""A call whose output is right, but that leaves another state behind: the running statistics of a norm."""

from __future__ import annotations

import torch

from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.hypotheses.arguments import _ABSENT, _change, differing
from numscope.diagnose.hypotheses.case import Case
from numscope.diagnose.intervene.run_elsewhere import map_leaves
from numscope.diagnose.recorded.invocation import CannotReplay, Given, Invocation, decode
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import NotKept, Record
from numscope.diagnose.replay.measures import relative, unit_roundoff


def explain(pairs: Pairing, target_order: int, reference_order: int) -> Explanation | None:
    """Explain a matched call with other arguments and equal outputs, by the state that the next step finds."""
    ours, theirs = pairs.target.calls[target_order], pairs.reference.calls[reference_order]
    try:
        mine, other = decode(pairs.target, ours), decode(pairs.reference, theirs)
        left = _next_state(pairs.reference, theirs.name, other)
    except (CannotReplay, NotKept):
        return None
    if not left:
        return None
    blank = Case(None, None, {}, {}, 0.0, 0.0, pairs.here.partner)  # type: ignore[arg-type]
    changes = differing(blank, mine, other)
    for name, _, then in changes:
        if then is _ABSENT:
            continue
        try:
            made = written(pairs.target, mine.changed(name, then))
        except (CannotReplay, NotKept, RuntimeError, TypeError):
            continue
        if made and all(place in made and _near(made[place], tensor) for place, tensor in left.items()):
            return Explanation("semantic", f"equal to the reference with {_change(mine, changes, name)}")
    return None


def _near(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    return relative(made, wanted) <= 16 * unit_roundoff(wanted.dtype)


def written(record: Record, made: Invocation) -> dict[int, torch.Tensor]:
    """Call an invocation and return what it wrote to, by the position of the argument."""
    args = [record.data(value.number).clone() if isinstance(value, Given) else value for value in made.args]
    before = [value.clone() if isinstance(value, torch.Tensor) else None for value in args]

    def fill(leaf: object) -> object:
        return record.data(leaf.number).clone() if isinstance(leaf, Given) else leaf

    made.function(*args, **map_leaves(made.kwargs, fill))
    return {
        index: value
        for index, (value, old) in enumerate(zip(args, before))
        if isinstance(value, torch.Tensor) and old is not None and not torch.equal(value, old)
    }


def _next_state(record: Record, name: str, made: Invocation) -> dict[int, torch.Tensor]:
    """Return what the same call of the next step was given where this one wrote to."""
    later = [step for step in record.run.rank_steps(record.rank) if step > record.step]
    if not later:
        return {}
    following = Record(record.run, later[0], record.rank)
    call = following.by_name.get(name)
    if call is None:
        return {}
    slots = following.slots(call.order, "input")
    found = {}
    for index in written(record, made):
        number = slots.get(f"input.{index}")
        if number is not None and following.kept(number):
            found[index] = following.data(number)
    return found
