"""Parts of two runs that were compared with nothing: steps, ranks, gradients, tensors, and whatever a run that
did not end cleanly never wrote.

INCOMPLETE: identical in the 2 of 5 steps that both have

What the user chose is no lack: the steps and ranks of the comparison, and those that a run was told to record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.coverage import GRADIENT, GradientShare, StepCoverage
from numscope.compare.steps import Place
from numscope.core.errors import SettingsError
from numscope.core.settings import numbers
from numscope.store.reader import Run
from numscope.store.rundir import CLOSED


@dataclass(frozen=True)
class Missing:
    """The parts of two runs that were compared with nothing."""

    sentences: tuple[str, ...] = ()
    within: str = ""  # "in the 2 of 5 steps that both have", where not all of both was compared
    first: str = ""  # how the target ended, which is said before anything else
    gradients: float | None = None  # the share of the gradients that was compared, by norm
    whole_steps: frozenset[int] = frozenset()  # that both runs have to their end

    def headline(self, verdict: str) -> str:
        """Return the first line of an incomplete answer; `verdict` is that of what was compared."""
        if self.within:
            text = f"{verdict} {self.within}"
        else:
            text = f"{verdict} in what was compared"
        return f"{self.first}; {text}" if self.first else text


Wanted = Callable[[int], bool]


@dataclass(frozen=True)
class _Side:
    """One of two runs, with what was asked of it."""

    label: str
    run: Run
    wants_step: Wanted  # by its own settings
    wants_rank: Wanted

    @classmethod
    def of(cls, label: str, run: Run) -> _Side:
        settings = _settings(run)
        written = {step for rank in run.ranks for step in run.written_steps(rank)}
        # A control file chose them one by one; of a run that keeps the last ones, the others were not wanted.
        chosen = any(settings.get(name) for name in ("control", "keep_last", "max_bytes"))
        steps = written if chosen else settings.get("steps")
        return cls(
            label, run, _wanted(steps, written, "steps"), _wanted(settings.get("ranks"), set(run.ranks), "ranks")
        )

    def places(self, ranks: Iterable[int]) -> set[Place]:
        """Return the steps that these ranks wrote, those that were cut off included."""
        return {Place(step, rank) for rank in ranks for step in self.run.written_steps(rank)}


def _settings(run: Run) -> dict[str, object]:
    settings = run.manifest.get("settings")
    return settings if isinstance(settings, dict) else {}


def _wanted(spec: object, there: set[int], what: str) -> Wanted:
    """Return the test that a setting stands for; of a function that chose, only what it chose is known."""
    try:
        return numbers(spec, what)
    except SettingsError:
        return there.__contains__


def missing(
    runs: tuple[Run, Run],
    results: Sequence[tuple[Place, StepCoverage]],
    steps: set[int] | None,
    ranks: set[int] | None,
    calls: tuple[int, int],
) -> Missing:
    """Return what two runs hold, or should hold, that was compared with nothing.

    `steps` and `ranks` are those that the user chose; `calls`: how many were matched, and how many the reference has.
    """
    target, reference = (_Side.of(label, run) for label, run in zip(("target", "reference"), runs))
    both = (target, reference), (reference, target)
    sentences: list[str] = []
    first, ended_in = "", set[int]()
    # Where both have the same calls in the last step of a run that crashed, it crashed at its end, or both did.
    alike = {place for place, one in results if one.same_calls}
    for one, _ in both:
        for end in _ends(one, steps, ranks, alike):
            sentences.append(end.sentence)
            ended_in |= {end.step} if end.cut_short else set()
            if one is target and end.by_exception and not first:
                first = end.sentence
    common = [rank for rank in runs[0].ranks if rank in runs[1].ranks and (ranks is None or rank in ranks)]
    lone_ranks = _lone_ranks(both, ranks, results)
    sentences += lone_ranks.sentences
    lone_steps = _lone_steps(both, common, steps)
    sentences += lone_steps.sentences
    sentences += _faults(both, [place for place, _ in results])
    whole = lone_steps.shared - ended_in
    sentences += _gradient_sentences(_shares(one for place, one in results if place.step in whole))
    sentences += _tensor_sentences(runs, [one for _, one in results])
    known = [one.share for one in _shares(one for _, one in results) if one.share is not None]
    within: list[str] = []
    if whole and whole < lone_steps.every:
        within.append(f"{len(whole)} of {len(lone_steps.every)} steps")
    elif not whole and (ended_in or lone_steps.sentences):
        within.append("{} of {} calls".format(*calls))
    if lone_ranks.sentences:
        within.append(f"{len(lone_ranks.shared)} of {len(lone_ranks.every)} ranks")
    text = f"in the {' of '.join(within)} that both have" if within else ""
    return Missing(tuple(dict.fromkeys(sentences)), text, first, min(known) if known else None, whole)


def _shares(results: Iterable[StepCoverage]) -> tuple[GradientShare, GradientShare]:
    """Return the shares of the gradients that were compared, of the target and of the reference."""
    target, reference = GradientShare(), GradientShare()
    for one in results:
        target, reference = target + one.target, reference + one.reference
    return target, reference


class _End(NamedTuple):
    """A rank that did not end as it should."""

    sentence: str
    step: int
    by_exception: bool
    cut_short: bool  # the other run has calls of that step that this one has not


def _ends(side: _Side, steps: set[int] | None, ranks: set[int] | None, alike: set[Place]) -> list[_End]:
    found: list[_End] = []
    for rank, end in side.run.ends().items():
        written, complete = side.run.written_steps(rank), side.run.rank_steps(rank)
        last = max(written, default=-1)
        if end == CLOSED or (ranks is not None and rank not in ranks):
            continue
        if steps is not None and (last not in steps or (not end and steps <= set(complete))):
            continue  # the steps that the user chose are all there
        who = f"rank {rank} of the {side.label}" if len(side.run.ranks) > 1 else f"the {side.label}"
        is_whole = last in complete and (not end or Place(last, rank) in alike)
        where = f"{'after' if is_whole else 'in'} step {last}" if last >= 0 else "before its first step was written"
        how = f"ended with {end}" if end else "was cut off, or is still running,"
        found.append(_End(f"{who} {how} {where}", last, bool(end), not is_whole))
    return found


@dataclass(frozen=True)
class _Lone:
    """Steps or ranks of one side alone, and those that both have."""

    sentences: tuple[str, ...]
    shared: frozenset[int]
    every: frozenset[int]


def _lone_steps(both: tuple[tuple[_Side, _Side], ...], common: list[int], steps: set[int] | None) -> _Lone:
    """Return the steps of the common ranks that one side alone has."""
    sentences: list[str] = []
    every: set[int] = set()
    partial: set[int] = set()
    for one, other in both:
        alone: set[int] = set()
        for place in one.places(common):
            if (steps is not None and place.step not in steps) or not other.wants_step(place.step):
                continue
            every.add(place.step)
            if place.step not in other.run.written_steps(place.rank):
                alone.add(place.step)
            elif any(place.step not in side.run.rank_steps(place.rank) for side in (one, other)):
                partial.add(place.step)
        if alone:
            sentences.append(f"only the {one.label} has {_listed('step', alone)}")
            partial |= alone
    return _Lone(tuple(sentences), frozenset(every - partial), frozenset(every))


def _lone_ranks(
    both: tuple[tuple[_Side, _Side], ...], ranks: set[int] | None, results: Sequence[tuple[Place, StepCoverage]]
) -> _Lone:
    """Return the ranks that one side alone has, or that have no folder though the job had them."""
    sentences: list[str] = []
    every: set[int] = set()
    if results and all(one.all_ranks for _, one in results):
        return _Lone((), frozenset(), frozenset())
    shared = {place.rank for place, _ in results}
    for one, other in both:
        world = int(one.run.manifest.get("world_size") or 1)
        there = {rank for rank in one.run.ranks if ranks is None or rank in ranks}
        wanted = {rank for rank in range(world) if one.wants_rank(rank) and (ranks is None or rank in ranks)}
        if gone := wanted - there:
            sentences.append(f"the {one.label} has no folder of {_listed('rank', gone)}, of {world}")
        other_world = int(other.run.manifest.get("world_size") or 1)
        # A job of another layout cannot have them; where it could, its missing folder is said.
        alone = {rank for rank in there - set(other.run.ranks) if rank >= other_world and other.wants_rank(rank)}
        copies = {rank for rank in alone if _is_copy(one.run, rank, shared, results)}
        if lone := alone - copies:
            sentences.append(
                f"{_listed('rank', lone)} of the {one.label} {'has' if len(lone) == 1 else 'have'} no counterpart"
            )
        every |= (there | gone) - copies
    return _Lone(tuple(sentences), frozenset(shared), frozenset(every | shared))


def _is_copy(run: Run, rank: int, compared: set[int], results: Sequence[tuple[Place, StepCoverage]]) -> bool:
    """Tell whether all gradients that reach a rank's optimizers are those of a rank that was compared, to the bit.

    The ranks were given parts of a batch, and what came of all parts was compared.
    """
    if not all(one.batch_parts for _, one in results):
        return False
    for step in {place.step for place, _ in results}:
        own = _optimizer_gradients(run, step, rank)
        if not own or not any(own <= _optimizer_gradients(run, step, other) for other in compared):
            return False
    return True


def _optimizer_gradients(run: Run, step: int, rank: int) -> set[int | None]:
    """Return the hashes of the gradients that the optimizers of a rank are given in a step."""
    if step not in run.written_steps(rank):
        return set()
    tables = run.step_tables(step, rank)
    steps = tables.calls.filter(pc.equal(tables.calls["kind"], "optimizer"))["order"].combine_chunks()
    given = pc.is_in(tables.slots["call"], value_set=steps.cast(tables.slots["call"].type))
    given = pc.and_(given, pc.starts_with(tables.slots["slot"].cast(pa.string()), f"{GRADIENT}."))
    numbers_of = tables.slots.filter(given)["tensor"].combine_chunks()
    rows = tables.tensors.filter(pc.is_in(tables.tensors["tensor"], value_set=numbers_of))
    return set(rows["hash"].to_pylist())


def _faults(both: tuple[tuple[_Side, _Side], ...], places: list[Place]) -> list[str]:
    counts = {one.label: sum(one.run.faults(place.step, place.rank) for place in places) for one, _ in both}
    return [
        f"{count} calls of the {label} were not recorded, or not wholly, by a fault of numscope's own"
        for label, count in counts.items()
        if count
    ]


def _gradient_sentences(shares: tuple[GradientShare, GradientShare]) -> list[str]:
    worst = min(shares, key=lambda one: 1.0 if one.share is None else one.share)
    if worst.share is None or worst.measured == worst.count or worst.share > 1.0 - 1e-9:
        return []
    return [
        f"{worst.count - worst.measured} of {worst.count} gradients were compared with nothing: they have no "
        f"counterpart of their shape ({100 * worst.share:.3g} % of all, by norm, were compared)"
    ]


def _tensor_sentences(runs: tuple[Run, Run], results: list[StepCoverage]) -> list[str]:
    if any(run.manifest.get("imported") or _structure_only(run) for run in runs):
        return []  # another tool's dump has what it has, and who keeps the structure alone chose so
    total: dict[str, int] = {}
    for one in results:
        for reason, count in one.unmeasured.items():
            total[reason] = total.get(reason, 0) + count
    return [f"{count} results could not be compared: {reason}" for reason, count in total.items()]


def _structure_only(run: Run) -> bool:
    return _settings(run).get("keep") == "structure"


def _listed(what: str, numbers_of: set[int]) -> str:
    few = sorted(numbers_of)
    text = ", ".join(map(str, few)) if len(few) <= 4 else f"{few[0]} to {few[-1]}"
    if len(few) > 4 and few[-1] - few[0] + 1 != len(few):
        text = f"{', '.join(map(str, few[:3]))} and {len(few) - 3} more"
    return f"{what} {text}" if len(few) == 1 else f"{what}s {text}"
