"""Ranks that compute the same to the bit add nothing: they were given the same data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from numscope.check.ranks.replicas import Facts
from numscope.check.ranks.step_facts import StepFacts
from numscope.check.remark import Remark
from numscope.core.operators import BETWEEN_RANKS


def same_work(step: int, facts: Facts) -> Iterator[Remark]:
    """Find ranks of which every call gives what it gives on another rank.

    Where weights, a sequence, or a model's stages are cut, some calls give something else on each rank. Replicas that are
    given the same data differ in nothing.
    """
    same: dict[int, list[int]] = defaultdict(list)
    for rank, one in facts.items():
        if one.updates and one.data and one.works_with_others and (signature := _signature(one)) is not None:
            same[signature].append(rank)
    groups = [ranks for ranks in same.values() if len(ranks) > 1]
    if groups:
        told = "; ".join(", ".join(map(str, ranks)) for ranks in groups)
        text = (
            f"ranks {told} compute the same: in step {step} each of their calls gives the same bits, so that their data "
            "are the same; does each rank take its own part of the batch?"
        )
        yield Remark("same_work", step, sorted(rank for ranks in groups for rank in ranks), [], text)


def _signature(facts: StepFacts) -> int | None:
    """Return a number for all that a rank's calls give; None where that is nothing that could differ."""
    made = tuple(
        (call.name, tuple(one.bits for one in call.outputs))
        for call in facts.forward
        if call.is_leaf and call.op.partition(".")[0] not in BETWEEN_RANKS
        if any(not one.is_plain for one in call.outputs)
    )
    return hash(made) if made else None
