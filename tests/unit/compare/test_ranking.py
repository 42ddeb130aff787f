"""One cause is one suspect."""

from __future__ import annotations

from numscope.compare.judge.findings import Weight
from numscope.compare.parts.rows import Rows
from numscope.compare.ranking import findings_table, ranked, told_once
from numscope.compare.steps import PlacedOrigin
from numscope.core.report import Origin, Source
from numscope.core.words import OriginKind


def origin(
    call: str, module: str = "", line: int = 7, step: int = 0, rank: int = 0, kind: OriginKind = "api"
) -> Origin:
    phase = "backward" if call.endswith("backward") else "forward"
    return Origin(call, kind, phase, step, rank, "off", module, Source("model.py", line) if line else None)


def rows(*found: Origin) -> Rows:
    return Rows.of(findings_table([PlacedOrigin(one, 0.0, Weight.PROVEN) for one in found], "origin"))


def test_the_same_line_in_other_layers_steps_and_in_backward_is_one_suspect_with_a_count() -> None:
    layers = [origin(f"Functional.gelu.{n}.forward", f"blocks.{n}") for n in range(3)]
    backward = [
        origin("Functional.gelu.1.backward", "blocks.1"),
        origin("Functional.gelu.0.forward", "blocks.0", step=1),
    ]
    (one,) = told_once(rows(*layers, *backward), "origin")
    assert one.call == "Functional.gelu.0.forward"
    assert one.reason == "off; the same in 3 modules, 2 steps"
    assert one.details["places"] == {"calls": 5, "modules": 3, "steps": 2, "ranks": 1}


def test_other_lines_and_other_operators_of_a_line_stay_apart() -> None:
    several = [origin("Tensor.mul.0.forward"), origin("Tensor.add.0.forward"), origin("Tensor.mul.1.forward", line=8)]
    assert told_once(rows(*several), "origin") == several


def test_parameters_of_other_layers_are_one_suspect_by_their_names() -> None:
    names = ["blocks.0.up.weight", "blocks.1.up.weight", "head.weight"]
    found = told_once(rows(*(origin(name, module=name[:-7], kind="parameter") for name in names)), "origin")
    assert [one.call for one in found] == ["blocks.0.up.weight", "head.weight"]


def test_what_is_proven_comes_before_what_nothing_reads_and_what_follows_another_fault() -> None:
    placed = [
        PlacedOrigin(origin("Tensor.abs.0.forward", line=1), 1.0, Weight.READ_BY_NONE),
        PlacedOrigin(origin("Tensor.mul.0.forward", line=2), 2.0, Weight.PROVEN),
        PlacedOrigin(origin("Tensor.add.0.forward", line=3), 0.5, Weight.AFTER_ANOTHER),
        PlacedOrigin(origin("head.weight", line=0, kind="parameter"), 3.0, Weight.PROVEN),
    ]
    assert [one.call.split(".")[1] for one in ranked(Rows.of(findings_table(placed, "origin")))] == [
        "weight",
        "mul",
        "abs",
        "add",
    ]
