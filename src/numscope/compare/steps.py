"""One step of one rank of two runs: load, align, measure, judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.compare.align.alignment import Alignment, align
from numscope.compare.align.slots import OUTPUT, SlotPairs, pair_slots
from numscope.compare.coverage import StepCoverage, step_coverage
from numscope.compare.judge.findings import Finding, History, Weight
from numscope.compare.judge.origins import origin
from numscope.compare.judge.other_ranks import OtherRanks
from numscope.compare.judge.rounding.choices import Choice
from numscope.compare.judge.rounding.precisions import Precisions, precisions
from numscope.compare.judge.unmeasured import StructureDifferences, structure_differences
from numscope.compare.judge.walk import Judgement, judge
from numscope.compare.layouts.fitting import fit
from numscope.compare.layouts.other_layout import ALL_RANKS
from numscope.compare.layouts.rank_facts import with_other_arguments, without_layout
from numscope.compare.layouts.unseen import unseen_errors
from numscope.compare.layouts.whole_step import WholeStep, whole_steps
from numscope.compare.load import frameworks
from numscope.compare.load.loss_scale import without_scale
from numscope.compare.load.path_prefixes import without_prefixes
from numscope.compare.load.side import Codebook, Floats, Side, load
from numscope.compare.load.sources import Sources
from numscope.compare.load.workspaces import without_workspaces
from numscope.compare.losses import Loss, loss
from numscope.compare.measure.mapped_layouts import LaidOut, Loader
from numscope.compare.measure.measures import Layouts, Measures, measure
from numscope.compare.resolution import StepResolution, call_limits, step_resolution
from numscope.compare.run_settings import chips
from numscope.compare.tables import ExplainedDifferences, calls_table, explained_differences, pairs_table
from numscope.compare.thresholds import Thresholds
from numscope.core.report import Origin, Source
from numscope.store.reader import Run, StepTables

if TYPE_CHECKING:
    from numscope.compare.align.map_file import Map

MOST_CHOICES = 50  # that a report lists


class Place(NamedTuple):
    """A step of a rank, or of all ranks as one (`ALL_RANKS`)."""

    step: int
    rank: int


@dataclass(frozen=True)
class PlacedOrigin:
    """An origin with its place in the order of the step."""

    origin: Origin
    order: float
    weight: Weight


@dataclass(frozen=True)
class Prefix:
    """How many leading calls of a step are the same to the bit, and the last of them."""

    calls: int = 0
    last: str | None = None
    stopped: bool = False  # by a call that is not


@dataclass(frozen=True)
class StepSummary:
    """One step of one rank in numbers: what a report needs of it besides its tables and its origins."""

    step: int
    rank: int
    target_calls: int
    reference_calls: int
    matched: int
    alone_target: int
    alone_reference: int
    tensors: int  # that were compared
    measured: int
    identical: bool
    differences: ExplainedDifferences
    counts: dict[str, int]  # of calls, by verdict
    prefix: Prefix  # a call around others is no obstacle to those before the first inner one that differs
    outer_prefix: Prefix  # where only calls around others differ
    skipped: dict[str, int]
    precisions: Precisions | None
    scales: tuple[float, float]
    settings: tuple[str, ...]  # of optimizers, that differ
    batch_shapes: str  # the shapes of the data, where these are parts of other sizes of a batch
    coverage: StepCoverage
    resolution: StepResolution
    loss: Loss | None
    choices: tuple[Choice, ...] = ()  # that fell otherwise, by rounding; the first of them
    choice_count: int = 0
    structure: StructureDifferences | None = None  # in place of measures, where there are none

    @property
    def alone(self) -> int:
        """How many calls one side alone has."""
        return self.alone_target + self.alone_reference


@dataclass(frozen=True)
class StepResult:
    """The result of one step of one rank."""

    calls: pa.Table
    pairs: pa.Table
    origins: list[PlacedOrigin]
    rearranged: list[PlacedOrigin]  # calls that do the same in another way: no origins
    beyond: Origin | None  # the first call whose error is beyond the user's own limit
    summary: StepSummary


def load_side(run: Run, step: int, rank: int, book: Codebook, other: Run | None = None) -> Side:
    """Return one step of one rank of a run, as it compares with the other run."""
    if other is not None and frameworks.differ(run, other):
        tables = frameworks.in_common(run, other, step, rank)
    else:
        tables = run.step_tables(step, rank)
    if other is not None and run.manifest.get("hash") and run.manifest["hash"] != other.manifest.get("hash"):
        place = tables.tensors.schema.get_field_index("hash")  # another tool's hash: it tells nothing about ours
        hashes = pa.nulls(tables.tensors.num_rows, pa.uint64())
        tables = StepTables(tables.calls, tables.slots, tables.tensors.set_column(place, "hash", hashes))
    return without_workspaces(load(tables, step, rank, book, run.checks(rank, step)))


@dataclass(frozen=True)
class Measured:
    """One step of one rank, aligned and measured: all that does not need to know the steps before it."""

    a: Side
    b: Side
    alignment: Alignment
    slots: SlotPairs
    measures: Measures
    noise: Floats | None
    scales: tuple[float, float]  # of the two losses, taken off the gradients


def measure_step(runs: tuple[Run, Run], noise: list[Run], step: int, rank: int, mapping: Map | None) -> Measured:
    """Load, align and measure one step of one rank."""
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values here
        book = Codebook()
        if rank == ALL_RANKS:
            return _measure_whole(runs, step, mapping, book)
        a, b = (load_side(run, step, rank, book, other) for run, other in (runs, runs[::-1]))
        a, b, scales = without_scale(*without_prefixes(a, b))
        alignment = align(a, b, mapping.pairs(a, b) if mapping is not None else ())
        slots = pair_slots(a, b, alignment)
        layouts = _layouts(runs[0], a, alignment, slots, mapping)
        measures = measure(a, b, slots.a, slots.b, _loader(runs, a, b, rank), layouts)
        return Measured(a, b, alignment, slots, measures, _noise(noise, b, alignment, step, rank, book), scales)


def _measure_whole(runs: tuple[Run, Run], step: int, mapping: Map | None, book: Codebook) -> Measured:
    """Align and measure one step of two jobs, with the tensors of all their ranks whole."""
    target, reference = (
        [load_side(run, step, rank, book, other) for rank in run.ranks] for run, other in (runs, runs[::-1])
    )
    a, b = without_prefixes(*whole_steps(target, reference))
    alignment = without_layout(a, align(a, b, mapping.pairs(a, b) if mapping is not None else ()))
    slots = pair_slots(a, b, alignment)
    if not (isinstance(a, WholeStep) and isinstance(b, WholeStep)):
        raise TypeError("paths without prefixes are those of another step")
    a, b, slots = fit(a, b, alignment, slots)
    measures = measure(a, b, slots.a, slots.b)
    summands = np.maximum(a.summands[measures.a], b.summands[measures.b])
    kept = np.where(summands > 0, np.minimum(1.0, b.tensors.l2[measures.b] / summands), 1.0)
    measures = replace(measures, error=measures.error * kept)
    measures = replace(measures, unseen=unseen_errors(a, b, alignment, slots, measures))
    a, b = with_other_arguments(a, b, alignment, slots, measures)
    return Measured(a, b, alignment, slots, measures, None, (1.0, 1.0))


def judge_step(runs: tuple[Run, Run], found: Measured, thresholds: Thresholds, history: History) -> StepResult:
    """Judge one step of one rank by its measures and by what the steps before it showed."""
    with np.errstate(all="ignore"):
        return _judge_step(runs, found, thresholds, history)


def _judge_step(runs: tuple[Run, Run], measured: Measured, thresholds: Thresholds, history: History) -> StepResult:
    a, b, alignment, slots, measures = measured.a, measured.b, measured.alignment, measured.slots, measured.measures
    step, rank = a.step, a.rank
    if not history.started:  # the first step tells for all
        history.precisions = precisions(a, b, alignment, slots)
        history.two_frameworks = frameworks.differ(*runs)
        history.chips = chips(*(run.manifest for run in runs))
    is_whole = isinstance(a, WholeStep)
    other_ranks = None if is_whole else OtherRanks(runs, step, rank)
    judgement = judge(a, b, alignment, slots, measures, history, measured.noise, thresholds.scale, other_ranks)
    target, reference = runs
    sources = (Sources(target, rank), Sources(reference, rank))
    if is_whole:
        sources = (Sources.of_all_ranks(target), Sources.of_all_ranks(reference))
        judgement = replace(judgement, findings=[_on_its_rank(found, a, b) for found in judgement.findings])
    origins = [
        PlacedOrigin(found.ready or origin(found, a, b, sources), found.order, found.weight)
        for found in judgement.findings
    ]
    for remembered in (history.state_changes, history.late_writes):
        for label, kept in remembered.items():
            if kept.ready is None:  # its rows mean nothing in later steps: put it into words now
                remembered[label] = replace(kept, ready=origin(kept, a, b, sources))
    for found, placed in zip(judgement.findings, origins):
        if found.pair >= 0 and found.ready is None and found.weight != Weight.AFTER_ANOTHER:
            judgement.reasons[found.pair] = placed.origin.reason
    calls, rows = calls_table(a, b, alignment, judgement, sources, 0)
    limits = call_limits(alignment, slots, measures, judgement, a.calls.children[alignment.target])
    pairs = pairs_table(a, b, alignment, slots, measures, judgement, rows, limits)
    count = int(measures.known.sum())
    same, outer = _prefixes(calls)
    summary = StepSummary(
        step=step,
        rank=rank,
        target_calls=len(a.calls),
        reference_calls=len(b.calls),
        matched=len(alignment.target),
        alone_target=len(alignment.alone_target),
        alone_reference=len(alignment.alone_reference),
        tensors=pairs.num_rows,
        measured=count,
        identical=bool(measures.bitwise.all()) and not len(slots.alone_a) and not len(slots.alone_b),
        differences=explained_differences(pairs),
        counts={one["values"]: one["counts"] for one in pc.value_counts(pc.drop_null(calls["verdict"])).to_pylist()},
        prefix=same,
        outer_prefix=outer,
        skipped=_not_compared(alignment, judgement),
        precisions=history.precisions,
        scales=measured.scales,
        settings=_settings(a, alignment, judgement),
        batch_shapes=judgement.batch_shapes,
        resolution=step_resolution(a, alignment, slots, limits, judgement),
        coverage=replace(
            step_coverage(a, b, alignment, slots, measures, bool(judgement.batch_shapes)), all_ranks=is_whole
        ),
        loss=loss(calls, pairs),
        choices=tuple(judgement.choices[:MOST_CHOICES]),
        choice_count=len(judgement.choices),
        structure=structure_differences(a, b, alignment, slots, judgement.differences, sources) if not count else None,
    )
    rearranged = [PlacedOrigin(origin(one, a, b, sources), one.order, one.weight) for one in judgement.rearranged]
    return StepResult(calls, pairs, origins, rearranged, _beyond(calls, thresholds), summary)


def _prefixes(calls: pa.Table) -> tuple[Prefix, Prefix]:
    """Return how many leading calls are the same to the bit, as far as the first that differs and has no inner calls, or any.

    A call with inner calls ends after them: it is no obstacle to the calls before the first inner one that differs.
    """
    same = np.asarray(pc.fill_null(pc.equal(calls["verdict"], "identical"), False).to_numpy())
    outer = np.zeros(len(same), np.bool_)
    outer[pc.drop_null(calls["parent"]).to_numpy()] = True
    found = []
    for stops in (np.flatnonzero(~same & ~outer), np.flatnonzero(~same)):
        before = np.flatnonzero(same[: stops[0]] if len(stops) else same)
        last = calls["target_name"][int(before[-1])].as_py() if len(before) else None
        found.append(Prefix(len(before), last, bool(len(stops))))
    return found[0], found[1]


def _beyond(calls: pa.Table, thresholds: Thresholds) -> Origin | None:
    """Return the first call whose error is beyond the user's own limit, as an origin."""
    if thresholds.max_relative is None:
        return None
    for row in calls.filter(pc.greater(calls["error_out"], thresholds.max_relative)).slice(0, 1).to_pylist():
        return Origin(
            call=row["target_name"],
            kind=row["kind"] if row["kind"] in ("module", "api", "aten", "collective", "optimizer", "data") else "api",
            phase=row["phase"],
            step=row["step"],
            rank=row["rank"],
            module=row["module"] or "",
            source=Source(row["source_file"], row["source_line"] or 0) if row["source_file"] else None,
            reason=f"{row['target_name']} is off by {row['error_out']:.2g}, and the limit is {thresholds.max_relative:g}",
            relative=row["error_out"],
            expected=row["expected"],
        )
    return None


def _on_its_rank(found: Finding, a: Side, b: Side) -> Finding:
    """Return a finding with the rank on which the call, or the tensor that is off, is unlike the others'."""
    side, row = found.call(a, b)
    if not isinstance(side, WholeStep) or found.ready is not None:
        return found
    return replace(found, rank=side.blamed_rank(row, found.slot))


def _settings(a: Side, alignment: Alignment, judgement: Judgement) -> tuple[str, ...]:
    """Return the settings in which paired optimizers differ, in words."""
    optimizers = a.calls.kind[alignment.target] == a.book.code("optimizer")
    settings: list[str] = []
    for pair, differences in judgement.differences.items():
        if optimizers[pair]:
            _, name, *_ = a.calls.name(int(alignment.target[pair])).split(".")
            settings += [f"{name} {difference}" for difference in differences if difference.telling]
    return tuple(settings)


def _not_compared(alignment: Alignment, judgement: Judgement) -> dict[str, int]:
    counts = {
        "recomputed by a checkpoint on one side only": len(alignment.repeats_target) + len(alignment.repeats_reference),
        "calls of which nothing was measured": int(judgement.unmeasured.sum()),
    }
    return {reason: count for reason, count in counts.items() if count}


def _loader(runs: tuple[Run, Run], a: Side, b: Side, rank: int) -> Loader | None:
    if not all((side.tensors.kept | side.tensors.sampled).any() for side in (a, b)):
        return None
    target, reference = runs

    def read(run: Run, side: Side, row: int) -> NDArray[np.generic]:
        words = side.book.words
        text = words[side.tensors.shape[row]]
        shape = tuple(int(part) for part in text.split(",")) if text else ()
        form = None if side.tensors.sampled[row] else shape  # a sample is a row
        return run.array(rank, side.tensors.shard[row], side.tensors.key[row], words[side.tensors.dtype[row]], form)

    def both(t: int, r: int) -> tuple[NDArray[np.generic], NDArray[np.generic]] | None:
        return read(target, a, t), read(reference, b, r)

    return both


def _layouts(run: Run, a: Side, alignment: Alignment, slots: SlotPairs, mapping: Map | None) -> Layouts:
    """Return how to bring each of the target's tensors, that the map file names, into the reference's layout."""
    found: Layouts = {}
    if mapping is None or not mapping.layouts:
        return found
    words = a.book.words
    for pair, slot, tensor in zip(slots.pair.tolist(), slots.slot.tolist(), slots.a.tolist()):
        rule = mapping.layout(f"{a.calls.name(int(alignment.target[pair]))}.{words[slot]}")
        if rule is not None:
            apply = partial(rule.apply, fetch=partial(run.tensor, step=a.step, rank=a.rank))
            names = rule.concat.others if rule.concat is not None else ()
            found[tensor] = LaidOut(apply, _rows_named(a, names), rule.split is not None)
    return found


def _rows_named(side: Side, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the rows of the tensors of these names, None where one is not in this step."""
    if not names:
        return ()
    words = side.book.words
    by_name = {
        f"{side.calls.name(int(call))}.{words[slot]}": int(tensor)
        for call, slot, tensor in zip(side.slots.call, side.slots.slot, side.slots.tensor)
        if tensor >= 0
    }
    rows = [by_name.get(name) for name in names]
    return tuple(row for row in rows if row is not None) if None not in rows else None


def _noise(
    noise: list[Run], reference: Side, alignment: Alignment, step: int, rank: int, book: Codebook
) -> Floats | None:
    """Return the largest output error that the noise runs show at each pair's reference call."""
    if not noise:
        return None
    worst = np.zeros(len(reference.calls))
    for run in noise:
        if rank not in run.ranks or step not in run.rank_steps(rank):
            continue
        other = load_side(run, step, rank, book)
        pairing = align(other, reference)
        slots = pair_slots(other, reference, pairing)
        measures = measure(other, reference, slots.a, slots.b)
        error = np.where(slots.role == OUTPUT, measures.error[measures.row_of], 0.0)
        np.fmax.at(worst, pairing.reference[slots.pair], np.nan_to_num(error, posinf=0.0))
    return worst[alignment.reference]
