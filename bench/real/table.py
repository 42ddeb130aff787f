"""The results as a table and in figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.real.judge import BENIGN, Outcome


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures: bugs detected, named at their line, led to their fix; false origins; controls passed."""
    bugs = [one for one in outcomes if not one.control]
    controls = [one for one in outcomes if one.control]
    figures = {
        "bugs": len(bugs),
        "detected": sum(one.detected for one in bugs),
        "origins_right": sum(one.origin_right for one in bugs),
        "statements": sum(one.statement for one in bugs),
        "controls": len(controls),
        "controls_passed": sum(one.verdict in BENIGN for one in controls),
        "origins_false": sum(one.origin_false for one in outcomes),
        "failed_jobs": sum(bool(one.fault) for one in outcomes),
    }
    passed = not figures["origins_false"] and not figures["failed_jobs"]
    passed = passed and figures["detected"] == len(bugs) and figures["controls_passed"] == len(controls)
    return {**figures, "passed": passed and figures["statements"] >= 0.75 * len(bugs)}


def text(outcomes: Sequence[Outcome], figures: dict[str, Any]) -> str:
    """Return the table, a row for each pair, and the figures below."""
    rows = [
        "| pair | releases | verdict | origin | fix's statement on the chain |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in outcomes:
        releases = f"{one.bad} → {one.fixed.partition('==')[2]}"
        rows.append(f"| {one.pair} | {releases} | {one.verdict or 'failed'} | {_origin(one)} | {_statement(one)} |")
    told = (
        f"{figures['detected']} of {figures['bugs']} bugs detected, {figures['origins_right']} named at their line, "
        f"{figures['statements']} led to the statement of the fix; {figures['origins_false']} false origins; "
        f"{figures['controls_passed']} of {figures['controls']} controls passed "
        f"({figures['date']}, torch {figures['torch']})"
    )
    return "\n".join([*rows, "", told])


def _origin(one: Outcome) -> str:
    if one.control:
        return "false" if one.origin_false else ""
    return "right" if one.origin_right else "false" if one.origin_false else "none"


def _statement(one: Outcome) -> str:
    return "" if one.control else "yes" if one.statement else "no"
