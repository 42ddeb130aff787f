"""`check(run)`: the first non-finite value of a run over all ranks and steps, its origin, and its way to the loss."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

from numscope.check.loss_scaling import gradients_were_left
from numscope.check.steps import StoredCall, TensorFacts, dirty_steps, has_counts, read_step, scaling_stacks
from numscope.check.tracking import GivenToRanks, RankOutcome, RankTracking, RunOrigin
from numscope.core.json_value import JsonObject
from numscope.core.names import label_of
from numscope.core.report import Origin, Source, plain
from numscope.nonfinite.rule import Counts
from numscope.store.reader import Run, open_run

FORMAT = "numscope.check/1"


@dataclass(frozen=True)
class ChainCall:
    """A call on the way from the origin to the loss."""

    call: str
    phase: str
    module: str
    order: int
    counts: str = ""  # of its non-finite elements, in words


@dataclass(frozen=True)
class OriginTensor:
    """A tensor of the origin, with its range."""

    slot: str
    dtype: str
    shape: tuple[int, ...]
    counts: Counts
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Check:
    """The first non-finite value of a run and all that follows from it; `to_dict` is what --json writes."""

    run: Run
    origin: Origin | None = None
    origins: tuple[Origin, ...] = ()  # all of them, the first one first
    chain: tuple[ChainCall, ...] = ()  # from the origin to the last call that inherited from it
    inherited: int = 0
    ranks: dict[int, str] = field(default_factory=dict)  # rank → how the value came there, in words
    skipped_steps: tuple[int, ...] = ()
    measured: bool = True
    meant: int = 0  # tensors with infinities put there on purpose: masks
    first_meant: str = ""
    tensors: tuple[OriginTensor, ...] = ()  # of the origin
    # rank and step → order of a call → origin or inherited
    verdicts: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Tell whether there is an origin."""
        return self.origin is not None

    def to_dict(self) -> JsonObject:
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
    outcomes: dict[int, RankOutcome] = {}
    for rank in opened.ranks:
        tracking = RankTracking(rank, world, _sources(opened, rank))
        dirty = dirty_steps(opened, rank)
        scaling = scaling_stacks(opened, rank) if dirty else set()
        for step in dirty:
            tracking.take(read_step(opened, step, rank, scaling), partial(gradients_were_left, opened, rank, step))
        outcomes[rank] = tracking.outcome
    _send_strays_back(outcomes)
    born = [
        origin
        for outcome in outcomes.values()
        for origin in [*outcome.origins, *_born_in_collectives(outcome, outcomes, world)]
    ]
    origins = sorted(born, key=lambda origin: (origin.step, origin.call.place, origin.report.rank))
    skipped = tuple(sorted({step for outcome in outcomes.values() for step in outcome.skipped}))
    meant = sum(outcome.meant for outcome in outcomes.values())
    where = next((outcome.first_meant for outcome in outcomes.values() if outcome.first_meant), "")
    guard = opened.manifest.get("guard") or {}
    if guard.get("origin") and guard["origin"]["step"] in opened.steps and guard["origin"]["rank"] in opened.ranks:
        return _as_the_guard_said(opened, guard, outcomes)
    if not origins:
        arrived = [origin for outcome in outcomes.values() for origin in outcome.arrived]
        if not arrived:
            return Check(opened, skipped_steps=skipped, measured=has_counts(opened), meant=meant, first_meant=where)
        origins = sorted(arrived, key=lambda origin: (origin.step, origin.call.place))[:1]
    first = _first(origins, outcomes)
    rank = first.report.rank
    return Check(
        opened,
        first.report,
        (first.report, *(origin.report for origin in origins if origin is not first)),
        _chain(first, outcomes[rank]),
        sum(len(outcome.inherited) for outcome in outcomes.values()),
        {rank: _story(outcome, first) for rank, outcome in outcomes.items()} if len(outcomes) > 1 else {},
        skipped,
        meant=meant,
        first_meant=where,
        tensors=_tensors(
            first.call,
            outcomes[rank].facts.get(first.step, {}),
            label_of(first.slot) if first.kind == "optimizer" else "",
        ),
        verdicts=_verdicts(origins, outcomes),
    )


def _as_the_guard_said(run: Run, guard: JsonObject, outcomes: dict[int, RankOutcome]) -> Check:
    """Return the origin in a guard's record: the guard watched the whole job, the record holds only its last calls."""
    told = dict(guard["origin"])
    source, error = told.pop("source"), told.pop("error")
    origin = Origin(**told, source=Source(**source) if source else None, **error)
    step = read_step(run, origin.step, origin.rank)
    call = next((item for item in reversed(step.calls) if item.name == origin.call), None)
    verdicts = _verdicts([], outcomes)
    if call is not None:
        verdicts.setdefault((origin.rank, origin.step), {})[call.order] = "origin"
    counts = Counts(*(origin.details.get(key, 0) for key in ("nan", "posinf", "neginf", "elements")))
    order = call.order if call is not None else 0
    return Check(
        run,
        origin,
        (origin,),
        (ChainCall(origin.call, origin.phase, origin.module, order, str(counts)),),
        skipped_steps=tuple(guard.get("skipped_steps") or ()),
        tensors=_tensors(call, step.facts) if call is not None else (),
        verdicts=verdicts,
    )


def _verdicts(origins: list[RunOrigin], outcomes: dict[int, RankOutcome]) -> dict[tuple[int, int], dict[int, str]]:
    told: dict[tuple[int, int], dict[int, str]] = {}
    for rank, outcome in outcomes.items():
        for item in outcome.inherited:
            told.setdefault((rank, item.step), {})[item.call.order] = "inherited"
        for origin in outcome.arrived:
            told.setdefault((rank, origin.step), {})[origin.call.order] = "inherited"
    for origin in origins:
        told.setdefault((origin.report.rank, origin.step), {})[origin.call.order] = "origin"
    return told


def _tensors(call: StoredCall, facts: dict[int, TensorFacts], label: str = "") -> tuple[OriginTensor, ...]:
    """Return the tensors of the origin; with a label, those of one parameter of an optimizer's step."""
    return tuple(
        OriginTensor(tensor.slot, known.dtype, known.shape, tensor.counts, known.low, known.high)
        for tensor in (*call.inputs, *call.outputs)
        if (known := facts.get(tensor.tensor)) is not None and (not label or label in tensor.slot)
    )


def _first(origins: list[RunOrigin], outcomes: dict[int, RankOutcome]) -> RunOrigin:
    """Return the origin that comes before all others; of ranks in the same step, one from which others inherited."""
    earliest = [origin for origin in origins if origin.step == origins[0].step]
    giving = [
        origin for origin in earliest if any(given.step == origin.step for given in outcomes[origin.report.rank].given)
    ]
    return (giving or earliest)[0]


def _send_strays_back(outcomes: dict[int, RankOutcome]) -> None:
    """Turn an origin that no recorded call made into an arrival, where another rank has an origin: the value came from there,
    because not all that ranks send each other is recorded."""
    makers = [
        (origin.report.rank, origin.step)
        for outcome in outcomes.values()
        for origin in outcome.origins
        if not origin.stray
    ]
    for outcome in outcomes.values():
        strays = [
            origin
            for origin in outcome.origins
            if origin.stray and any(rank != outcome.rank and step <= origin.step for rank, step in makers)
        ]
        outcome.origins = [origin for origin in outcome.origins if origin not in strays]
        outcome.arrived += strays


def _born_in_collectives(outcome: RankOutcome, outcomes: dict[int, RankOutcome], world: int) -> list[RunOrigin]:
    """Return the origins in collectives whose inputs were right on every rank: a sum that overflowed."""
    if len(outcomes) < world:
        return []  # a rank that was not recorded may have given the value
    given = {item for other in outcomes.values() for item in other.given}
    lone = min((rank for rank, other in outcomes.items() if other.arrived), default=-1)
    if outcome.rank != lone or any(other.origins for other in outcomes.values()):
        return []
    return [
        origin
        for origin in outcome.arrived
        if origin.call.kind == "collective" and GivenToRanks(origin.step, origin.call.name) not in given
    ][:1]


def _story(outcome: RankOutcome, first: RunOrigin) -> str:
    if outcome.rank == first.report.rank:
        return f"first: {first.call.name}, step {first.step}"
    if outcome.arrived:
        arrival = outcome.arrived[0]
        return f"inherited from another rank through {arrival.call.name}, step {arrival.step}"
    if outcome.origins:
        return f"an origin of its own: {outcome.origins[0].call.name}, step {outcome.origins[0].step}"
    return f"inherited {len(outcome.inherited)} times" if outcome.inherited else "nothing non-finite"


def _chain(first: RunOrigin, outcome: RankOutcome) -> tuple[ChainCall, ...]:
    """Return the way from the origin to the last forward call that inherited from it, the loss, or the last of all."""
    here = [item for item in outcome.inherited if item.step == first.step and item.call.order != first.call.order]
    by_order = {item.call.order: item for item in here}
    back_from = min((item.call.place for item in here if item.call.phase == "backward"), default=None)
    ahead = [
        item.call
        for item in here
        if item.call.phase == "forward"
        and first.call.phase in ("forward", "input")
        and (back_from is None or item.call.place < back_from)  # later ones are an optimizer's own
    ]
    ends = ahead or [item.call for item in here]
    way = [first.call]
    if ends:
        back: list[StoredCall] = []
        at: int = max(ends, key=lambda call: call.place).order
        while at in by_order and at != first.call.order and len(back) <= len(by_order):
            back.append(by_order[at].call)
            at = by_order[at].maker
        way += reversed(back)
    return tuple(ChainCall(call.name, call.phase, call.module, call.order, _counts_of(call)) for call in way)


def _counts_of(call: StoredCall) -> str:
    return next((str(tensor.counts) for tensor in call.nonfinite), "")


def _sources(run: Run, rank: int) -> Callable[[int], Source | None]:
    """Return a function that gives the user's line of a stack; the table of stacks is read when it is first called."""

    @cache
    def lines() -> dict[int, Source]:
        table = run.stacks(rank)
        found = {}
        for number, frames, user in zip(*(table[name].to_pylist() for name in ("stack", "frames", "user"))):
            if frames and user is not None and 0 <= user < len(frames):
                frame = frames[user]
                found[number] = Source(frame["file"], frame["line"] or 0, frame["function"] or "", frame["code"] or "")
        return found

    return lambda stack: lines().get(stack)
