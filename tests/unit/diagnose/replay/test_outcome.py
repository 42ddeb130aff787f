"""No mechanism contradicts the outcome of the replays that it is drawn from."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from numscope.diagnose.replay.outcome import Outcome, Programs, Recorded

OUTCOMES = [Outcome(*found) for found in itertools.product(Programs, Recorded, Recorded)]
PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "mechanisms.md"


@pytest.mark.parametrize("outcome", OUTCOMES, ids=str)
def test_a_mechanism_agrees_with_the_replays(outcome: Outcome) -> None:
    off = (outcome.target, outcome.reference).count(Recorded.OFF)
    found = outcome.mechanism
    # What is said of the programs is what their replays show.
    assert (found == "semantic") == (outcome.programs is Programs.OTHER_MEANING)
    if found == "precision":
        assert outcome.programs is Programs.OTHER_DTYPES
    if found == "order":
        assert outcome.programs in (Programs.SAME, Programs.OTHER_ORDER)
    # Rounding is no explanation of an output that is beyond rounding.
    if off:
        assert found not in ("precision", "order")
    # A device is at fault where one output alone is wrong, though the programs mean the same.
    assert (found == "device") == (off == 1 and outcome.programs not in (Programs.OTHER_MEANING, Programs.UNKNOWN))
    # Nothing is concluded from what was not kept.
    if outcome.programs is Programs.SAME and not off and Recorded.NOT_KEPT in outcome[1:]:
        assert found == "unknown"


def test_the_two_sides_are_treated_alike() -> None:
    for outcome in OUTCOMES:
        mirrored = Outcome(outcome.programs, outcome.reference, outcome.target)
        assert mirrored.mechanism == outcome.mechanism


def test_the_page_has_the_table() -> None:
    """The page's rows say, for each kind of programs, the mechanism by how many recorded outputs are off: 0, 1, 2."""
    page = PAGE.read_text()
    for programs in Programs:
        row = re.search(rf"^\| {programs.value} \|(.*)\|$", page, re.MULTILINE)
        assert row is not None, programs.value
        cells = [cell.strip().strip("`") for cell in row[1].split("|")]
        states = (Recorded.RIGHT, Recorded.RIGHT), (Recorded.OFF, Recorded.RIGHT), (Recorded.OFF, Recorded.OFF)
        assert cells == [Outcome(programs, *sides).mechanism for sides in states], programs
