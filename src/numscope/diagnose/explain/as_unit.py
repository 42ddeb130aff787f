"""When a module is replayed as a unit, and what that adds to the explanation by its recorded calls."""

from __future__ import annotations

from typing import Any

from numscope.core.report import Origin
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.inside_module import look_inside
from numscope.diagnose.recorded.evidence import Place, places_of
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.pairing import Pairing
from numscope.diagnose.recorded.step_graph import NotKept
from numscope.diagnose.replay.module_unit import UnitFigures, figures

_HIGHEST = 4  # modules around a suspect that are asked


def explain_as_unit(pairs: Pairing, origin: Origin, found: Explanation) -> Explanation:
    """Return the explanation of a suspect with what its module, replayed as a unit, shows.

    A module that is the suspect itself is replayed so in any case. For a call inside one it is done where the call
    itself could not be explained: it is random, or no torch function, or was not recorded. Where a module is right for
    what it was given, and was given something else by no recorded call, the module around it is asked.
    """
    row = pairs.row(origin.call, origin.kind)
    itself = row is not None and row["kind"] == "module"
    if row is None or not (itself or found.mechanism == "unknown"):
        return found
    here = row if itself else _enclosing(pairs, row)
    why = ""
    for _ in range(_HIGHEST):
        if here is None or here["target_order"] is None or here["reference_order"] is None:
            break
        try:
            unit = _figures(pairs, here)
        except (CannotReplay, NotKept) as error:
            why = why or str(error)
            break
        if unit.lift.native or unit.lift.float64:
            return _joined(found, unit, here["target_name"], of_itself=here is row)
        if here is row:
            found.details["unit"] = _told(unit, here["target_name"])
        if not unit.unlike:
            break
        here = _enclosing(pairs, here)
    if itself and "unit" not in found.details and why:
        found.details["unit"] = {"call": origin.call, "could_not": why}
    return found


def _figures(pairs: Pairing, row: dict[str, Any]) -> UnitFigures:
    """Return the figures of a module's output that shows most: one that differs in meaning, else the first."""
    why: Exception = CannotReplay("no output of it differs")
    first = None
    for place in _places(pairs, row):
        try:
            found = figures(pairs, row["target_order"], row["reference_order"], place)
        except (CannotReplay, NotKept) as error:
            why = error
            continue
        if found.lift.mechanism() == "semantic":
            return found
        first = first or found
    if first is None:
        raise why
    return first


def _places(pairs: Pairing, row: dict[str, Any]) -> list[Place]:
    origin = Origin(row["target_name"], "module", row["phase"], row["step"], row["rank"], "")
    return places_of(pairs, origin)[0][:4]


def _enclosing(pairs: Pairing, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of the module's call in which a call was made."""
    side, record = ("target", pairs.target) if row["target_order"] is not None else ("reference", pairs.reference)
    order = record.calls[row[f"{side}_order"]].parent
    while order is not None and order in record.calls and record.calls[order].kind != "module":
        order = record.calls[order].parent
    return next((other for other in pairs.rows if order is not None and other[f"{side}_order"] == order), None)


def _told(unit: UnitFigures, name: str) -> dict[str, Any]:
    told: dict[str, Any] = {"call": name, "how": unit.how, "lift": unit.lift.to_dict()}
    if unit.unlike:
        told["inputs_that_differ"] = list(unit.unlike)
    return told


def _joined(found: Explanation, unit: UnitFigures, name: str, of_itself: bool) -> Explanation:
    """Return what is known with what the unit shows; a repair that is proven already stays."""
    told = _told(unit, name)
    mechanism, repair = unit.lift.mechanism(), found.repair
    if repair is None and mechanism in ("semantic", "precision"):
        inner = look_inside(unit)
        if inner is not None:
            told["inside"] = {"call": inner.call, "reason": inner.reason, "mechanism": inner.mechanism}
            mechanism = inner.mechanism if inner.mechanism != "unknown" else mechanism
            repair = f"{inner.repair}, inside {unit.target.forward.module}" if inner.repair else None
    if mechanism == "unknown" or (of_itself and found.repair is not None and found.mechanism != "unknown"):
        mechanism = found.mechanism
    details = {key: value for key, value in found.details.items() if key != "could_not" or mechanism == "unknown"}
    return Explanation(mechanism, repair, found.reason, {**details, "unit": told})
