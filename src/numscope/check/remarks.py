"""Rules of any training: an optimizer's step changes its parameters, and replicas that begin equal stay equal.

Both are read off the hashes of the parameters before and after the steps. They are remarks, no verdict: a learning rate of 0
and ranks that are meant to part are the user's choice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.core.json_value import JsonObject
from numscope.store.reader import Run, StepTables

_NAMED = 3  # parameters that a sentence names


@dataclass(frozen=True)
class Remark:
    """One thing that a training run should have done, and did not."""

    rule: str  # "unchanged" or "replicas"
    step: int
    ranks: list[int]
    parameters: list[str]
    text: str

    def to_dict(self) -> JsonObject:
        """Return the remark as JSON can hold it."""
        return asdict(self)


@dataclass
class _Trained:
    """One parameter in one optimizer's step."""

    before: int | None = None
    after: int | None = None
    gradient: float | None = None  # the gradient's l2
    gradient_bits: int | None = None  # its hash
    plain: bool = False  # all elements are the same: equal on two ranks by chance


Updates = list[dict[str, _Trained]]  # of one step of one rank, in order


def remarks(run: Run) -> list[Remark]:
    """Return the rules that a run's optimizer steps broke."""
    updates: dict[int, dict[int, Updates]] = {}  # rank → step → updates
    for rank in run.ranks:
        updates[rank] = {step: _updates(run.step_tables(step, rank)) for step in run.rank_steps(rank)}
    return [*_unchanged(updates), *_drifted(updates)]


def _updates(tables: StepTables) -> Updates:
    is_optimizer = pc.equal(tables.calls["kind"].cast(pa.string()), "optimizer")
    orders = tables.calls["order"].filter(is_optimizer)
    if not len(orders):
        return []
    slots = tables.slots.filter(pc.is_in(tables.slots["call"], orders))
    places = pc.index_in(slots["tensor"], tables.tensors["tensor"].combine_chunks())
    rows = tables.tensors.select(["hash", "l2", "min", "max"]).take(places.combine_chunks()).to_pydict()
    found: dict[int, dict[str, _Trained]] = {order: {} for order in orders.to_pylist()}
    for at, (call, slot) in enumerate(zip(slots["call"].to_pylist(), slots["slot"].cast(pa.string()).to_pylist())):
        group, _, name = slot.partition(".")
        if group not in ("parameters", "parameters_grad", "output") or not name:
            continue
        trained = found[call].setdefault(name, _Trained())
        if group == "parameters":
            trained.before, trained.plain = rows["hash"][at], rows["min"][at] == rows["max"][at]
        elif group == "output":
            trained.after = rows["hash"][at]
        else:
            trained.gradient, trained.gradient_bits = rows["l2"][at], rows["hash"][at]
    return [found[order] for order in sorted(found)]


def _unchanged(updates: dict[int, dict[int, Updates]]) -> list[Remark]:
    """Find parameters with gradients that stay unchanged by each step that changes others."""
    still: dict[str, tuple[int, set[int]]] = {}  # name → the first step, the ranks
    for rank, steps in updates.items():
        first: dict[str, int] = {}
        changed: set[str] = set()
        for step in sorted(steps):
            for update in steps[step]:
                known = {n: t for n, t in update.items() if t.before is not None and t.after is not None}
                moved = {name for name, trained in known.items() if trained.before != trained.after}
                changed |= moved
                for name, trained in known.items() if moved else ():
                    if trained.gradient is not None and np.isfinite(trained.gradient) and trained.gradient > 0:
                        first.setdefault(name, step)
        for name in first.keys() - changed:
            step, ranks = still.get(name, (first[name], set()))
            still[name] = (min(step, first[name]), ranks | {rank})
    if not still:
        return []
    names = sorted(still)
    text = (
        f"{_named(names)} {'has a gradient' if len(names) == 1 else 'have gradients'}, and no optimizer step changes "
        f"{'it' if len(names) == 1 else 'them'}: is the learning rate 0, or is the update lost in rounding?"
    )
    on = sorted(set().union(*(ranks for _, ranks in still.values())))
    return [Remark("unchanged", min(step for step, _ in still.values()), on, names, text)]


def _drifted(updates: dict[int, dict[int, Updates]]) -> list[Remark]:
    """Find the first step after which ranks that began with equal parameters hold different ones."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)  # parameter, hash at the start → ranks
    for rank, steps in updates.items():
        begun: set[str] = set()
        for step in sorted(steps)[:1]:
            for update in steps[step]:
                for name, trained in update.items():
                    if name not in begun and trained.before is not None and not trained.plain:
                        begun.add(name)
                        groups[name, trained.before].append(rank)
    replicas = [(name, ranks) for (name, _), ranks in groups.items() if len(ranks) > 1]
    for step in sorted(set().union(*(steps for steps in updates.values()))):
        apart: dict[str, list[int]] = {}
        for name, ranks in replicas:
            left = {_left(updates[rank].get(step, []), name) for rank in ranks} - {None}
            if len(left) > 1:
                apart[name] = ranks
        if apart:
            ranks = sorted(set().union(*apart.values()))
            text = (
                f"ranks {', '.join(map(str, ranks))} began with the same {_named(sorted(apart))}, and step {step} leaves "
                f"different ones: {_why_apart(updates, step, apart)}"
            )
            return [Remark("replicas", step, ranks, sorted(apart), text)]
    return []


def _why_apart(updates: dict[int, dict[int, Updates]], step: int, apart: dict[str, list[int]]) -> str:
    """Return what parts the replicas: gradients that were not reduced, or updates from the same gradients."""
    given = {
        name: {bits for rank in ranks for bits in _given(updates[rank].get(step, []), name)}
        for name, ranks in apart.items()
    }
    unlike = [name for name, bits in given.items() if len(bits) > 1]
    if len(unlike) < len(apart):
        same = sorted(name for name in apart if name not in unlike)
        return f"the gradients of {_named(same)} are the same, the updates are not: has a rank another learning rate?"
    return "the gradients that reach the optimizers differ: each rank holds a part, and no all-reduce or mean follows"


def _given(updates: Updates, name: str) -> set[int]:
    """Return the hashes of the gradients that a step's optimizers are given for a parameter."""
    bits = (update[name].gradient_bits for update in updates if name in update)
    return {one for one in bits if one is not None}


def _left(updates: Updates, name: str) -> int | None:
    """Return the hash of a parameter after the last update of a step."""
    return next((update[name].after for update in reversed(updates) if name in update), None)


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
