"""Random state of tensor parallel ranks: the same where they hold the same tensor, another where each holds a part.

That is seen in what their dropouts do. Two ranks with other random states drop the same number of elements by chance now and
then: of n elements dropped with probability p, in one of 2√(πnp(1-p)) cases; so that several calls decide together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from numscope.check.ranks.replicas import Facts
from numscope.check.ranks.step_facts import Forward
from numscope.check.remark import Remark

_BY_CHANCE = 1e-6  # one false alarm in a million runs


class Dropouts:
    """The dropouts of a run, watched step by step."""

    def __init__(self) -> None:
        self._chance: dict[tuple[int, int], float] = {}  # of two ranks: that they draw what they draw by chance
        self._told = False

    def take(self, step: int, facts: Facts) -> Iterator[Remark]:
        """Yield what a step says: other numbers for what ranks hold alike, or the same for what each has a part of."""
        if self._told:
            return
        calls: dict[str, dict[int, Forward]] = defaultdict(dict)
        for rank, one in facts.items():
            for call in one.draws:
                calls[call.name][rank] = call
        found = [*_other_numbers(step, calls)] or [*self._same_numbers(step, facts, list(calls.values()))]
        self._told = bool(found)
        yield from found

    def _same_numbers(self, step: int, facts: Facts, calls: Sequence[dict[int, Forward]]) -> Iterator[Remark]:
        """Find ranks that are given the same data, and drop equally many elements of each tensor of which each has a part."""
        same_data: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, did in facts.items():
            if did.data:
                same_data[did.data].append(rank)
        for one, other in (pair for ranks in same_data.values() for pair in combinations(ranks, 2)):
            chance, where = self._chance.get((one, other), 1.0), list[Forward]()
            for call in calls:
                odds = _odds(call[one], call[other]) if one in call and other in call else None
                if odds is not None:
                    chance *= odds
                    where.append(call[one])
            self._chance[one, other] = chance
            if where and 0.0 < chance < _BY_CHANCE:
                text = (
                    f"ranks {one} and {other} are given the same data, and drop equally many elements of the parts that "
                    f"they hold at {_title(where)} up to step {step}: where a tensor is cut, each rank needs a random "
                    "state of its own"
                )
                yield Remark("dropout", step, [one, other], [], text)
                return


def _other_numbers(step: int, calls: dict[str, dict[int, Forward]]) -> Iterator[Remark]:
    found: dict[tuple[int, ...], list[Forward]] = defaultdict(list)
    for of_rank in calls.values():
        given: dict[tuple[int | None, ...], list[int]] = defaultdict(list)
        for rank, call in of_rank.items():
            if any(not one.is_plain for one in call.inputs):
                given[tuple(one.bits for one in call.inputs)].append(rank)
        for ranks in given.values():
            if len({tuple(one.bits for one in of_rank[rank].outputs) for rank in ranks}) > 1:
                found[tuple(ranks)].append(of_rank[ranks[0]])
    for together, some in found.items():
        text = (
            f"ranks {', '.join(map(str, together))} hold the same tensor at {_title(some)} and draw different numbers for "
            f"it in step {step}: what is whole on several ranks needs the same random state there; where each rank "
            "should have its own data, they are given the same"
        )
        yield Remark("dropout", step, list(together), [], text)
        return


def _odds(one: Forward, other: Forward) -> float | None:
    """Return how probable it is that two dropouts of parts of a tensor drop equally many elements; 0 where they do not."""
    if not (one.inputs and other.inputs and one.outputs and other.outputs):
        return None
    if one.inputs[0].bits == other.inputs[0].bits or one.inputs[0].shape != other.inputs[0].shape:
        return None
    if one.inputs[0].zeros or other.inputs[0].zeros:
        return None
    count, dropped = one.outputs[0].elements, one.outputs[0].zeros
    if dropped in (0, count):
        return None
    if dropped != other.outputs[0].zeros:
        return 0.0
    share = dropped / count
    return min(1.0, 1 / (2 * math.sqrt(math.pi * count * share * (1 - share))))


def _title(calls: Sequence[Forward]) -> str:
    first = calls[0]
    where = f"{first.name} ({first.module})" if first.module else first.name
    return where if len(calls) == 1 else f"{where} and {len(calls) - 1} more calls"
