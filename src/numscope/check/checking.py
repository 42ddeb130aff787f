"""`check(run)`: the first non-finite value of a run over all ranks and steps, its origin, and its way to the loss."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numscope.check.between import gradients_were_left
from numscope.check.steps import Call, Facts, dirty_steps, has_counts, read_step, scaling_stacks
from numscope.check.trace import Found, Spread, Tracer
from numscope.core.report import Origin, Source, plain
from numscope.nonfinite.rule import Counts
from numscope.store.reader import Run, open_run

FORMAT = "numscope.check/1"


@dataclass(frozen=True)
class Link:
    """A call on the way from the origin."""

    call: str
    phase: str
    module: str
    order: int
    counts: str = ""  # what it has that is not finite


@dataclass(frozen=True)
class Shown:
    """A tensor of the origin."""

    slot: str
    dtype: str
    shape: tuple[int, ...]
    counts: Counts
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Check:
    """What a check found; `to_dict` is what --json writes."""

    run: Run
    origin: Origin | None = None
    origins: tuple[Origin, ...] = ()  # all of them, the first one first
    chain: tuple[Link, ...] = ()  # from the origin to the last call that inherited from it
    inherited: int = 0
    ranks: dict[int, str] = field(default_factory=dict)  # rank → how it came by it
    skipped_steps: tuple[int, ...] = ()
    measured: bool = True
    meant: int = 0  # tensors with infinities that somebody put there: masks
    first_meant: str = ""
    tensors: tuple[Shown, ...] = ()  # of the origin
    # (rank, step) → order of a call → origin or inherited
    verdicts: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Tell whether there is an origin."""
        return self.origin is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON shape of the contract, and more."""
        return {
            "format": FORMAT,
            "found": self.found,
            "origin": self.origin.to_dict() if self.origin else None,
            "chain": [link.call for link in self.chain],
            "origins": [origin.to_dict() for origin in self.origins],
            "inherited": self.inherited,
            "ranks": plain(self.ranks),
            "skipped_steps": list(self.skipped_steps),
            "measured": self.measured,
            "meant": self.meant,
        }


def check(run: Run | str | os.PathLike[str]) -> Check:
    """Find the first non-finite value of a run, and where it came from."""
    opened = run if isinstance(run, Run) else open_run(run)
    world = max(len(opened.ranks), int(opened.manifest.get("world_size") or 1))
    spreads: dict[int, Spread] = {}
    for rank in opened.ranks:
        tracer = Tracer(rank, world)
        dirty = dirty_steps(opened, rank)
        scaling = scaling_stacks(opened, rank) if dirty else set()
        for step in dirty:
            left = partial(gradients_were_left, opened, rank, step)
            tracer.take(read_step(opened, step, rank, scaling), left)
        spreads[rank] = tracer.found
    _send_strays_back(spreads)
    origins = sorted(
        (
            found
            for spread in spreads.values()
            for found in [*spread.origins, *_born_in_collectives(spread, spreads, world)]
        ),
        key=lambda found: (found.step, found.call.place, found.rank),
    )
    skipped = tuple(sorted({step for spread in spreads.values() for step in spread.skipped}))
    meant = sum(spread.meant for spread in spreads.values())
    where = next((spread.first_meant for spread in spreads.values() if spread.first_meant), "")
    guard = opened.manifest.get("guard") or {}
    if guard.get("origin") and guard["origin"]["step"] in opened.steps and guard["origin"]["rank"] in opened.ranks:
        return _as_the_guard_said(opened, guard, spreads)
    if not origins:
        stray = [found for spread in spreads.values() for found in spread.arrived]
        if not stray:
            return Check(opened, skipped_steps=skipped, measured=has_counts(opened), meant=meant, first_meant=where)
        origins = sorted(stray, key=lambda found: (found.step, found.call.place))[:1]
    first = _first(origins, spreads)
    frames: dict[int, dict[int, Source]] = {}
    told = [_origin(opened, found, frames) for found in [first, *(item for item in origins if item is not first)]]
    return Check(
        opened,
        told[0],
        tuple(told),
        _chain(first, spreads[first.rank]),
        sum(len(spread.inherited) for spread in spreads.values()),
        {rank: _story(spread, first) for rank, spread in spreads.items()} if len(spreads) > 1 else {},
        skipped,
        meant=meant,
        first_meant=where,
        tensors=_shown(
            first.call,
            spreads[first.rank].facts.get(first.step, {}),
            first.slot.name.partition(".")[2] if first.kind == "optimizer" else "",
        ),
        verdicts=_verdicts(origins, spreads),
    )


def _as_the_guard_said(run: Run, guard: dict[str, Any], spreads: dict[int, Spread]) -> Check:
    """Return the origin of a guard's record: the guard saw the whole job, the record has its last calls."""
    told = dict(guard["origin"])
    source, error = told.pop("source"), told.pop("error")
    origin = Origin(**told, source=Source(**source) if source else None, **error)
    step = read_step(run, origin.step, origin.rank)
    call = next((item for item in reversed(step.calls) if item.name == origin.call), None)
    verdicts = _verdicts([], spreads)
    if call is not None:
        verdicts.setdefault((origin.rank, origin.step), {})[call.order] = "origin"
    counts = Counts(*(origin.details.get(key, 0) for key in ("nan", "posinf", "neginf", "elements")))
    order = call.order if call is not None else 0
    return Check(
        run,
        origin,
        (origin,),
        (Link(origin.call, origin.phase, origin.module, order, str(counts)),),
        skipped_steps=tuple(guard.get("skipped_steps") or ()),
        tensors=_shown(call, step.facts) if call is not None else (),
        verdicts=verdicts,
    )


def _verdicts(origins: list[Found], spreads: dict[int, Spread]) -> dict[tuple[int, int], dict[int, str]]:
    told: dict[tuple[int, int], dict[int, str]] = {}
    for rank, spread in spreads.items():
        for step, call, _ in spread.inherited:
            told.setdefault((rank, step), {})[call.order] = "inherited"
        for found in spread.arrived:
            told.setdefault((rank, found.step), {})[found.call.order] = "inherited"
    for found in origins:
        told.setdefault((found.rank, found.step), {})[found.call.order] = "origin"
    return told


def _shown(call: Call, facts: dict[int, Facts], label: str = "") -> tuple[Shown, ...]:
    """Return the tensors of the origin; with a label, those of one parameter of an optimizer's step."""
    return tuple(
        Shown(slot.name, known.dtype, known.shape, slot.counts, known.low, known.high)
        for slot in (*call.inputs, *call.outputs)
        if (known := facts.get(slot.tensor)) is not None and (not label or label in slot.name)
    )


def _first(origins: list[Found], spreads: dict[int, Spread]) -> Found:
    """Return the origin that comes before all others; of ranks in the same step, one that others had it from."""
    earliest = [found for found in origins if found.step == origins[0].step]
    giving = [found for found in earliest if any(step == found.step for step, _ in spreads[found.rank].given)]
    return (giving or earliest)[0]


def _send_strays_back(spreads: dict[int, Spread]) -> None:
    """What no recorded call of a rank made, while another rank has an origin, came from there: not all that ranks send
    each other is recorded."""
    makers = [(found.rank, found.step) for spread in spreads.values() for found in spread.origins if not found.stray]
    for spread in spreads.values():
        strays = [
            found
            for found in spread.origins
            if found.stray and any(rank != spread.rank and step <= found.step for rank, step in makers)
        ]
        spread.origins = [found for found in spread.origins if found not in strays]
        spread.arrived += strays


def _born_in_collectives(spread: Spread, spreads: dict[int, Spread], world: int) -> list[Found]:
    """Return what came out of collectives into which no rank had put anything wrong: a sum that overflowed."""
    if len(spreads) < world:
        return []  # a rank that was not recorded may have given it
    given = {item for other in spreads.values() for item in other.given}
    lone = min((rank for rank, other in spreads.items() if other.arrived), default=-1)
    if spread.rank != lone or any(other.origins for other in spreads.values()):
        return []
    return [
        found
        for found in spread.arrived
        if found.call.kind == "collective" and (found.step, found.call.name) not in given
    ][:1]


def _story(spread: Spread, first: Found) -> str:
    if spread.rank == first.rank:
        return f"first: {first.call.name}, step {first.step}"
    if spread.arrived:
        found = spread.arrived[0]
        return f"inherited from another rank through {found.call.name}, step {found.step}"
    if spread.origins:
        return f"an origin of its own: {spread.origins[0].call.name}, step {spread.origins[0].step}"
    return f"inherited {len(spread.inherited)} times" if spread.inherited else "nothing non-finite"


def _chain(first: Found, spread: Spread) -> tuple[Link, ...]:
    """Return the way from the origin to the last forward call that inherited from it, the loss, or the last of all."""
    here = [
        (call, maker) for step, call, maker in spread.inherited if step == first.step and call.order != first.call.order
    ]
    makers = {call.order: (call, maker) for call, maker in here}
    back_from = min((call.place for call, _ in here if call.phase == "backward"), default=None)
    ahead = [
        call
        for call, _ in here
        if call.phase == "forward"
        and first.phase in ("forward", "input")
        and (back_from is None or call.place < back_from)  # later ones are an optimizer's own
    ]
    ends = ahead or [call for call, _ in here]
    way = [first.call]
    if ends:
        back: list[Any] = []
        at: int = max(ends, key=lambda call: call.place).order
        while at in makers and at != first.call.order and len(back) <= len(makers):
            call, maker = makers[at]
            back.append(call)
            at = maker
        way += reversed(back)
    return tuple(Link(call.name, call.phase, call.module, call.order, _bad(call)) for call in way)


def _bad(call: Any) -> str:
    return next((str(slot.counts) for slot in call.outputs if not slot.counts.clean), "")


def _origin(run: Run, found: Found, frames: dict[int, dict[int, Source]]) -> Origin:
    if found.rank not in frames:
        frames[found.rank] = _frames(run, found.rank)
    counts = found.slot.counts
    kinds = {"save": "data"}
    return Origin(
        call=found.call.name,
        kind=kinds.get(found.kind, found.kind),  # type: ignore[arg-type]
        phase=found.phase,  # type: ignore[arg-type]
        step=found.step,
        rank=found.rank,
        reason=found.reason,
        module=found.call.module,
        source=frames[found.rank].get(found.stack),
        mechanism="input" if found.kind == "data" else "parameter" if found.kind == "parameter" else "unknown",
        details={
            "slot": found.slot.name,
            "nan": counts.nan,
            "posinf": counts.posinf,
            "neginf": counts.neginf,
            "elements": counts.elements,
            **({"finer": found.finer} if found.finer else {}),
        },
    )


def _frames(run: Run, rank: int) -> dict[int, Source]:
    table = run.stacks(rank)
    found = {}
    for number, frames, user in zip(*(table[name].to_pylist() for name in ("stack", "frames", "user"))):
        if frames and user is not None and 0 <= user < len(frames):
            frame = frames[user]
            found[number] = Source(frame["file"], frame["line"] or 0, frame["function"] or "", frame["code"] or "")
    return found
