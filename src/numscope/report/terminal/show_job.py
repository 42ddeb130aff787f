"""The facts of a job that `numscope show RUN` prints: how many ranks, how they are arranged, and how each ended.

job       4 ranks by gloo; mesh dp 2 × tp 2; ScheduleGPipe, 4 micro-batches, 2 stages
ended     rank 3 with RuntimeError after step 1; 3 ranks at their end
"""

from __future__ import annotations

from collections import Counter

from numscope.core.json_value import JsonObject, items, members
from numscope.report.terminal.lines import number, ranges
from numscope.store.reader import Run
from numscope.store.rundir import CLOSED


def job(run: Run) -> JsonObject:
    """Return the facts as JSON: `ends` has how each recorded rank ended, and after which step."""
    ends = {
        str(rank): {"end": end, "step": max(run.written_steps(rank), default=None)} for rank, end in run.ends().items()
    }
    world = int(run.manifest.get("world_size") or 1)
    return {
        "world_size": world,
        **{
            name: members(run.manifest.get("arrangement")).get(name)
            for name in ("backend", "mesh", "groups", "schedule")
        },
        "ends": ends,
        "not_recorded": sorted(set(range(world)) - set(run.ranks)),
    }


def arrangement(facts: JsonObject) -> str:
    """Return the ranks and their arrangement in words; nothing of one rank of which nothing is known."""
    world = facts["world_size"]
    parts = [f"{number(world)} ranks" + (f" by {facts['backend']}" if facts["backend"] else "")]
    for mesh in items(facts["mesh"]):
        assert isinstance(mesh, dict)
        names, sizes = items(mesh["names"]), items(mesh["shape"])
        named = [f"{name} {size}" for name, size in zip(names, sizes)] if names else map(str, sizes)
        parts.append(f"mesh {' × '.join(named)}")
    if not facts["mesh"] and (groups := items(facts["groups"])):
        sizes_of = Counter(len(items(members(group).get("ranks"))) for group in groups)
        parts.append("groups of " + " and of ".join(f"{size}" for size in sorted(sizes_of)))
    if schedule := members(facts["schedule"]):
        said = [str(schedule["name"])]
        said += [
            f"{schedule[key]} {word}"
            for key, word in (("micro_batches", "micro-batches"), ("stages", "stages"))
            if schedule.get(key)
        ]
        parts.append(", ".join(said))
    return "; ".join(parts) if world > 1 or len(parts) > 1 else ""


def endings(facts: JsonObject) -> str:
    """Return how the ranks ended, those first that did not end well; nothing where all did."""
    how: dict[tuple[str, object], list[int]] = {}
    for rank, end in members(facts["ends"]).items():
        said = members(end)
        key = (str(said["end"]), None if said["end"] == CLOSED else said["step"])
        how.setdefault(key, []).append(int(rank))
    well = sum(len(ranks) for (end, _), ranks in how.items() if end == CLOSED)
    parts = [
        f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)} {f'with {end}' if end else 'cut off, or still running,'} "
        + (f"in or after step {step}" if step is not None else "before its first step was written")
        for (end, step), ranks in sorted(how.items(), key=lambda item: item[1])
        if end != CLOSED
    ]
    if not parts:
        return ""
    return "; ".join([*parts, f"{number(well)} rank{'s' * (well != 1)} at their end"] if well else parts)


def not_recorded(facts: JsonObject) -> str:
    """Return the ranks of which the run has nothing."""
    gone = facts["not_recorded"]
    return f"{ranges(gone)} of {facts['world_size']}" if gone else ""
