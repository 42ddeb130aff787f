"""Ranks that compute the same to the bit add nothing: they were given the same data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from numscope.check.ranks.replicas import Facts
from numscope.check.remark import Remark


def same_work(step: int, facts: Facts) -> Iterator[Remark]:
    """Find ranks of which every call gives what it gives on another rank.

    Where weights, a sequence, or a model's stages are cut, some calls give something else on each rank. Replicas that are
    given the same data differ in nothing.
    """
    same: dict[int, list[int]] = defaultdict(list)
    for rank, one in facts.items():
        if one.updates and one.data and one.works_with_others and one.results is not None:
            same[one.results].append(rank)
    groups = [ranks for ranks in same.values() if len(ranks) > 1]
    if groups:
        told = "; ".join(", ".join(map(str, ranks)) for ranks in groups)
        text = (
            f"ranks {told} compute the same: in step {step} each of their calls gives the same bits, so that their data "
            "are the same; does each rank take its own part of the batch?"
        )
        every = sorted(rank for ranks in groups for rank in ranks)
        yield Remark("same_work", step, every, [], text, facts[every[-1]].entry)
