"""Where a suspect shows: in its own outputs, or, where one run alone has it, in what later calls were given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numscope.core.report import Origin
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import Record


def places_of(pairs: Pairing, origin: Origin) -> tuple[list[Place], bool]:
    """Return where a suspect shows, and whether both runs have it."""
    row = pairs.row(origin.call, origin.kind)
    if row is None:
        return [], False
    matched = row["target_order"] is not None and row["reference_order"] is not None
    return list(_own(pairs, row) if matched else _later(pairs, row, origin.relative)), matched


@dataclass(frozen=True)
class Place:
    """A slot in which a suspect shows: the target's tensor, and the reference's."""

    slot: str
    target: int
    reference: int
    target_maker: int | None = None  # order of the suspect, where it made the tensor itself
    reference_maker: int | None = None


def _own(pairs: Pairing, row: dict[str, Any]) -> Iterator[Place]:
    """Yield the outputs of a suspect that both runs have."""
    here, there = row["target_order"], row["reference_order"]
    ours = _slots(pairs.target, here, "output", "parameters_grad")
    theirs = _slots(pairs.reference, there, "output", "parameters_grad")
    places = [
        Place(slot, number, theirs[slot], pairs.target.unit(here), pairs.reference.unit(there))
        for slot, number in ours.items()
        if slot in theirs and not pairs.bitwise(number, theirs[slot])
    ]
    # A fault can hide in rounding: what differs at all is looked at, what differs by more first.
    yield from sorted(places, key=lambda place: pairs.same(place.target, place.reference))


def _later(pairs: Pairing, row: dict[str, Any], error: float | None) -> Iterator[Place]:
    """Yield where a call that one run alone has shows: in what a later call was given, and in its module's output.

    The comparison names an error: the place that has just this error is the one it means.
    """
    first: list[Place] = []
    meant: list[Place] = []
    for later in pairs.rows[pairs.rows.index(row) + 1 :]:
        if later["target_order"] is None or later["reference_order"] is None:
            continue
        ours, theirs = _slots(pairs.target, later["target_order"]), _slots(pairs.reference, later["reference_order"])
        places = [
            Place(slot, number, theirs[slot])
            for slot, number in ours.items()
            if slot in theirs and not pairs.same(number, theirs[slot])
        ]
        given = [place for place in places if not place.slot.startswith("output")]
        given.sort(key=lambda place: not place.slot.startswith("parameters."))  # a weight that differs is said first
        if later["kind"] == "module":
            places = []  # a module's row stands where it begins: what it gives is made later
        if not first:
            first = (given or places)[:2]
        meant = [p for p in places if error and _close(pairs.errors.get((later["pair"], p.slot)), error)][:1]
        if first and (meant or not error):
            break
    if not any(place.slot.startswith("parameters.") for place in first):
        yield from meant
    yield from first
    for other in pairs.rows:
        same = other["kind"] == "module" and other["module"] == row["module"] and other["phase"] == row["phase"]
        if same and row["module"] and other["target_order"] is not None and other["reference_order"] is not None:
            yield from (
                Place(place.slot, place.target, place.reference)
                for place in _own(pairs, other)
                if place.slot.startswith("output")
            )


def _close(found: float | None, wanted: float) -> bool:
    return found is not None and abs(found - wanted) <= 1e-6 * abs(wanted)


def _slots(record: Record, order: int, *groups: str) -> dict[str, int]:
    return {slot: number for slot, number in record.slots(order, *groups).items() if number is not None}
