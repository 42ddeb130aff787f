"""The comparison of two runs: `ns.compare(target, reference)`.

comparison = ns.compare("runs/npu", "runs/gpu")
comparison.verdict            # "diverged"
print(comparison.origin.reason)
# LayerNorm in blocks.1.ln2: inputs identical, outputs differ by 3.1e-3 (rounding explains 4e-7); argument eps …
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

import pyarrow as pa

from numscope.compare.answer import nothing, report
from numscope.compare.parts.results import Results
from numscope.compare.parts.rows import Rows
from numscope.compare.parts.shares import PartWritten, Share, complete
from numscope.compare.places import Chosen, Common, common_places
from numscope.compare.steps import Place
from numscope.compare.thresholds import Thresholds
from numscope.core.errors import ComparisonError, RunError, SettingsError
from numscope.core.json_value import JsonObject
from numscope.core.report import Origin, Report
from numscope.core.words import Verdict
from numscope.store.reader import Run, open_run

if TYPE_CHECKING:
    from numscope.compare.align.map_file import Map

Progress = Callable[[int, int], None]
RunLike = str | os.PathLike[str] | Run


class Engine(Protocol):
    """Compares every (step, rank) that both runs have, rank by rank, into the results (engines/)."""

    def __call__(
        self,
        runs: tuple[Run, Run],
        noise: list[Run],
        steps: Sequence[Place],
        mapping: Map | None,
        thresholds: Thresholds,
        progress: Progress | None,
        results: Results,
        /,
    ) -> None: ...


class Asked(TypedDict, total=False):
    """The keyword arguments that say what is compared: all parts of a comparison have the same."""

    noise: RunLike | Sequence[RunLike]
    map: str | os.PathLike[str] | None
    steps: Chosen
    ranks: Chosen
    thresholds: Thresholds | None


class CompareOptions(Asked, total=False):
    """The keyword arguments of `compare`, for the functions that pass them on."""

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
    asked = _Asked.of(target, reference, noise, map, steps, ranks, thresholds)
    results = Results()
    if asked.common.both:
        asked.compare(_engine(engine), asked.common.both, progress, results)
    found = _answer(asked, results, allow_incomplete)
    if not asked.runs[0].manifest.get("grafts"):
        return found
    from numscope.compare import grafted

    without = _run(ungrafted) if ungrafted is not None else grafted.ungrafted_of(*asked.runs)
    baseline = None
    if without is not None:
        baseline = compare(
            without,
            asked.runs[1],
            map=map,
            steps=steps,
            ranks=ranks,
            thresholds=thresholds,
            engine=engine,
            allow_incomplete=True,
        )
    details = {**found.report.details, "graft": grafted.details(found, baseline)}
    return replace(found, report=replace(found.report, details=details))


def compare_part(
    target: RunLike,
    reference: RunLike,
    part: Share,
    folder: str | os.PathLike[str],
    *,
    noise: RunLike | Sequence[RunLike] = (),
    map: str | os.PathLike[str] | None = None,
    steps: Chosen = None,
    ranks: Chosen = None,
    thresholds: Thresholds | None = None,
    engine: str = "local",
    progress: Progress | None = None,
) -> PartWritten:
    """Compare a share of the ranks of two runs, and write the part into a folder of its own inside `folder`.

    A rank is not divided: what its earlier steps show enters the verdicts of its later ones. Runs that are cut over
    their ranks in two ways are compared as a whole: the first part has all of it.
    """
    asked = _Asked.of(target, reference, noise, map, steps, ranks, thresholds, part)
    own = asked.common.both
    path = Path(folder) / f"part-{part.number:05d}-of-{part.of:05d}"
    try:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    except OSError as error:
        raise RunError(f"cannot write a part to {path} ({error.strerror}): choose another directory") from error
    results = Results(path)
    if own:
        asked.compare(_engine(engine), own, progress, results)
    results.write({"part": part.number, "of": part.of, "asked": asked.facts()})
    return PartWritten(path, len({place.rank for place in own}), len(own))


def merge_parts(
    target: RunLike,
    reference: RunLike,
    parts: Sequence[str | os.PathLike[str]],
    *,
    noise: RunLike | Sequence[RunLike] = (),
    map: str | os.PathLike[str] | None = None,
    steps: Chosen = None,
    ranks: Chosen = None,
    thresholds: Thresholds | None = None,
    allow_incomplete: bool = False,
) -> Comparison:
    """Return the comparison of which these are all the parts; it is given the same options as they."""
    asked = _Asked.of(target, reference, noise, map, steps, ranks, thresholds)
    results = Results()
    for folder, facts in complete([Path(part) for part in parts], asked.facts()):
        results.attach(folder, facts)
    if not results.covers(asked.common.both):
        raise RunError(
            "the parts are not of what the runs hold now: they were still being written, or are cut over their ranks in two "
            "ways; compare again, in the second case without --part"
        )
    return _answer(asked, results, allow_incomplete)


@dataclass(frozen=True)
class _Asked:
    """A comparison that was asked for."""

    runs: tuple[Run, Run]
    noise: list[Run]
    mapping: Map | None
    thresholds: Thresholds
    common: Common
    chosen: JsonObject  # what the user chose

    @classmethod
    def of(
        cls,
        target: RunLike,
        reference: RunLike,
        noise: RunLike | Sequence[RunLike],
        map: str | os.PathLike[str] | None,
        steps: Chosen,
        ranks: Chosen,
        thresholds: Thresholds | None,
        part: Share | None = None,
    ) -> _Asked:
        """Open the runs, and find what they have in common."""
        runs = (_run(target), _run(reference))
        given = noise if isinstance(noise, Sequence) and not isinstance(noise, str) else (noise,)
        mapping = None
        if map is not None:
            from numscope.compare.align.map_file import load_map

            mapping = load_map(map)
        common = common_places(runs, steps, ranks, part)
        chosen = {
            "map": Path(map).read_text(encoding="utf-8") if map is not None else "",
            "steps": sorted(common.steps) if common.steps is not None else None,
            "ranks": sorted(common.ranks) if common.ranks is not None else None,
        }
        return cls(runs, [_run(run) for run in given], mapping, thresholds or Thresholds(), common, chosen)

    def compare(self, engine: Engine, places: Sequence[Place], progress: Progress | None, results: Results) -> None:
        """Compare some places."""
        engine(self.runs, self.noise, places, self.mapping, self.thresholds, progress, results)

    def facts(self) -> JsonObject:
        """Return what the parts of one comparison have in common."""
        return {
            "target": self.runs[0].manifest.get("id"),
            "reference": self.runs[1].manifest.get("id"),
            "noise": [run.manifest.get("id") for run in self.noise],
            "thresholds": asdict(self.thresholds),
            **self.chosen,
        }


def _answer(asked: _Asked, results: Results, allow_incomplete: bool) -> Comparison:
    results.end()
    if not asked.common.both:
        told = nothing(asked.runs, asked.common)
    else:
        told = report(asked.runs, asked.common, results, asked.thresholds, allow_incomplete)
    return Comparison(told, results.calls, results.pairs, *asked.runs)


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


def check(comparison: Comparison) -> None:
    """Raise where two runs could not be compared at all."""
    if comparison.verdict == "incomparable":
        raise ComparisonError(comparison.report.reason)
