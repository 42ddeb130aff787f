"""Faults between ranks: a missing, doubled or different reduction, or parts that are joined in the wrong way.

A collective can't be replayed in one process, but where every rank's tensor was kept its result can be computed: the
sum, the mean, the concatenation of the ranks' tensors. A hypothesis takes the tensors that all ranks of the target have
in one slot and yields repairs; the first whose result is the reference's tensor is the diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from numscope.diagnose.hypotheses.case import Repair
from numscope.diagnose.replay.measures import relative_error


@dataclass(frozen=True)
class Ranks:
    """The tensors of all ranks of the target in one slot, and the reference's tensor there on one of them."""

    parts: tuple[torch.Tensor, ...]  # each rank's tensor, or its input to the collective
    target: torch.Tensor  # on this rank
    reference: torch.Tensor  # on this rank
    rank: int  # index of this rank in its group
    limit: float  # relative error that rounding explains
    operation: str = "all_reduce"  # the collective's name

    @cached_property
    def total(self) -> torch.Tensor:
        """The sum over all ranks; empty where their shapes differ."""
        if any(part.shape != self.parts[0].shape for part in self.parts):
            return torch.empty(0)
        return torch.stack(self.parts).sum(0)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.parts)

    def is_target(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is the target's."""
        return relative_error(tensor, self.target) <= self.limit

    def fits(self, repair: Repair) -> bool:
        """Tell whether a repair gives the reference's tensor."""
        try:
            return relative_error(repair.output(), self.reference) <= self.limit
        except RuntimeError:  # shapes that don't go together
            return False


Hypothesis = Callable[[Ranks], Iterator[Repair]]
NAMED: dict[str, Hypothesis] = {}


def between_ranks(name: str) -> Callable[[Hypothesis], Hypothesis]:
    """Register a hypothesis about ranks under a name; they are tried in the order of this file."""

    def register(function: Hypothesis) -> Hypothesis:
        NAMED[name] = function
        return function

    return register


class Fit(NamedTuple):
    """A hypothesis that fits, and its repair."""

    hypothesis: str
    repair: Repair


def fitting(case: Ranks) -> Fit | None:
    """Return the first hypothesis that fits, or None."""
    if case.size < 2 or relative_error(case.target, case.reference) <= case.limit:
        return None
    for name, test in NAMED.items():
        for repair in test(case):
            if case.fits(repair):
                return Fit(name, repair)
    return None


@between_ranks("missing all-reduce")
def missing_all_reduce(case: Ranks) -> Iterator[Repair]:
    """Take the sum or the mean of all ranks, where the target has its own part."""
    if case.is_target(case.parts[case.rank]):
        yield Repair(f"the sum over {case.size} ranks (now missing: each rank keeps its own)", lambda: case.total)
        yield Repair(
            f"the mean over {case.size} ranks (now missing: each rank keeps its own)", lambda: case.total / case.size
        )


@between_ranks("doubled all-reduce")
def doubled_all_reduce(case: Ranks) -> Iterator[Repair]:
    """Reduce once, where the inputs of the reduction are equal on all ranks, because they were reduced before."""
    same = all(relative_error(part, case.parts[0]) <= case.limit for part in case.parts)
    if same and case.is_target(case.total):
        yield Repair(
            f"the {case.operation} done once (now twice: the sum is taken over {case.size} ranks that hold it already)",
            lambda: case.parts[case.rank],
        )


@between_ranks("sum for mean")
def sum_for_mean(case: Ranks) -> Iterator[Repair]:
    """Take the mean instead of the sum."""
    if case.is_target(case.total):
        yield Repair(
            f"the mean over {case.size} ranks (now the sum: it is {case.size} times too large)",
            lambda: case.total / case.size,
        )


@between_ranks("mean for sum")
def mean_for_sum(case: Ranks) -> Iterator[Repair]:
    """Take the sum instead of the mean."""
    if case.is_target(case.total / case.size):
        yield Repair(f"the sum over {case.size} ranks (now the mean: {case.size} times too small)", lambda: case.total)


@between_ranks("times N")
def times_n(case: Ranks) -> Iterator[Repair]:
    """Multiply or divide by the number of ranks, wherever the factor came from."""
    yield Repair(
        f"it divided by the number of ranks, {case.size} (now {case.size} times too large)",
        lambda: case.target / case.size,
    )
    yield Repair(
        f"it multiplied by the number of ranks, {case.size} (now {case.size} times too small)",
        lambda: case.target * case.size,
    )


@between_ranks("other reduction")
def other_reduction(case: Ranks) -> Iterator[Repair]:
    """Take another reduction: sum, mean, maximum, minimum or product."""
    if not case.total.numel():
        return
    stack = torch.stack(case.parts)
    forms: dict[str, Callable[[], torch.Tensor]] = {
        "sum": lambda: case.total,
        "mean": lambda: case.total / case.size,
        "maximum": lambda: stack.amax(0),
        "minimum": lambda: stack.amin(0),
        "product": lambda: stack.prod(0),
    }
    now = next((word for word, made in forms.items() if case.is_target(made())), None)
    for word, made in forms.items():
        if now is not None and word != now:
            yield Repair(f"the {word} over the ranks (now the {now})", made)


@between_ranks("concatenation")
def concatenation(case: Ranks) -> Iterator[Repair]:
    """Concatenate the ranks' parts along another axis, or in another order, or where the target does not."""
    now = _concatenated(case.parts, case.target, case.limit)
    then = _concatenated(case.parts, case.reference, case.limit)
    if then is None or then == now:
        return
    words = f"the ranks' parts joined along axis {then.axis}, in the order {_order(then.ranks)}"
    if now is not None and now.axis == then.axis:
        words = f"the ranks' parts in the order {_order(then.ranks)} (now {_order(now.ranks)}) along axis {then.axis}"
    elif now is not None:
        words = f"the ranks' parts joined along axis {then.axis} (now along axis {now.axis})"
    elif case.is_target(case.parts[case.rank]):
        words += " (now each rank keeps its own)"
    yield Repair.giving(words, torch.cat([case.parts[rank] for rank in then.ranks], then.axis))


@between_ranks("permutation of shards")
def permutation(case: Ranks) -> Iterator[Repair]:
    """Take another rank's part, or another shard of the sum."""
    for rank, part in enumerate(case.parts):
        if rank != case.rank and part.shape == case.reference.shape:
            yield Repair.giving(f"the part of rank {rank} (now that of rank {case.rank})", part)
    for axis in range(case.total.dim()):
        if case.total.shape[axis] % case.size:
            continue
        shards = case.total.chunk(case.size, axis)
        now = next((place for place, shard in enumerate(shards) if case.is_target(shard)), None)
        for place, shard in enumerate(shards):
            if now is not None and place != now:
                words = f"shard {place} of the sum along axis {axis} (now shard {now})"
                yield Repair.giving(words, shard)


class _Concatenation(NamedTuple):
    """The axis and the order in which the ranks' parts are concatenated."""

    axis: int
    ranks: tuple[int, ...]


def _concatenated(parts: Sequence[torch.Tensor], whole: torch.Tensor, limit: float) -> _Concatenation | None:
    """Return how a tensor is a concatenation of the parts; None where it is not."""
    if any(part.dim() != whole.dim() for part in parts):
        return None
    for axis in range(whole.dim()):
        order: list[int] = []
        start = 0
        while start < whole.shape[axis]:
            for rank, part in enumerate(parts):
                length = part.shape[axis]
                if rank in order or not length or start + length > whole.shape[axis]:
                    continue
                piece = whole.narrow(axis, start, length)
                if piece.shape == part.shape and relative_error(piece, part) <= limit:
                    order.append(rank)
                    start += length
                    break
            else:
                break
        if len(order) == len(parts) and start == whole.shape[axis]:
            return _Concatenation(axis, tuple(order))
    return None


def _order(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
