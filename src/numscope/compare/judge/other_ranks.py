"""The parameters of other ranks: experts, stages of a pipeline, shares of an optimizer's work.

A parameter that one side alone updates on this rank is no fault where another rank of the other side does it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.load.wrappers import normalise
from numscope.store.reader import Run

_HEAD = "parameters."


class OtherRanks:
    """The parameters that the other ranks of both runs update in one step; looked up when first asked for."""

    def __init__(self, runs: tuple[Run, Run], step: int, rank: int) -> None:
        self._runs, self._step, self._rank = runs, step, rank
        self._updated: dict[int, frozenset[str]] = {}

    def update(self, side: int, label: str) -> bool:
        """Return whether another rank of a run (0: the target's, 1: the reference's) updates a parameter.

        Of ranks that were not recorded, in a job of another size than the other run's, it is believed.
        """
        run = self._runs[side]
        sizes = [int(one.manifest.get("world_size") or 1) for one in self._runs]
        if sizes[side] > len(run.ranks) and len(set(sizes)) > 1:
            return True
        if side not in self._updated:
            self._updated[side] = frozenset(
                name
                for rank in run.ranks
                if rank != self._rank and self._step in run.rank_steps(rank)
                for name in _updated_parameters(run, self._step, rank)
            )
        return label in self._updated[side]


def _updated_parameters(run: Run, step: int, rank: int) -> list[str]:
    """Return the names of the parameters that the optimizers of a rank are given in a step, without wrappers."""
    tables = run.step_tables(step, rank)
    steps = tables.calls.filter(pc.equal(tables.calls["kind"], "optimizer"))["order"]
    rows = pc.is_in(tables.slots["call"], value_set=steps.combine_chunks().cast(tables.slots["call"].type))
    slots = tables.slots.filter(rows)["slot"]
    words = slots.cast(pa.string()).unique().to_pylist()
    names = [word.removeprefix(_HEAD) for word in words if word is not None and word.startswith(_HEAD)]
    return list(np.unique(list(normalise(names).values()))) if names else []
