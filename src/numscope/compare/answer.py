"""The report of a comparison, from its results: one pass over the summaries of its places, in order.

What it holds does not grow with the number of calls, and with the number of places by a few hundred bytes each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.cause.chain import with_chains
from numscope.compare.cause.weights import with_weights
from numscope.compare.coverage import StepCoverage
from numscope.compare.judge import unmeasured as structure
from numscope.compare.judge.rounding.accuracy import unmeasured_chips
from numscope.compare.judge.rounding.choices import Choice
from numscope.compare.judge.rounding.precisions import Precisions
from numscope.compare.judge.unmeasured import StructureDifferences
from numscope.compare.losses import Loss, of_each_step
from numscope.compare.missing import Missing, missing
from numscope.compare.parts.results import Results
from numscope.compare.parts.rows import Rows
from numscope.compare.places import Common
from numscope.compare.ranking import ranked, told_once
from numscope.compare.resolution import StepResolution, joined, report_of
from numscope.compare.run_settings import (
    SettingDifference,
    accelerators,
    differences,
    explained,
    may_explain,
)
from numscope.compare.steps import MOST_CHOICES, Place, Prefix, StepSummary
from numscope.compare.thresholds import Thresholds
from numscope.core.report import Origin, Report
from numscope.core.words import Verdict
from numscope.store.reader import Run

_MOST_CHAINS = 5  # suspects whose causes are looked for


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


@dataclass
class _Whole:
    """All places of a comparison as one."""

    target_calls: int = 0
    reference_calls: int = 0
    matched: int = 0
    alone_target: int = 0
    alone_reference: int = 0
    tensors: int = 0
    measured: int = 0
    identical: bool = True
    largest: float = 0.0  # difference in the table of those without a reason beside them
    larger: int = 0  # pairs of tensors that differ by more, for the reason beside them
    all_ranks: bool = False
    batch_shapes: str = ""
    precisions: Precisions | None = None
    scales: tuple[float, float] = (1.0, 1.0)
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    settings: dict[str, None] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)  # the first of them
    choice_count: int = 0
    steps_with_lone_calls: set[int] = field(default_factory=set)
    losses: list[Loss] = field(default_factory=list)
    structure: StructureDifferences = field(default_factory=lambda: structure.merged([]))
    resolution: StepResolution = field(default_factory=StepResolution)
    coverage: list[tuple[Place, StepCoverage]] = field(default_factory=list)
    prefix: Prefix = field(default_factory=Prefix)
    outer_prefix: Prefix = field(default_factory=Prefix)

    def add(self, one: StepSummary) -> None:
        """Add the next place."""
        for name in (
            "target_calls",
            "reference_calls",
            "matched",
            "alone_target",
            "alone_reference",
            "tensors",
            "measured",
            "choice_count",
        ):
            setattr(self, name, getattr(self, name) + getattr(one, name))
        self.identical &= one.identical
        self.largest = max(self.largest, one.differences.largest)
        self.larger += one.differences.larger
        self.all_ranks |= one.coverage.all_ranks
        self.batch_shapes = self.batch_shapes or one.batch_shapes
        self.precisions = self.precisions or one.precisions
        self.scales = self.scales if self.scales != (1.0, 1.0) else one.scales
        self.counts.update(one.counts)
        self.skipped.update(one.skipped)
        self.settings.update(dict.fromkeys(one.settings))
        self.choices += one.choices[: MOST_CHOICES - len(self.choices)]
        if one.alone:
            self.steps_with_lone_calls.add(one.step)
        self.losses += [one.loss] if one.loss is not None else []
        self.structure = structure.merged([self.structure, one.structure])
        self.resolution = joined([self.resolution, one.resolution])
        self.coverage.append((Place(one.step, one.rank), one.coverage))
        self.prefix, self.outer_prefix = (
            _longer(self.prefix, one.prefix),
            _longer(self.outer_prefix, one.outer_prefix),
        )

    def lone(self) -> int:
        """Return how many calls one side alone has."""
        return self.alone_target + self.alone_reference


def _longer(before: Prefix, then: Prefix) -> Prefix:
    """Return the leading calls that are the same, of two places of which one runs before the other."""
    if before.stopped:
        return before
    return Prefix(before.calls + then.calls, then.last if then.last is not None else before.last, then.stopped)


def report(
    runs: tuple[Run, Run], common: Common, results: Results, thresholds: Thresholds, allow_incomplete: bool
) -> Report:
    """Return the report of a comparison that is at its end."""
    whole = _Whole()
    for one in results.summaries():
        whole.add(one)
    suspects = ranked(results.findings) or told_once(results.findings, "beyond")[:1]
    suspects = with_chains(suspects, *runs, _MOST_CHAINS)
    settings = differences(runs[0].manifest, runs[1].manifest)
    suspects = with_weights(_explained(suspects, results.pairs, settings), *runs)
    lacking = missing(runs, whole.coverage, common.steps, common.ranks, (whole.matched, whole.reference_calls))
    reason = ""
    details: dict[str, object] = {}
    verdict: Verdict
    if not whole.matched:
        verdict, reason = "incomparable", _why_nothing_matched(whole)
    elif suspects:
        verdict, reason = "diverged", suspects[0].reason
    elif thresholds.max_unmatched is not None and whole.lone() > thresholds.max_unmatched:
        verdict, reason = (
            "diverged",
            f"{whole.lone()} calls are on one side only, and the limit is {thresholds.max_unmatched}",
        )
    elif not whole.measured:
        verdict, reason = "incomparable", "no tensor has a fingerprint in both runs: capture with keep='stats' or more"
        reason += f"; {structure.sentence(whole.structure)}"
        details = {"structure": structure.details(whole.structure)}
    elif whole.identical and not whole.lone():
        verdict, reason = "identical", "every matched tensor is the same to the bit"
    else:
        verdict, reason = "equivalent", _equivalence(whole)
    incomplete = bool(lacking.sentences) and verdict in ("identical", "equivalent")
    if whole.choices:
        details["choices"] = [one.to_dict() for one in whole.choices]
    if rearranged := told_once(results.findings, "rearranged"):
        details["rearranged"] = [one.reason for one in rearranged[:MOST_CHOICES]]
    if known := of_each_step(whole.losses):
        details["losses"] = [one.to_dict() for one in known]
    conditions = _conditions(whole)
    if conditions is not None and verdict in ("equivalent", "diverged"):
        details["conditions"] = conditions.details
        reason += f"; {conditions.sentence}" if verdict == "equivalent" else ""
    if incomplete:
        same = whole.identical and not whole.steps_with_lone_calls & lacking.whole_steps
        word = "identical" if same else "equivalent"
        rest = "; ".join(one for one in lacking.sentences if one != lacking.first)
        details["rest"] = {"verdict": verdict, "reason": reason, "headline": lacking.headline(word)}
        if not allow_incomplete:
            verdict, reason = "incomplete", "; ".join(part for part in (lacking.headline(word), rest, reason) if part)
    resolution = report_of(whole.resolution, verdict in ("equivalent", "incomplete"))
    if resolution is not None and (chips := unmeasured_chips(accelerators(*(run.manifest for run in runs)))):
        resolution["unmeasured"] = list(chips)
        if "sentence" in resolution:
            resolution["sentence"] += (
                f"; how {', '.join(chips)} rounds was not measured: theory and siblings decide "
                "(`numscope doctor --measure` there, in a minute)"
            )
    prefix = whole.prefix if whole.prefix.stopped else whole.outer_prefix
    return Report(
        verdict,
        origin=suspects[0] if suspects and verdict == "diverged" else None,
        suspects=tuple(suspects) if verdict == "diverged" else (),
        prefix={"calls": prefix.calls, "last": prefix.last},
        coverage=dict(_coverage(whole, common, lacking)),
        counts=_counts(whole),
        reason=reason,
        resolution=resolution,
        settings=tuple(one.to_dict() for one in settings),
        details=details,
    )


def nothing(runs: tuple[Run, Run], common: Common) -> Report:
    """Return the report of two runs that have no place in common."""
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
    empty = _Whole()
    coverage = _coverage(empty, common, Missing())
    return Report("incomparable", reason=reason, coverage=dict(coverage), counts=_counts(empty))


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


def _counts(whole: _Whole) -> dict[str, int]:
    return {name: whole.counts[name] for name in ("identical", "equivalent", "origin", "inherited", "unmatched")}


def _coverage(whole: _Whole, common: Common, lacking: Missing) -> Coverage:
    return {
        "target": whole.target_calls,
        "reference": whole.reference_calls,
        "matched": whole.matched,
        "unmatched_target": whole.alone_target,
        "unmatched_reference": whole.alone_reference,
        "tensors": whole.tensors,
        "skipped": dict(Counter(common.skipped) + whole.skipped),
        "gradients_measured": lacking.gradients,
        "missing": list(lacking.sentences),
    }


def _why_nothing_matched(whole: _Whole) -> str:
    if not whole.target_calls or not whole.reference_calls:
        return "one of the runs recorded no calls: was capture on, and did its scope match anything?"
    return "no call of the target could be matched with one of the reference: a map file (--map) can say which belong together"


class _Conditions(NamedTuple):
    """The conditions under which two runs that are not of one kind were compared: precisions, loss scales."""

    parts: dict[str, object]
    sentence: str

    @property
    def details(self) -> dict[str, object]:
        return {**self.parts, "sentence": self.sentence}


def _conditions(whole: _Whole) -> _Conditions | None:
    """Return the conditions under which the runs were compared, None where they are of one kind."""
    parts: dict[str, object] = {}
    sentences = []
    if (two := whole.precisions) is not None:
        parts["precisions"] = {"target": two.target, "reference": two.reference}
        sentences.append(two.sentence())
    mine, theirs = whole.scales
    if mine != 1.0 or theirs != 1.0:
        parts["loss_scales"] = {"target": mine, "reference": theirs}
        sentences.append(f"gradients are compared without the loss scale ({mine:g} against {theirs:g})")
    return _Conditions(parts, "; ".join(sentences)) if parts else None


def _equivalence(whole: _Whole) -> str:
    text = f"all differences are within what rounding explains (the largest: {whole.largest:.2g})"
    if whole.larger:
        text += f"; {whole.larger} pairs of tensors are further apart, each for the reason beside it"
    if alone := whole.lone():
        text += f"; {alone} calls are on one side only, without effect on what the others compute"
    if whole.settings:
        text += f"; settings that differ, without an effect that shows: {', '.join(list(whole.settings)[:3])}"
    if whole.choices:
        more = f", and {whole.choice_count - 1} more calls" if whole.choice_count > 1 else ""
        text += f"; choices fell otherwise by rounding ({whole.choices[0]}{more})"
    if whole.batch_shapes:
        text += (
            f"; the runs are given parts of other sizes of a batch ({whole.batch_shapes}): what comes of all parts was "
            "compared"
        )
    if whole.all_ranks:
        text += (
            "; the ranks' tensors were put together as fits the other run, those that are cut by their statistics alone"
        )
    return text
