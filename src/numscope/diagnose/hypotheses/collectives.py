"""What goes wrong between ranks: a reduction that is missing, doubled or another one; parts joined in the wrong way.

A collective can't be replayed on one machine's CPU alone, but where every rank's tensor was kept its result can be
computed: the sum, the mean, the concatenation of the ranks' tensors. A hypothesis takes what all ranks of the target
hold at one place and yields repairs; the first whose result is the reference's tensor is the diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from numscope.diagnose.hypotheses.case import Repair
from numscope.diagnose.replay.measures import relative


@dataclass(frozen=True)
class Ranks:
    """The tensors of all ranks of the target at one place, and what the reference has there on one of them."""

    parts: tuple[torch.Tensor, ...]  # what each rank holds, or gives to the collective
    given: torch.Tensor  # what the target has on this rank
    wanted: torch.Tensor  # what the reference has on this rank
    rank: int  # this rank's place in its group
    limit: float  # relative error that rounding explains
    what: str = "all_reduce"  # the collective's name

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

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is what the target has."""
        return relative(tensor, self.given) <= self.limit

    def fits(self, repair: Repair) -> bool:
        """Tell whether a repair gives what the reference has."""
        try:
            return relative(repair.output(), self.wanted) <= self.limit
        except RuntimeError:  # shapes that don't go together
            return False


Hypothesis = Callable[[Ranks], Iterator[Repair]]
NAMED: dict[str, Hypothesis] = {}


def between_ranks(name: str) -> Callable[[Hypothesis], Hypothesis]:
    """Register a hypothesis about ranks under a name; they are asked in the order in which they stand here."""

    def register(function: Hypothesis) -> Hypothesis:
        NAMED[name] = function
        return function

    return register


def fitting(case: Ranks) -> tuple[str, Repair] | None:
    """Return the name of the first hypothesis that fits, and its repair."""
    if case.size < 2 or relative(case.given, case.wanted) <= case.limit:
        return None
    for name, test in NAMED.items():
        for repair in test(case):
            if case.fits(repair):
                return name, repair
    return None


@between_ranks("missing all-reduce")
def missing_all_reduce(case: Ranks) -> Iterator[Repair]:
    """The target has its own part, the reference the sum or the mean of all."""
    if case.is_given(case.parts[case.rank]):
        yield Repair(f"the sum over {case.size} ranks (now missing: each rank keeps its own)", lambda: case.total)
        yield Repair(
            f"the mean over {case.size} ranks (now missing: each rank keeps its own)", lambda: case.total / case.size
        )


@between_ranks("doubled all-reduce")
def doubled_all_reduce(case: Ranks) -> Iterator[Repair]:
    """What goes into the target's reduction is the same on all ranks already: it has been reduced before."""
    same = all(relative(part, case.parts[0]) <= case.limit for part in case.parts)
    if same and case.is_given(case.total):
        yield Repair(
            f"the {case.what} done once (now twice: the sum is taken over {case.size} ranks that hold it already)",
            lambda: case.parts[case.rank],
        )


@between_ranks("sum for mean")
def sum_for_mean(case: Ranks) -> Iterator[Repair]:
    """The target has the sum, the reference the mean."""
    if case.is_given(case.total):
        yield Repair(
            f"the mean over {case.size} ranks (now the sum: it is {case.size} times too large)",
            lambda: case.total / case.size,
        )


@between_ranks("mean for sum")
def mean_for_sum(case: Ranks) -> Iterator[Repair]:
    """The target has the mean, the reference the sum."""
    if case.is_given(case.total / case.size):
        yield Repair(f"the sum over {case.size} ranks (now the mean: {case.size} times too small)", lambda: case.total)


@between_ranks("times N")
def times_n(case: Ranks) -> Iterator[Repair]:
    """The target is N times the reference, or an N-th of it, wherever the factor came in."""
    yield Repair(
        f"it divided by the number of ranks, {case.size} (now {case.size} times too large)",
        lambda: case.given / case.size,
    )
    yield Repair(
        f"it multiplied by the number of ranks, {case.size} (now {case.size} times too small)",
        lambda: case.given * case.size,
    )


@between_ranks("other reduction")
def other_reduction(case: Ranks) -> Iterator[Repair]:
    """Maximum, minimum or product in place of the sum, or the other way round."""
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
    now = next((word for word, made in forms.items() if case.is_given(made())), None)
    for word, made in forms.items():
        if now is not None and word != now:
            yield Repair(f"the {word} over the ranks (now the {now})", made)


@between_ranks("concatenation")
def concatenation(case: Ranks) -> Iterator[Repair]:
    """The ranks' parts are joined along another axis, or in another order, or not at all."""
    now = _joined(case.parts, case.given, case.limit)
    then = _joined(case.parts, case.wanted, case.limit)
    if then is None or then == now:
        return
    axis, order = then
    made = torch.cat([case.parts[rank] for rank in order], axis)
    words = f"the ranks' parts joined along axis {axis}, in the order {_order(order)}"
    if now is not None and now[0] == axis:
        words = f"the ranks' parts in the order {_order(order)} (now {_order(now[1])}) along axis {axis}"
    elif now is not None:
        words = f"the ranks' parts joined along axis {axis} (now along axis {now[0]})"
    elif case.is_given(case.parts[case.rank]):
        words += " (now each rank keeps its own)"
    yield Repair(words, lambda: made)


@between_ranks("permutation of shards")
def permutation(case: Ranks) -> Iterator[Repair]:
    """The reference has another rank's part, or another shard of the sum."""
    for rank, part in enumerate(case.parts):
        if rank != case.rank and part.shape == case.wanted.shape:
            yield Repair(f"the part of rank {rank} (now that of rank {case.rank})", lambda p=part: p)  # type: ignore[misc]
    for axis in range(case.total.dim()):
        if case.total.shape[axis] % case.size:
            continue
        shards = case.total.chunk(case.size, axis)
        now = next((place for place, shard in enumerate(shards) if case.is_given(shard)), None)
        for place, shard in enumerate(shards):
            if now is not None and place != now:
                words = f"shard {place} of the sum along axis {axis} (now shard {now})"
                yield Repair(words, lambda s=shard: s)  # type: ignore[misc]


def _joined(parts: Sequence[torch.Tensor], whole: torch.Tensor, limit: float) -> tuple[int, tuple[int, ...]] | None:
    """Return along which axis and in which order the parts make up a tensor; None where they don't."""
    for axis in range(whole.dim()):
        if any(part.dim() != whole.dim() for part in parts):
            return None
        order: list[int] = []
        start = 0
        while start < whole.shape[axis]:
            for rank, part in enumerate(parts):
                length = part.shape[axis]
                if rank in order or not length or start + length > whole.shape[axis]:
                    continue
                piece = whole.narrow(axis, start, length)
                if piece.shape == part.shape and relative(piece, part) <= limit:
                    order.append(rank)
                    start += length
                    break
            else:
                break
        if len(order) == len(parts) and start == whole.shape[axis]:
            return axis, tuple(order)
    return None


def _order(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
