"""The comparison of two runs: `ns.compare(target, reference)`.

comparison = ns.compare("runs/npu", "runs/gpu")
comparison.verdict            # "diverged"
print(comparison.origin.reason)
# LayerNorm in blocks.1.ln2: inputs identical, outputs differ by 3.1e-3 (rounding explains 4e-7); argument eps …
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.cause.chain import with_chains
from numscope.compare.cause.weights import with_weights
from numscope.compare.judge import unmeasured as structure
from numscope.compare.judge.rounding.accuracy import unmeasured_chips
from numscope.compare.layouts.other_layout import ALL_RANKS, differs, whole_steps_of
from numscope.compare.losses import losses
from numscope.compare.missing import Missing, missing
from numscope.compare.ranking import ranked, told_once
from numscope.compare.resolution import report_of
from numscope.compare.run_settings import (
    SettingDifference,
    accelerators,
    differences,
    explained,
    may_explain,
)
from numscope.compare.schema import CALLS, PAIRS
from numscope.compare.spool import Rows
from numscope.compare.steps import Place, StepResult
from numscope.compare.thresholds import Thresholds
from numscope.core.errors import ComparisonError, SettingsError
from numscope.core.report import Origin, Report, Source
from numscope.core.words import Verdict
from numscope.store.reader import Run, open_run

if TYPE_CHECKING:
    from numscope.compare.align.map_file import Map

Progress = Callable[[int, int], None]
RunLike = str | os.PathLike[str] | Run
Chosen = int | Iterable[int] | None  # steps or ranks; None: all


class Coverage(TypedDict):
    """How many calls and tensors were compared, as the report has it."""

    target: int
    reference: int
    matched: int
    unmatched_target: int
    unmatched_reference: int
    tensors: int
    skipped: dict[str, int]  # how much was left out, by reason
    gradients_measured: float | None  # the share of the gradients that was compared, by norm; None where there is none
    missing: list[str]  # what a run holds, or should hold, and was compared with nothing


class Engine(Protocol):
    """Compares every (step, rank) that both runs have, in order (engines/)."""

    def __call__(
        self,
        runs: tuple[Run, Run],
        noise: list[Run],
        steps: Sequence[Place],
        mapping: Map | None,
        thresholds: Thresholds,
        progress: Progress | None,
        /,
    ) -> Iterable[StepResult]: ...


class CompareOptions(TypedDict, total=False):
    """The keyword arguments of `compare`, for the functions that pass them on."""

    noise: RunLike | Sequence[RunLike]
    map: str | os.PathLike[str] | None
    steps: Chosen
    ranks: Chosen
    thresholds: Thresholds | None
    engine: str
    progress: Progress | None
    ungrafted: RunLike | None
    allow_incomplete: bool


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: the report, and the tables it rests on."""

    report: Report
    call_rows: Rows
    pair_rows: Rows
    target: Run
    reference: Run

    @property
    def calls(self) -> pa.Table:
        """A row per pair of calls (compare.schema.CALLS)."""
        return self.call_rows.table()

    @property
    def pairs(self) -> pa.Table:
        """A row per pair of tensors (compare.schema.PAIRS)."""
        return self.pair_rows.table()

    @property
    def verdict(self) -> Verdict:
        """identical, equivalent, diverged, incomplete or incomparable."""
        return self.report.verdict

    @property
    def origin(self) -> Origin | None:
        """The first call whose output is wrong though its inputs were right."""
        return self.report.origin

    @property
    def suspects(self) -> tuple[Origin, ...]:
        """The origin and its rivals, ranked."""
        return self.report.suspects

    def __repr__(self) -> str:
        origin = self.origin
        if origin is None:
            return f"<Comparison: {self.verdict}>"
        line = f", {os.path.basename(origin.source.file)}:{origin.source.line}" if origin.source else ""
        return f"<Comparison: {self.verdict} at {origin.call}, step {origin.step}{line}>"

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it."""
        from numscope.core.notebook import report_html

        return report_html(self.report, str(self.target.path), str(self.reference.path))


def compare(
    target: RunLike,
    reference: RunLike,
    *,
    noise: RunLike | Sequence[RunLike] = (),
    map: str | os.PathLike[str] | None = None,
    steps: Chosen = None,
    ranks: Chosen = None,
    thresholds: Thresholds | None = None,
    engine: str = "local",
    progress: Progress | None = None,
    ungrafted: RunLike | None = None,
    allow_incomplete: bool = False,
) -> Comparison:
    """Align, measure and judge two runs; `noise` are runs of the reference that differ from it by rounding alone.

    Where something that a run holds, or should hold, was compared with nothing, the verdict is `incomplete` unless the
    rest diverges; with `allow_incomplete` it is the verdict of the rest.
    Where the target was captured under a graft, the report says how much of the final error that removed: against
    `ungrafted`, the target without the graft, or the run of the same job that lies beside it.
    """
    runs = (_run(target), _run(reference))
    given = noise if isinstance(noise, Sequence) and not isinstance(noise, str) else (noise,)
    quiet = [_run(run) for run in given]
    thresholds = thresholds or Thresholds()
    pairs_of = _common(runs, steps, ranks)
    if not pairs_of.both:
        return _nothing(runs, pairs_of)
    mapping = None
    if map is not None:
        from numscope.compare.align.map_file import load_map

        mapping = load_map(map)
    job = _engine(engine)
    results = job(runs, quiet, pairs_of.both, mapping, thresholds, progress)
    found = _assemble(runs, pairs_of, results, thresholds, allow_incomplete)
    if not runs[0].manifest.get("grafts"):
        return found
    from numscope.compare import grafted

    without = _run(ungrafted) if ungrafted is not None else grafted.ungrafted_of(*runs)
    baseline = None
    if without is not None:
        baseline = compare(
            without,
            runs[1],
            map=map,
            steps=steps,
            ranks=ranks,
            thresholds=thresholds,
            engine=engine,
            allow_incomplete=True,
        )
    details = {**found.report.details, "graft": grafted.details(found, baseline)}
    return replace(found, report=replace(found.report, details=details))


def _run(run: RunLike) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def _engine(name: str) -> Engine:
    if name == "local":
        from numscope.compare.engines.local import compare_all

        return compare_all
    if name == "ray":
        from numscope.compare.engines.ray import compare_all as on_a_cluster

        return on_a_cluster
    raise SettingsError(f"there is no engine {name!r}: there are local and ray")


@dataclass(frozen=True)
class _Common:
    both: list[Place]
    skipped: dict[str, int]
    steps: set[int] | None  # that the user chose
    ranks: set[int] | None


def _chosen(wanted: Chosen) -> set[int] | None:
    if wanted is None:
        return None
    return {wanted} if isinstance(wanted, int) else set(wanted)


def _common(runs: tuple[Run, Run], steps: Chosen, ranks: Chosen) -> _Common:
    """Return the steps and ranks that both runs have, steps first; the others are counted."""
    only_steps, only_ranks = _chosen(steps), _chosen(ranks)
    if only_ranks is None and differs(runs):
        return _of_all_ranks(runs, only_steps)
    in_target, in_reference = (_places(run, only_steps, only_ranks) for run in runs)
    skipped = {}
    for label, own, others in (("target", in_target, in_reference), ("reference", in_reference, in_target)):
        if alone := len(own - others):
            what = "steps of ranks" if any(len(run.ranks) > 1 for run in runs) else "steps"
            skipped[f"{what} that only the {label} has"] = alone
    for label, run in zip(("target", "reference"), runs):
        for reason, count in run.skipped().items():
            skipped[f"{label}: {reason}"] = count
    return _Common(sorted(in_target & in_reference), skipped, only_steps, only_ranks)


def _of_all_ranks(runs: tuple[Run, Run], chosen: set[int] | None) -> _Common:
    """Return the steps that all ranks of both runs completed, each as one place."""
    target, reference = (whole_steps_of(run) for run in runs)
    skipped = {}
    for label, alone in (("target", target - reference), ("reference", reference - target)):
        if count := len({step for step in alone if chosen is None or step in chosen}):
            skipped[f"steps that only the {label} has"] = count
    for label, run in zip(("target", "reference"), runs):
        for reason, count in run.skipped().items():
            skipped[f"{label}: {reason}"] = count
    both = [Place(step, ALL_RANKS) for step in sorted(target & reference) if chosen is None or step in chosen]
    return _Common(both, skipped, chosen, None)


def _places(run: Run, steps: set[int] | None, ranks: set[int] | None) -> set[Place]:
    """Return the chosen steps and ranks that a run has, those that were not completed included."""
    there = {Place(step, rank) for rank in run.ranks for step in run.rank_steps(rank)}
    there |= {Place(step, rank) for rank, step in run.incomplete}
    return {one for one in there if (steps is None or one.step in steps) and (ranks is None or one.rank in ranks)}


def _nothing(runs: tuple[Run, Run], common: _Common) -> Comparison:
    asked = [
        f"{what} {', '.join(map(str, sorted(chosen)))}"
        for what, chosen in (("step", common.steps), ("rank", common.ranks))
        if chosen
    ]
    reason = f"{' of '.join(asked)} is not in both runs" if asked else "no step of a rank is in both"
    reason += (
        f": the target has steps {list(runs[0].steps)} of ranks {runs[0].ranks}, "
        f"the reference {list(runs[1].steps)} of {runs[1].ranks}"
    )
    coverage = _coverage([], common, 0, Missing())
    report = Report("incomparable", reason=reason, coverage=dict(coverage), counts=_counts(Rows(CALLS)))
    return Comparison(report, Rows(CALLS), Rows(PAIRS), *runs)


def _assemble(
    runs: tuple[Run, Run],
    common: _Common,
    steps: Iterable[StepResult],
    thresholds: Thresholds,
    allow_incomplete: bool,
) -> Comparison:
    calls, pairs, results = Rows(CALLS), Rows(PAIRS), []
    for result in steps:
        pairs.add(_shift(result.pairs, calls.num_rows, ("pair",)))
        calls.add(_shift(result.calls, calls.num_rows, ("pair", "parent")))
        results.append(replace(result, calls=None, pairs=None))  # a long run's tables don't fit into memory
        del result
    calls.end()
    pairs.end()
    suspects = ranked([one for result in results for one in result.origins]) or _beyond(calls, thresholds)
    suspects = with_chains(suspects, *runs, _MOST_CHAINS)
    settings = differences(runs[0].manifest, runs[1].manifest)
    suspects = with_weights(_explained(suspects, pairs, settings), *runs)
    lacking = _missing(runs, common, results)
    counts, coverage = _counts(calls), _coverage(results, common, pairs.num_rows, lacking)
    reason = ""
    details: dict[str, object] = {}
    verdict: Verdict
    if not coverage["matched"]:
        verdict, reason = "incomparable", _why_nothing_matched(results)
    elif suspects:
        verdict, reason = "diverged", suspects[0].reason
    elif thresholds.max_unmatched is not None and _alone(coverage) > thresholds.max_unmatched:
        verdict, reason = (
            "diverged",
            f"{_alone(coverage)} calls are on one side only, and the limit is {thresholds.max_unmatched}",
        )
    elif not sum(result.measured for result in results):
        found = structure.merged(result.structure for result in results)
        verdict, reason = "incomparable", "no tensor has a fingerprint in both runs: capture with keep='stats' or more"
        reason += f"; {structure.sentence(found)}"
        details = {"structure": structure.details(found)}
    elif all(result.identical for result in results) and not _alone(coverage):
        verdict, reason = "identical", "every matched tensor is the same to the bit"
    else:
        verdict, reason = "equivalent", _equivalence(results, coverage)
    incomplete = bool(lacking.sentences) and verdict in ("identical", "equivalent")
    if choices := [one.to_dict() for result in results for one in result.choices]:
        details["choices"] = choices[:_MOST_CHOICES]
    if rearranged := told_once([one for result in results for one in result.rearranged]):
        details["rearranged"] = [one.reason for one in rearranged[:_MOST_CHOICES]]
    if known := losses(calls, pairs):
        details["losses"] = [one.to_dict() for one in known]
    conditions = _conditions(results)
    if conditions is not None and verdict in ("equivalent", "diverged"):
        details["conditions"] = conditions.details
        reason += f"; {conditions.sentence}" if verdict == "equivalent" else ""
    if incomplete:
        whole = [result for result in results if result.step in lacking.whole_steps]
        same = all(result.identical for result in results) and not any(result.alone for result in whole)
        word = "identical" if same else "equivalent"
        rest = "; ".join(one for one in lacking.sentences if one != lacking.first)
        details["rest"] = {"verdict": verdict, "reason": reason, "headline": lacking.headline(word)}
        if not allow_incomplete:
            verdict, reason = "incomplete", "; ".join(part for part in (lacking.headline(word), rest, reason) if part)
    resolution = report_of([result.resolution for result in results], verdict in ("equivalent", "incomplete"))
    if resolution is not None and (chips := unmeasured_chips(accelerators(*(run.manifest for run in runs)))):
        resolution["unmeasured"] = list(chips)
        if "sentence" in resolution:
            resolution["sentence"] += (
                f"; how {', '.join(chips)} rounds was not measured: theory and siblings decide "
                "(`numscope doctor --measure` there, in a minute)"
            )
    report = Report(
        verdict,
        origin=suspects[0] if suspects and verdict == "diverged" else None,
        suspects=tuple(suspects) if verdict == "diverged" else (),
        prefix=_prefix(calls),
        coverage=dict(coverage),
        counts=counts,
        reason=reason,
        resolution=resolution,
        settings=tuple(one.to_dict() for one in settings),
        details=details,
    )
    return Comparison(report, calls, pairs, *runs)


def _explained(suspects: list[Origin], pairs: Rows, settings: tuple[SettingDifference, ...]) -> list[Origin]:
    """Return the suspects, each with the setting that explains it where one does."""
    if not suspects or not may_explain(settings):
        return suspects
    names = pa.array([f"{one.call}.output.0" for one in suspects])
    dtypes: dict[str, str] = {}
    for part in pairs.batches(["target_name", "target_dtype"]):
        of_suspects = part.filter(pc.is_in(part["target_name"], value_set=names)).to_pylist()
        dtypes.update({row["target_name"]: row["target_dtype"] for row in of_suspects})
    return [explained(one, dtypes.get(f"{one.call}.output.0", ""), settings) for one in suspects]


def _shift(table: pa.Table, offset: int, columns: tuple[str, ...]) -> pa.Table:
    for name in columns if offset else ():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pc.add(table[name], pa.scalar(offset, pa.int32())))
    return table


def _beyond(calls: Rows, thresholds: Thresholds) -> list[Origin]:
    """Return the first call whose error is beyond the user's own limit, as an origin."""
    if thresholds.max_relative is None:
        return []
    chosen = (part.filter(pc.greater(part["error_out"], thresholds.max_relative)) for part in calls.batches())
    first = next((part.slice(0, 1) for part in chosen if part.num_rows), CALLS.empty_table())
    return [
        Origin(
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
        for row in first.to_pylist()
    ]


_MOST_CHAINS = 5  # suspects whose causes are looked for
_MOST_CHOICES = 50  # that a report lists


def _counts(calls: Rows) -> dict[str, int]:
    counts = dict.fromkeys(("identical", "equivalent", "origin", "inherited", "unmatched"), 0)
    for part in calls.batches(["verdict"]):
        for entry in pc.value_counts(pc.drop_null(part["verdict"])).to_pylist():
            counts[entry["values"]] += entry["counts"]
    return counts


def _missing(runs: tuple[Run, Run], common: _Common, results: list[StepResult]) -> Missing:
    seen = [(Place(result.step, result.rank), result.coverage) for result in results]
    calls = (sum(result.matched for result in results), sum(result.reference_calls for result in results))
    return missing(runs, seen, common.steps, common.ranks, calls)


def _coverage(results: list[StepResult], common: _Common, tensors: int, lacking: Missing) -> Coverage:
    skipped = dict(common.skipped)
    for result in results:
        for reason, count in result.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    return {
        "target": sum(result.target_calls for result in results),
        "reference": sum(result.reference_calls for result in results),
        "matched": sum(result.matched for result in results),
        "unmatched_target": sum(result.alone_target for result in results),
        "unmatched_reference": sum(result.alone_reference for result in results),
        "tensors": tensors,
        "skipped": skipped,
        "gradients_measured": lacking.gradients,
        "missing": list(lacking.sentences),
    }


def _alone(coverage: Coverage) -> int:
    return coverage["unmatched_target"] + coverage["unmatched_reference"]


def _why_nothing_matched(results: list[StepResult]) -> str:
    if not any(result.target_calls for result in results) or not any(result.reference_calls for result in results):
        return "one of the runs recorded no calls: was capture on, and did its scope match anything?"
    return "no call of the target could be matched with one of the reference: a map file (--map) can say which belong together"


class _Conditions(NamedTuple):
    """The conditions under which two runs that are not of one kind were compared: precisions, loss scales."""

    parts: dict[str, object]
    sentence: str

    @property
    def details(self) -> dict[str, object]:
        return {**self.parts, "sentence": self.sentence}


def _conditions(results: list[StepResult]) -> _Conditions | None:
    """Return the conditions under which the runs were compared, None where they are of one kind."""
    parts: dict[str, object] = {}
    sentences = []
    two = next((result.precisions for result in results if result.precisions is not None), None)
    if two is not None:
        parts["precisions"] = {"target": two.target, "reference": two.reference}
        sentences.append(two.sentence())
    mine, theirs = next((result.scales for result in results if result.scales != (1.0, 1.0)), (1.0, 1.0))
    if mine != 1.0 or theirs != 1.0:
        parts["loss_scales"] = {"target": mine, "reference": theirs}
        sentences.append(f"gradients are compared without the loss scale ({mine:g} against {theirs:g})")
    return _Conditions(parts, "; ".join(sentences)) if parts else None


def _equivalence(results: list[StepResult], coverage: Coverage) -> str:
    worst = max((result.worst for result in results), default=0.0)
    text = f"all differences are within what rounding explains (the largest: {worst:.2g})"
    if alone := _alone(coverage):
        text += f"; {alone} calls are on one side only, without effect on what the others compute"
    if settings := list(dict.fromkeys(one for result in results for one in result.settings)):
        text += f"; settings that differ, without an effect that shows: {', '.join(settings[:3])}"
    if choices := [one for result in results for one in result.choices]:
        more = f", and {len(choices) - 1} more calls" if len(choices) > 1 else ""
        text += f"; choices fell otherwise by rounding ({choices[0]}{more})"
    if parts := next((result.batch_shapes for result in results if result.batch_shapes), ""):
        text += f"; the runs are given parts of other sizes of a batch ({parts}): what comes of all parts was compared"
    if any(result.coverage.all_ranks for result in results):
        text += (
            "; the ranks' tensors were put together as fits the other run, those that are cut by their statistics alone"
        )
    return text


def _prefix(calls: Rows) -> dict[str, object]:
    """Return how many leading calls are the same to the bit; those of a rank's step run before those of the next.

    A call with inner calls ends after them: it is no obstacle to the calls before the first inner one that differs.
    """
    same, outer = np.zeros(calls.num_rows, np.bool_), np.zeros(calls.num_rows, np.bool_)
    begin = 0
    for part in calls.batches(["verdict", "parent"]):
        same[begin : begin + part.num_rows] = pc.fill_null(pc.equal(part["verdict"], "identical"), False).to_numpy()
        outer[pc.drop_null(part["parent"]).to_numpy()] = True
        begin += part.num_rows
    stops = np.flatnonzero(~same & ~outer)
    if not len(stops):
        stops = np.flatnonzero(~same)
    before = np.flatnonzero(same[: stops[0]] if len(stops) else same)
    return {"calls": len(before), "last": _name(calls, int(before[-1])) if len(before) else None}


def _name(calls: Rows, row: int) -> str | None:
    for part in calls.batches(["target_name"]):
        if row < part.num_rows:
            name: str | None = part["target_name"][row].as_py()
            return name
        row -= part.num_rows
    return None


def check(comparison: Comparison) -> None:
    """Raise where two runs could not be compared at all."""
    if comparison.verdict == "incomparable":
        raise ComparisonError(comparison.report.reason)
