"""The overview of a run, as `numscope show RUN` prints it.

runs/gpu: torch 2.13.0 on cpu, captured 2026-03-01 12:00 UTC

  steps     0-9
  calls     1 280   api 868, module 412
  tensors   1 100 distinct in 3 000 slots, 40 kept
  finite    all
  on disk   1.2 MB in 8 files
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from numscope.report.terminal import show_job
from numscope.report.terminal.lines import Line, number, ranges, size
from numscope.store.joins import joined_tensors
from numscope.store.reader import Run
from numscope.store.schema import TableRow

_SHOWN_SETTINGS = ("level", "keep", "tensors", "scope", "steps", "ranks")


def overview(run: Run, chosen: Sequence[int] | None = None) -> TableRow:
    """Return the facts of a run that the overview shows, as JSON."""
    kinds: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    apis: Counter[str] = Counter()
    calls = 0
    ranks = list(chosen or run.ranks)
    stepped: set[int] = set()  # those in which an optimizer took its step
    for table in _tables(run, "calls", ["step", "name", "kind", "phase"], ranks):
        stepped.update(pc.unique(table["step"].filter(pc.equal(table["kind"], "optimizer"))).to_pylist())
        calls += table.num_rows
        kinds.update(_counts(table["kind"]))
        phases.update(_counts(table["phase"]))
        names = table["name"].filter(pc.is_in(table["kind"], pa.array(["api", "aten", "collective"])))
        apis.update(_counts(pc.replace_substring_regex(names, r"\.\d+\.(forward|backward)$", "")))
    tensors = kept = 0
    for table in _tables(run, "tensors", ["shard"], ranks):
        tensors += table.num_rows
        kept += len(table) - table["shard"].null_count
    files = [path for path in run.path.rglob("*") if path.is_file()]
    seconds = [run.step_seconds(step, number) for number in ranks for step in run.rank_steps(number)]
    return {
        "format": "numscope.show/1",
        "run": str(run.path),
        "framework": run.manifest.get("framework", ""),
        "framework_version": run.manifest.get("framework_version", ""),
        "devices": run.manifest.get("devices", []),
        "created": run.manifest.get("created") or "",
        "imported": run.manifest.get("imported") or None,
        "script": run.manifest.get("script", ""),
        "git": run.manifest.get("git"),
        "settings": run.manifest.get("settings", {}),
        "steps": run.steps,
        "after": _after(run.steps, stepped),
        "incomplete": [{"rank": number, "step": step} for number, step in run.incomplete if number in ranks],
        "ranks": ranks,
        "job": show_job.job(run),
        "seconds": sum(value for value in seconds if value is not None),
        "calls": calls,
        "kinds": dict(kinds.most_common()),
        "phases": dict(phases.most_common()),
        "apis": dict(apis.most_common(12)),
        "slots": sum(table.num_rows for table in _tables(run, "slots", ["step"], ranks)),
        "tensors": tensors,
        "kept": kept,
        "nonfinite": _nonfinite(run, ranks),
        "skipped": _skipped(run, ranks),
        "damaged": [sentence for number in ranks for sentence in run.damaged(number)],
        "bytes": sum(path.stat().st_size for path in files),
        "files": len(files),
    }


def lines(facts: TableRow) -> list[Line]:
    """Return the overview as lines."""
    devices = f" on {', '.join(dict.fromkeys(facts['devices']))}" if facts["devices"] else ""
    imported = facts["imported"] or {}
    when = (imported.get("at") or facts["created"]).replace("T", " ").replace("+00:00", " UTC")
    made = f"imported {when} from a dump of {imported.get('tool')}" if imported else f"captured {when}"
    framework = f"{facts['framework']} {facts['framework_version'] or ''}".strip() or "unknown framework"
    shown: list[tuple[str, str, str]] = []

    def fact(label: str, text: str, style: str = "") -> None:
        if text:
            shown.append((label, text, style))

    fact("script", f"{facts['script']}{_commit(facts['git'])}" if facts["script"] else "")
    settings = facts["settings"]
    fact(
        "settings",
        ", ".join(f"{key}={settings[key]!r}" for key in _SHOWN_SETTINGS if settings.get(key) not in (None, [], ())),
    )
    each = (
        f", {facts['seconds'] / len(facts['steps']) / len(facts['ranks']):.3g} s each"
        if facts["steps"] and not imported
        else ""
    )
    after = facts.get("after")
    trained = [step for step in facts["steps"] if step != after]
    fact("steps", ranges(trained) + each + ("" if after is None else f"; {after} is what followed them"))
    cut = ", ".join(f"step {item['step']} of rank {item['rank']}" for item in facts["incomplete"])
    fact("cut off", f"{cut}: what was written of it is shown" if cut else "", "yellow")
    fact("job", show_job.arrangement(facts["job"]))
    fact("ended", show_job.endings(facts["job"]), "yellow")
    fact("missing", show_job.not_recorded(facts["job"]), "yellow")
    fact("ranks", ranges(facts["ranks"]) if len(facts["ranks"]) != 1 or facts["ranks"] != [0] else "")
    fact("calls", f"{number(facts['calls'])}   {_listed(facts['kinds'])}")
    fact("", f"{_listed(facts['phases'])}" if len(facts["phases"]) > 1 else "")
    kept = f", {number(facts['kept'])} kept" if facts["kept"] else ", none kept"
    fact("tensors", f"{number(facts['tensors'])} distinct in {number(facts['slots'])} slots{kept}")
    nonfinite = facts["nonfinite"]
    fact(
        "NaN, inf",
        f"in {number(nonfinite['slots'])} slots, first in {nonfinite['first']} "
        f"(step {nonfinite['step']}, rank {nonfinite['rank']}); numscope check finds the cause"
        if nonfinite
        else "none",
        "red" if nonfinite else "",
    )
    skipped: Counter[str] = Counter(facts["skipped"])
    for reason, count in skipped.most_common():
        fact("skipped", f"{number(count)}   {reason}", "yellow")
    for sentence in facts["damaged"]:
        fact("damaged", sentence, "red")
    fact("on disk", f"{size(facts['bytes'])} in {facts['files']} files")
    fact("most called", ", ".join(f"{name} ×{count}" for name, count in list(facts["apis"].items())[:6]))
    width = max(len(label) for label, _, _ in shown)
    body: list[Line] = [[f"  {label:<{width}}   ", (text, style)] for label, text, style in shown]
    return [
        [(facts["run"], "bold"), f": {framework}{devices}" + (f", {made}" if when else "")],
        "",
        *body,
        "",
        [("numscope show RUN PATTERN shows calls, --stack where they were made", "dim")],
    ]


def _after(steps: Sequence[int], stepped: set[int]) -> int | None:
    """Return the last step where it is only what a job did after its training: all before it have an optimizer's step."""
    last = max(steps, default=None)
    return last if last is not None and stepped and stepped == set(steps) - {last} else None


def _tables(run: Run, name: str, columns: list[str], ranks: list[int]) -> Iterator[pa.Table]:
    for rank in ranks:
        for _, table in run.scan(name, columns, rank):
            yield table


def _skipped(run: Run, ranks: list[int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for rank in ranks:
        counts.update(run.skipped(rank=rank))
    return dict(counts)


def _counts(column: pa.ChunkedArray) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist() if item["values"]}


def _nonfinite(run: Run, ranks: list[int]) -> dict[str, object] | None:
    """Return how many slots show a NaN or infinity, and the first of them in the order of calls."""
    total = 0
    first: dict[str, object] | None = None
    first_step = 0
    columns = ["step", "nan", "posinf", "neginf"]
    for rank in ranks:
        steps: set[int] = set()
        for _, table in run.scan("tensors", columns, rank):
            bad = pc.greater(pc.add(pc.add(table["nan"], table["posinf"]), table["neginf"]), 0)
            steps.update(pc.unique(table["step"].filter(bad)).to_pylist())
        for step in sorted(steps):
            tables = run.step_tables(step, rank)
            slots = joined_tensors(tables.calls, tables.slots, tables.tensors, rank, sketch=False)
            slots = slots.filter(pc.greater(pc.add(slots["nan"], slots["inf"]), 0)).sort_by("call")
            total += slots.num_rows
            if slots.num_rows and (first is None or step < first_step):
                first_step, first = step, {"first": slots["name"][0].as_py(), "step": step, "rank": rank}
    return {"slots": total, **first} if first else None


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number(count)} {name}" for name, count in counts.items())


def _commit(git: TableRow | None) -> str:
    if not git or not git.get("commit"):
        return ""
    return f" at {git['commit'][:10]}{' with changes' if git.get('dirty') else ''}"
