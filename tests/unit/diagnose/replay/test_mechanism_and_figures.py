"""Whatever a lift test measures: the mechanism, its figures and the sentences about them say the same."""

from __future__ import annotations

import math
from typing import get_args

import torch
from hypothesis import given
from hypothesis import strategies as st

from numscope.core.report import Origin, Report
from numscope.core.words import Mechanism
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.replay.lift import Lift
from numscope.diagnose.replay.own_error import OwnError
from numscope.report.terminal.comparison import MEANING
from numscope.report.terminal.diagnosis import lines

# Nothing, below what float64 rounds, rounding of each dtype, a fault, all of it, and what can't be compared.
SIZES = (0.0, 1e-17, 2e-16, 1e-13, 1e-11, 2e-11, 1e-8, 2e-8, 6e-8, 1e-6, 2e-4, 4e-3, 0.3, 1.0, 2.0, math.inf)
sizes = st.sampled_from(SIZES) | st.floats(0, 4)
floors = st.sampled_from((1e-16, 6e-8, 4e-3)) | st.floats(1e-17, 0.1)


@st.composite
def own_errors(draw: st.DrawFn) -> OwnError:
    tensor = torch.zeros(1, dtype=torch.float64)
    return OwnError(
        relative=draw(sizes),
        replayed=draw(sizes),
        overall=draw(sizes) * 8,
        worst=draw(sizes) * 40,
        replayed_worst=draw(sizes) * 4,
        reproduced=draw(st.booleans()),
        bias=0.0,
        dtype=draw(st.sampled_from(("float32", "bfloat16"))),
        device=draw(st.sampled_from(("cpu", "cuda:0"))),
        recorded=tensor,
        exact=tensor,
        errors=tensor,
    )


@st.composite
def lifts(draw: st.DrawFn) -> Lift:
    lifted = draw(st.none() | sizes)
    return Lift(
        native=draw(st.none() | sizes) if lifted is None else draw(sizes),
        float32=draw(st.none() | sizes),
        float64=lifted,
        floor=draw(floors),
        floor64=draw(floors),
        target=draw(st.none() | own_errors()),
        reference=draw(st.none() | own_errors()),
        same_dtypes=draw(st.booleans()),
    )


def told(mechanism: Mechanism, *figures: Lift) -> str:
    """Return what is printed of a suspect with one mechanism, and the figures of its calls and of its module."""
    details: dict[str, object] = {"lift": figures[0].to_dict(), "target": ["Torch.mm.0.forward"]}
    if len(figures) > 1:
        details["unit"] = {"call": "Module.a.A.forward.0", "how": "imported", "lift": figures[1].to_dict()}
    suspect = Origin("Torch.mm.0.forward", "api", "forward", 0, 0, "mm: outputs differ")
    shown = Explanation(mechanism, details=details).on(suspect)
    return " ".join("\n".join(lines(Report("diverged", shown, (shown,)), 140)).split())


def figure(text: str, label: str) -> float:
    """Return the figure that stands behind a label."""
    return float(text.partition(f" {label} ")[2].split()[0])


@given(lifts())
def test_the_mechanism_and_what_is_printed_of_its_figures_agree(found: Lift) -> None:
    mechanism = found.mechanism()
    text = told(mechanism, found)
    assert [word for word in get_args(Mechanism) if MEANING[word] in text] == [mechanism]
    if "stays: no rounding does that" in text:
        assert mechanism == "semantic"
        assert figure(text, "float64") > 0
    if "gone: only the dtypes differ" in text:
        assert mechanism == "precision"
        assert figure(text, "float64") <= figure(text, "as recorded")
    if "shrinks with the precision: rounding" in text:
        assert mechanism == "order"
        assert figure(text, "float64") <= figure(text, "as recorded")
    if mechanism in ("order", "precision"):  # rounding and casts are no explanation of what is beyond rounding
        assert "beyond rounding" not in text
    if mechanism == "semantic":
        assert found.float64 is not None
        assert found.float64 > 1e-11
    if mechanism == "device":
        assert found.float64 is not None
        assert text.count("beyond rounding") == 1


@given(lifts(), lifts(), st.sampled_from(get_args(Mechanism)))
def test_figures_of_another_mechanism_are_never_called_its_proof(calls: Lift, module: Lift, said: Mechanism) -> None:
    """The calls show one thing, the module around them another: the figures that are shown say what is told."""
    text = told(said, calls, module)
    for mechanism, remark in (
        ("semantic", "stays: no rounding does that"),
        ("precision", "gone: only the dtypes differ"),
        ("order", "shrinks with the precision: rounding"),
    ):
        if remark in text:
            assert said == mechanism
            assert mechanism in (calls.mechanism(), module.mechanism())


@given(lifts())
def test_target_and_reference_are_treated_alike(found: Lift) -> None:
    mirrored = Lift(
        found.native,
        found.float32,
        found.float64,
        found.floor,
        found.floor64,
        found.reference,
        found.target,
        found.same_dtypes,
    )
    assert mirrored.mechanism() == found.mechanism()


@given(lifts())
def test_an_output_that_is_called_reproduced_is_not_off(found: Lift) -> None:
    for own, state in ((found.target, found.outcome.target), (found.reference, found.outcome.reference)):
        assert (own is None) == (state.value == "not kept")
    text = told(found.mechanism(), found)
    for side, state in (("target", found.outcome.target), ("reference", found.outcome.reference)):
        if state.value == "beyond rounding":
            assert f"{side}, cpu" in text or f"{side}, cuda:0" in text
            after = text.partition(f"{side}, c")[2].partition(";")[0]
            assert ", reproduced" not in after
