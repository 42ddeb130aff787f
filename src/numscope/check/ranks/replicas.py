"""Replicas stay equal: parameters, their gradients where they reach an optimizer, optimizer state, buffers.

Replicas are parameters that begin with the same bits on several ranks, or that a device mesh declares to be replicated.
Of those whose elements are all alike (a new norm's ones), which equal another rank's by chance, only norms count, and those
that are declared. A table that one rank looks up and another multiplies with is tied, whatever its two names.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from numscope.check.ranks.step_facts import Content, StepFacts, Trained, Update, patterns
from numscope.check.remark import Remark
from numscope.core.job_files.layout import is_cut
from numscope.core.job_files.layout import plain as plain_name

# Relative: what is nearer than this was rounded otherwise. Parts of a gradient are apart by their own size; replicas that
# are computed twice by a few units of roundoff, and float32's times the square root of a million additions is 6e-5.
_ROUNDED = 1e-4
_NAMED = 3  # parameters that a sentence names


class Holder(NamedTuple):
    """One rank's copy of a parameter."""

    rank: int
    name: str


Replica = tuple[Holder, ...]  # the copies of one parameter
Facts = Mapping[int, StepFacts]  # of one step, by rank


class Replicas:
    """The replicas of a run, watched step by step until some of them part."""

    def __init__(self) -> None:
        self._copies: list[Replica] | None = None
        self._left: dict[Holder, int] = {}  # bits after the last step
        self._last = -2  # that step
        self._parted = False
        self._buffers_parted = False

    def end(self) -> None:
        """Say no more of parameters: it is known what parts them."""
        self._parted = True

    def take(self, step: int, facts: Facts) -> Iterator[Remark]:
        """Yield what a step says of the replicas; nothing more once some have parted."""
        if self._copies is None:
            if not any(one.updates for one in facts.values()):
                return
            self._copies = [*_replicas(facts), *_tied(facts)]
            yield from _unlike_from_the_start(step, facts)
        if not self._parted:
            found = [*self._changed_between(step, facts)] or [*self._parted_by(step, facts)]
            self._parted = bool(found)
            yield from found
        if not self._buffers_parted:
            unlike = [*_buffers(step, facts, self._copies)]
            self._buffers_parted = bool(unlike)
            yield from unlike
        for rank, one in facts.items():
            for name, content in one.left().items():
                if content.bits is not None:
                    self._left[Holder(rank, name)] = content.bits
        self._last = step

    def _changed_between(self, step: int, facts: Facts) -> Iterator[Remark]:
        """Find parameters that something else than an optimizer changed on some ranks alone."""
        began = {
            Holder(rank, name): content.bits
            for rank, one in facts.items()
            for name, content in one.begun().items()
            if content.bits is not None
        }
        if self._last != step - 1:
            return  # optimizers that were not recorded ran in between
        moved = {holder for holder, bits in began.items() if self._left.get(holder, bits) != bits}
        of_name: dict[str, list[Holder]] = defaultdict(list)
        for holder in began:
            if holder in self._left:
                of_name[holder.name].append(holder)
        names, ranks = set[str](), set[int]()
        for name, holders in of_name.items():
            changed = [holder for holder in holders if holder in moved]
            if changed and len(changed) < len(holders):
                names.add(name)
                ranks.update(holder.rank for holder in changed)
        if names:
            text = (
                f"{_named(sorted(names))} changed between steps {self._last} and {step} on {_of_ranks(ranks)} alone: "
                "something else than an optimizer wrote there"
            )
            yield Remark("replicas", step, sorted(ranks), sorted(names), text)

    def _parted_by(self, step: int, facts: Facts) -> Iterator[Remark]:
        left = {Holder(rank, name): content for rank, one in facts.items() for name, content in one.left().items()}
        parted: dict[str, list[Replica]] = defaultdict(list)
        for copies in self._copies or ():
            there = tuple(holder for holder in copies if holder in left)
            if len({left[holder].bits for holder in there} - {None}) > 1:
                parted[_why(there, facts)].append(there)
        for why, replicas in parted.items():
            ranks = sorted({holder.rank for copies in replicas for holder in copies})
            names = sorted({holder.name for copies in replicas for holder in copies})
            is_tied = any(len({holder.name for holder in copies}) > 1 for copies in replicas)
            what = _tie(replicas) if is_tied else f"{_named(names)} of {_of_ranks(ranks)}"
            text = f"{what} began the same, and step {step} leaves different ones: {why}"
            yield Remark("tied" if is_tied else "replicas", step, ranks, names, text)


def _replicas(facts: Facts) -> Iterator[Replica]:
    """Yield the copies of each parameter that is on several ranks."""
    by_bits: dict[tuple[str, int], list[Holder]] = defaultdict(list)
    plain: dict[tuple[str, int], list[Holder]] = defaultdict(list)
    declared: dict[tuple[str, tuple[int, ...]], list[Holder]] = defaultdict(list)
    for rank, one in facts.items():
        for name, content in one.begun().items():
            placed = one.declared.get(plain_name(name))
            if content.bits is None or _is_cut(content.placement) or (placed is not None and is_cut(placed)):
                continue
            if not content.is_plain:
                by_bits[name, content.bits].append(Holder(rank, name))
            elif placed is not None:
                declared[name, tuple(placed.get("ranks", ()))].append(Holder(rank, name))
            elif content.placement or name.rpartition(".")[0] in one.norms:
                plain[name, content.bits].append(Holder(rank, name))
    yield from (tuple(holders) for (_, ranks), holders in declared.items() if ranks and len(holders) > 1)
    yield from (tuple(holders) for holders in by_bits.values() if len(holders) > 1)
    if any("all_to_all" in op for one in facts.values() for op in one.collectives):
        return  # experts: the same name on another rank may be another expert's
    sets = [{holder.rank for holder in holders} for holders in by_bits.values()]
    widest = [some for some in sets if not any(some < other for other in sets)]
    for holders in plain.values():
        for ranks in sorted({tuple(sorted(some)) for some in widest}):
            among = tuple(holder for holder in holders if holder.rank in ranks)
            if len(among) > 1:
                yield among


def _unlike_from_the_start(step: int, facts: Facts) -> Iterator[Remark]:
    """Find parameters that are given the same gradient on several ranks, and are not the same there."""
    given: dict[tuple[str, int], dict[int, Content]] = defaultdict(dict)
    for rank, one in facts.items():
        for name, content in one.begun().items():
            trained = _last(Holder(rank, name), facts)
            gradient = trained.gradient if trained is not None else None
            if gradient is not None and gradient.bits is not None and not gradient.is_plain:
                given[name, gradient.bits][rank] = content
    unlike = {
        name: set(contents) for (name, _), contents in given.items() if len({one.bits for one in contents.values()}) > 1
    }
    if unlike:
        on = sorted(set().union(*unlike.values()))
        text = (
            f"{_named(sorted(unlike))} has the same gradient on {_of_ranks(on)}, and other values: "
            f"it was not the same there before step {step}"
        )
        yield Remark("replicas", step, on, sorted(unlike), text)
    said: dict[tuple[str, tuple[int, ...]], set[int | None]] = defaultdict(set)
    for one in facts.values():
        for name, placed in one.declared.items():
            if not is_cut(placed) and name not in unlike and (found := one.begun().get(name)) is not None:
                said[name, tuple(placed.get("ranks", ()))].add(found.bits)
    apart = {name: ranks for (name, ranks), bits in said.items() if ranks and len(bits - {None}) > 1}
    if apart:
        on = sorted(set().union(*apart.values()))
        text = f"{_named(sorted(apart))} should be the same on {_of_ranks(on)}, and is not when step {step} begins"
        yield Remark("replicas", step, on, sorted(apart), text)


def _is_cut(placement: str) -> bool:
    return bool(placement) and any(one != "R" for one in json.loads(placement).get("placements", ()))


def _tied(facts: Facts) -> Iterator[Replica]:
    """Yield the copies of each table that one rank's embedding looks up, and another rank has under another name."""
    holders: dict[int, list[Holder]] = defaultdict(list)
    for rank, one in facts.items():
        for name, content in one.begun().items():
            if content.bits is not None and not content.is_plain:
                holders[content.bits].append(Holder(rank, name))
    for bits, copies in holders.items():
        looked_up = {holder.name for holder in copies if bits in facts[holder.rank].embedded}
        others = {holder.name for holder in copies} - looked_up
        if looked_up and others and len({holder.rank for holder in copies}) > 1:
            yield tuple(copies)


def _why(copies: Replica, facts: Facts) -> str:
    """Return what parts the copies of a parameter: gradients that were not reduced, or updates from the same gradients."""
    given = {holder: _last(holder, facts) for holder in copies}
    gradients = {holder: one.gradient for holder, one in given.items() if one is not None and one.gradient is not None}
    classes = _classes(gradients)
    if len(classes) > 1:
        return _unlike_gradients(copies, gradients, classes, facts)
    settings = {json.dumps(update.settings, sort_keys=True) for update in _updates(copies, facts)}
    if len(settings) > 1:
        return f"the gradients are the same, the optimizers' settings are not: {_settings(copies, facts)}"
    bits: dict[str, set[int | None]] = defaultdict(set)
    for trained in given.values():
        for what, content in trained.state.items() if trained is not None else ():
            bits[what].add(content.bits)
    unlike = sorted(what for what, some in bits.items() if len(some) > 1)
    if unlike:
        return f"the gradients are the same, the optimizers' {', '.join(unlike)} was not before the step"
    return "the gradients are the same, the updates are not: has a rank another learning rate?"


def _last(holder: Holder, facts: Facts) -> Trained | None:
    return next((one.of[holder.name] for one in reversed(facts[holder.rank].updates) if holder.name in one.of), None)


def _updates(copies: Replica, facts: Facts) -> Iterator[Update]:
    for holder in copies:
        yield from (update for update in facts[holder.rank].updates if holder.name in update.of)


def _classes(contents: Mapping[Holder, Content]) -> list[list[int]]:
    """Return the ranks of those that hold the same, for each content."""
    ranks: dict[int | None, list[int]] = defaultdict(list)
    for holder, content in contents.items():
        ranks[content.bits].append(holder.rank)
    return list(ranks.values())


def _unlike_gradients(
    copies: Replica, gradients: Mapping[Holder, Content], classes: Sequence[Sequence[int]], facts: Facts
) -> str:
    first, *others = gradients.values()
    apart = [distance for one in others if (distance := first.apart(one)) is not None]
    if apart and max(apart) < _ROUNDED:
        return (
            f"the gradients that reach the optimizers are off by {max(apart):.1g}, as rounding makes them: "
            "each rank computes them itself, and an operator is not deterministic"
        )
    return (
        f"each rank holds a part of the gradients; no all-reduce over {_axis(classes, facts)} follows"
        f"{_kind(copies, classes, facts)}"
    )


def _axis(classes: Sequence[Sequence[int]], facts: Facts) -> str:
    """Return the name of the groups that have a rank of each class: an all-reduce over them makes the classes equal."""
    of_rank = {rank: number for number, ranks in enumerate(classes) for rank in ranks}
    for group in sorted({group for one in facts.values() for group in one.groups if group.axis}):
        if {of_rank.get(rank) for rank in group.ranks} == set(range(len(classes))):
            return group.axis
    return _of_ranks(min(ranks) for ranks in classes)


def _kind(copies: Replica, classes: Sequence[Sequence[int]], facts: Facts) -> str:
    """Return which parallelism lacks the reduction: where other weights are cut, by whether the parameter's input is, too."""
    ranks = [ranks[0] for ranks in classes]
    begun = [facts[rank].begun() for rank in ranks]
    shared = set[str].intersection(*(set(one) for one in begun))
    cut = [
        name for name in shared if not begun[0][name].is_plain and len({one[name].bits for one in begun}) == len(begun)
    ]
    if not cut:
        return " (data parallelism)" if len({facts[rank].data for rank in ranks}) > 1 else ""
    inputs = {_input_of(copies[0].name, facts[rank]) for rank in ranks}
    if None in inputs:
        return ""
    if len(inputs) == 1:
        return " (tensor parallelism)"
    is_cut_further = any(op.startswith(("all_gather", "reduce_scatter")) for op in facts[ranks[0]].collectives)
    return " (sequence parallelism)" if is_cut_further else " (what comes in is not the same, either)"


def _input_of(parameter: str, facts: StepFacts) -> int | None:
    """Return the bits of what enters the innermost module that has a parameter and was called."""
    path = parameter
    while path:
        path = path.rpartition(".")[0]
        if path in facts.inputs:
            return facts.inputs[path]
    return None


def _settings(copies: Replica, facts: Facts) -> str:
    """Return the first setting in which the optimizers differ, with its values."""
    said: dict[str, dict[int, object]] = defaultdict(dict)
    for holder in copies:
        for update in facts[holder.rank].updates:
            if holder.name not in update.of:
                continue
            for group, values in update.settings.items():
                for key, value in (values if isinstance(values, dict) else {group: values}).items():
                    said[key][holder.rank] = value
    for key, values in said.items():
        if len({json.dumps(value) for value in values.values()}) > 1:
            ranks = [next(rank for rank, value in values.items() if value == one) for one in _distinct(values.values())]
            return f"{key} is " + ", ".join(f"{values[rank]} on rank {rank}" for rank in ranks)
    return "they have others"


def _distinct(values: Iterable[object]) -> list[object]:
    found: list[object] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _buffers(step: int, facts: Facts, copies: Sequence[Replica]) -> Iterator[Remark]:
    """Find buffers that are not the same on ranks whose module is a replica."""
    sets = {tuple(sorted({holder.rank for holder in some})) for some in copies}
    held: dict[str, dict[int, Content]] = defaultdict(dict)
    modules = {holder.name.rpartition(".")[0] for some in copies for holder in some}
    for rank, one in facts.items():
        for name, content in one.buffers.items():
            if name.rpartition(".")[0] in modules and content.bits is not None:
                held[name][rank] = content
    unlike: dict[str, set[int]] = {}
    for name, contents in held.items():
        for ranks in sets:
            among = {rank: contents[rank] for rank in ranks if rank in contents}
            if len({one.bits for one in among.values()}) > 1 and len({one.shape for one in among.values()}) == 1:
                unlike.setdefault(name, set()).update(among)
    if unlike:
        on = sorted(set().union(*unlike.values()))
        text = (
            f"buffers {_named(sorted(unlike))} are not the same on {_of_ranks(on)} when step {step} begins to use "
            "them: each rank goes by its own data alone"
        )
        yield Remark("buffers", step, on, sorted(unlike), text)


def _tie(replicas: Sequence[Replica]) -> str:
    names = {holder.name: holder.rank for copies in replicas for holder in copies}
    return " and ".join(f"{name} on rank {rank}" for name, rank in sorted(names.items(), key=lambda item: item[1]))


def _of_ranks(ranks: Iterable[int]) -> str:
    *head, last = map(str, sorted(ranks))
    return f"ranks {', '.join(head)} and {last}" if head else f"rank {last}"


def _named(names: Sequence[str]) -> str:
    """Return the first names; those of all layers are one."""
    shown = patterns(names)
    head = ", ".join(shown[:_NAMED])
    return head if len(shown) <= _NAMED else f"{head} and {len(shown) - _NAMED} more"
