"""Rules of any training: an optimizer's step changes its parameters, and the ranks of a job keep what they must share.

They are remarks, no verdict: a learning rate of 0 and ranks that are meant to part are the user's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numscope.check.collectives import wrong_collectives
from numscope.check.ranks.dropout import Dropouts
from numscope.check.ranks.order import order
from numscope.check.ranks.replicas import Replicas
from numscope.check.ranks.same_work import same_work
from numscope.check.ranks.step_facts import StepFacts, step_facts
from numscope.check.remark import Remark
from numscope.store.reader import Run
from numscope.store.whole import read_layout

_NAMED = 3  # parameters that a sentence names


def remarks(run: Run, last: int | None = None) -> list[Remark]:
    """Return the rules that a run's steps broke, up to the step `last`."""
    unchanged, replicas, dropouts = _Unchanged(), Replicas(), Dropouts()
    found: list[Remark] = []
    does_the_same = is_out_of_order = False
    declared = {rank: read_layout(run.path / f"rank{rank}") for rank in run.ranks}
    steps_of = {rank: set(run.rank_steps(rank)) for rank in run.ranks}
    for step in sorted(step for step in set().union(*steps_of.values()) if last is None or step <= last):
        ranks = [rank for rank in run.ranks if step in steps_of[rank]]
        facts = {rank: step_facts(run.step_tables(step, rank), declared[rank]) for rank in ranks}
        for rank, one in facts.items():
            unchanged.take(step, rank, one)
        if len(facts) < 2:
            continue
        if not does_the_same:
            same = [*same_work(step, facts)]
            does_the_same = bool(same)
            found += same
        if not is_out_of_order:
            orders = [*order(step, facts)]
            is_out_of_order = bool(orders)
            found += orders
        if drawn := [*dropouts.take(step, facts)]:
            replicas.end()  # other numbers part them, too
        found += [*drawn, *replicas.take(step, facts)]
    if not any(run.checks(rank).num_rows for rank in run.ranks):  # else they are among the calls that compute wrongly
        found += [
            Remark(
                "collective", one.step, list(one.origin.details["ranks"]), [], f"{one.origin.call}: {one.origin.reason}"
            )
            for one in wrong_collectives(run)
        ][:1]
    return [*unchanged.remarks(), *found]


class _Unchanged:
    """Finds parameters with gradients that stay unchanged by each step that changes others."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], int] = {}  # rank and name of those → the first such step
        self._changed: set[tuple[int, str]] = set()

    def take(self, step: int, rank: int, facts: StepFacts) -> None:
        """Note what the optimizers of a step changed."""
        for update in facts.updates:
            known = {
                name: trained
                for name, trained in update.of.items()
                if trained.before is not None
                and trained.after is not None
                and None not in (trained.before.bits, trained.after.bits)
            }
            moved = {
                name
                for name, trained in known.items()
                if trained.before and trained.after and trained.before.bits != trained.after.bits
            }
            self._changed.update((rank, name) for name in moved)
            for name, trained in known.items() if moved else ():
                size = trained.gradient.l2 if trained.gradient is not None else None
                if size is not None and np.isfinite(size) and size > 0:
                    self._first.setdefault((rank, name), step)

    def remarks(self) -> list[Remark]:
        """Return what was found."""
        still = {key: step for key, step in self._first.items() if key not in self._changed}
        if not still:
            return []
        names = sorted({name for _, name in still})
        text = (
            f"{_named(names)} {'has a gradient' if len(names) == 1 else 'have gradients'}, and no optimizer step changes "
            f"{'it' if len(names) == 1 else 'them'}: is the learning rate 0, or is the update lost in rounding?"
        )
        return [Remark("unchanged", min(still.values()), sorted({rank for rank, _ in still}), names, text)]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
