"""`diagnose` prints the answer first, then the figures that prove it, then what could not be done."""

from __future__ import annotations

import io
from typing import Any

import pytest

from numscope.core.report import Origin, Report, Source
from numscope.report.terminal.diagnosis import lines, print_diagnosis

LIFT = {
    "native": 2e-4,
    "float32": 2e-4,
    "float64": 2e-4,
    "floor": 1e-7,
    "target_error": 4e-8,
    "target_reproduced": True,
    "reference_error": 4e-8,
    "reference_reproduced": False,
}


def origin(
    mechanism: str = "semantic", repair: str | None = "equal to the reference with eps=1e-06", **details: Any
) -> Origin:
    return Origin(
        call="Functional.gelu.2.forward",
        kind="api",
        phase="forward",
        step=3,
        rank=1,
        reason="gelu: outputs differ by 0.0002; model.py:41",
        module="blocks.2.mlp",
        source=Source("src/model.py", 41, "forward", "  return F.gelu(x)"),
        mechanism=mechanism,  # type: ignore[arg-type]
        repair=repair,
        details={"diagnosis": details},
    )


def shown(*suspects: Origin, width: int = 100) -> str:
    return "\n".join(lines(Report("diverged", suspects[0], suspects), width))


def test_where_what_and_the_repair_come_first() -> None:
    text = shown(origin(lift=LIFT, target=["Functional.gelu.2.forward"], reference=["Functional.gelu.2.forward"]))
    assert text.splitlines()[0] == " DIVERGED  at Functional.gelu.2.forward in blocks.2.mlp, step 3, rank 1"
    assert text.index("mechanism  semantic") < text.index("repair     equal to") < text.index("lift ")
    assert text.count("model.py:41") == 1  # not in the reason too
    assert "    return F.gelu(x)" in text
    assert "target 4.0e-08, reproduced; reference 4.0e-08, not reproduced" in text


def test_a_bar_is_as_long_as_its_figure_is_large() -> None:
    text = shown(origin("order", None, lift={**LIFT, "native": 2.9e-3, "float32": 2.3e-7, "float64": 7.2e-16}))
    lengths = [line.count("━") for line in text.splitlines() if "━" in line]
    assert len(lengths) == 4
    assert lengths[0] > lengths[1] > lengths[2] > 0
    assert "shrinks with the precision: rounding" in text
    assert "repair" not in text  # there is nothing to repair
    none = shown(origin("precision", lift={**LIFT, "float32": 0.0, "float64": 0.0}))
    assert [line.count("━") > 0 for line in none.splitlines() if line[13:20] in ("float32", "float64")] == [
        False,
        False,
    ]


@pytest.mark.parametrize("width", [60, 100, 140])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    unit = {
        "call": "Module.a.B.forward.0",
        "how": "imported from train.py",
        "lift": LIFT,
        "inside": {"call": "Torch.mm.0.forward"},
    }
    text = shown(origin(repair="equal to the reference with " + "x " * 90, unit=unit, note="n " * 80), width=width)
    assert max(map(len, text.splitlines()[1:])) <= width  # but the call's name, which can't be cut
    assert "inside it Torch.mm.0.forward" in " ".join(text.split())


def test_what_could_not_be_done_is_said_with_what_to_do() -> None:
    text = shown(
        origin(
            "unknown",
            None,
            could_not="the data of x was not kept",
            next="capture with --keep tensors",
            not_replayed=["f: it draws random numbers"],
        )
    )
    assert "could not  the data of x was not kept" in text
    assert "could not  replay f: it draws random numbers" in text
    assert "next       capture with --keep tensors" in text
    text = shown(origin("unknown", None, unit={"call": "M", "could_not": "its script is not here"}))
    assert "as a unit  not replayed: its script is not here" in text


def test_rivals_are_a_line_each_and_the_same_repair_is_said_once() -> None:
    first = origin(lift=LIFT)
    text = shown(first, origin(), origin("input", None))
    assert text.count("equal to the reference with eps=1e-06") == 1
    assert "also       Functional.gelu.2.forward, step 3: input; gelu: outputs differ by 0.0002" in text


def test_colours_only_where_they_are_wanted() -> None:
    stream = io.StringIO()
    print_diagnosis(Report("diverged", origin()), stream)
    assert "\x1b[" not in stream.getvalue()
    print_diagnosis(Report("diverged", origin()), stream, colour=True)
    assert "\x1b[" in stream.getvalue()


def test_runs_that_agree_have_one_line_of_reason() -> None:
    assert lines(Report("equivalent", reason="all within rounding")) == [" EQUIVALENT ", "", "  all within rounding"]
