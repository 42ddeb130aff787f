"""Tells whether two runs of a job are cut over their ranks in another way, and reads a step of all ranks."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.load.wrappers import normalise
from numscope.store.reader import Run

ALL_RANKS = -1  # in place of a rank: the step of the whole job
_COLUMNS = {"calls": ["order", "kind"], "slots": ["call", "slot", "tensor"], "tensors": ["tensor", "shape"]}
_Shape = tuple[int, ...]
_Signature = tuple[tuple[tuple[str, _Shape], ...], tuple[_Shape, ...]]


def differs(runs: tuple[Run, Run], among: Collection[int] | None = None) -> bool:
    """Tell whether two runs have other numbers of ranks, or ranks that hold other parts of the parameters or data.

    `among`: the ranks that are looked at, if not all.
    A run of which a rank was not recorded cannot be made whole: its ranks are compared as they are.
    """
    if all(len(run.ranks) < 2 for run in runs) or any(_lacks_ranks(run) for run in runs):
        return False
    target, reference = runs
    if target.ranks != reference.ranks:
        return True
    common = sorted(set(target.steps) & set(reference.steps))
    if not common:
        return False
    for rank in target.ranks if among is None else sorted(among):
        if all(common[0] in run.rank_steps(rank) for run in runs):
            of_target, of_reference = (_signature(run, common[0], rank) for run in runs)
            for run in runs:
                run.forget(rank)
            if of_target != of_reference:
                return True
    return False


def whole_steps_of(run: Run) -> set[int]:
    """Return the steps that all ranks of a run completed."""
    return set.intersection(*(set(run.rank_steps(rank)) for rank in run.ranks)) if run.ranks else set()


def _lacks_ranks(run: Run) -> bool:
    return int(run.manifest.get("world_size") or 1) != len(run.ranks)


def _signature(run: Run, step: int, rank: int) -> _Signature:
    """Return the shapes of the parameters that a rank's optimizers update, and of the data that it is given."""
    tables = run.step_tables(step, rank, _COLUMNS)
    shapes = dict(zip(tables.tensors["tensor"].to_pylist(), tables.tensors["shape"].to_pylist()))
    found: dict[str, list[tuple[str, _Shape]]] = {"optimizer": [], "data": []}
    for kind, rows in found.items():
        calls = tables.calls.filter(pc.equal(tables.calls["kind"], kind))["order"].combine_chunks()
        slots = tables.slots.filter(pc.is_in(tables.slots["call"], value_set=calls.cast(tables.slots["call"].type)))
        names = slots["slot"].cast(pa.string()).to_pylist()
        for name, tensor in zip(names, slots["tensor"].to_pylist()):
            if tensor is not None and (kind == "data" or name.startswith("parameters.")):
                rows.append((name, tuple(shapes.get(tensor) or ())))
    plain = normalise(name.removeprefix("parameters.") for name, _ in found["optimizer"])
    parameters = {(plain[name.removeprefix("parameters.")], shape) for name, shape in found["optimizer"]}
    return tuple(sorted(parameters)), tuple(sorted(shape for _, shape in found["data"]))
