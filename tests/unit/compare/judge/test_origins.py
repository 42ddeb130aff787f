"""Findings in words: kind, mechanism, details and the end of the sentence."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from numscope.compare.judge.facts import Facts
from numscope.compare.judge.findings import Dtypes, ErrorSizes, Finding, LoneCall, Reason
from numscope.compare.judge.origins import origin
from numscope.compare.judge.reasons import DataDiffers, OutputDiffers, ParameterDiffers, UpdateDiffers
from numscope.compare.load.sources import Sources
from numscope.core.report import Origin, Source
from tests.unit.compare.judge.tables import X, data, facts_of
from tests.unit.compare.scripted import Script, numbers

G = numbers((16, 64), seed=3)
SIZES = ErrorSizes(0.25, 1e-6, 1e-7)
LINE = Source("/home/user/model.py", 12)


def facts(eps: float = 1e-5) -> Facts:
    def script(value: float) -> Script:
        made = data(Script(), X)
        given = {"input.0": X, "parameters.weight": G}
        made.call("Functional.layer_norm.0.forward", given, {"output.0": G}, module="ln", arguments={"eps": value})
        return made

    return facts_of(script(eps), script(1e-5))


def said(known: Facts, finding: Finding, source: Source | None = None) -> Origin:
    sources = mock.Mock(spec=Sources)
    sources.of.return_value = source
    return origin(finding, known.a, known.b, (sources, sources))


def test_an_origin_says_what_differs_and_where() -> None:
    known = facts(1e-6)
    found = said(known, known.finding(OutputDiffers(), 1, SIZES), LINE)
    assert found.reason == (
        "layer_norm in ln: inputs within 1e-07, outputs differ by 0.25 (rounding explains 1e-06)"
        "; argument eps 1e-06 against 1e-05; model.py:12"
    )
    assert (found.kind, found.phase, found.module, found.source) == ("api", "forward", "ln", LINE)
    assert found.details == {
        "arguments": ["eps 1e-06 against 1e-05"],
        "target_order": 1,
        "reference_order": 1,
        "reference_call": "Functional.layer_norm.0.forward",
    }


@pytest.mark.parametrize(
    ("eps", "change", "mechanism"),
    [
        (1e-6, {}, "semantic"),
        (1e-5, {"dtypes": Dtypes("bfloat16", "float32")}, "precision"),
        (1e-5, {"random": True}, "input"),
        (1e-5, {}, "unknown"),
    ],
)
def test_the_mechanism_follows_from_what_differs(eps: float, change: dict[str, object], mechanism: str) -> None:
    known = facts(eps)
    finding = replace(known.finding(OutputDiffers(), 1, SIZES), **change)  # type: ignore[arg-type]
    assert said(known, finding).mechanism == mechanism


@pytest.mark.parametrize(
    ("reason", "kind", "phase", "mechanism"),
    [
        (DataDiffers(), "data", "input", "input"),
        (ParameterDiffers(), "parameter", "input", "parameter"),
        (UpdateDiffers(), "optimizer", "forward", "unknown"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_kind_follows_from_the_reason(reason: Reason, kind: str, phase: str, mechanism: str) -> None:
    known = facts()
    found = said(known, known.finding(reason, 1, SIZES, "parameters.weight"))
    assert (found.kind, found.phase, found.mechanism) == (kind, phase, mechanism)


def test_a_parameter_is_named_by_its_path() -> None:
    known = facts()
    found = said(known, known.finding(ParameterDiffers(between_steps=True), 1, SIZES, "parameters.weight"))
    assert found.call == "ln.weight"
    assert found.reason.startswith("parameter ln.weight changed between the steps: off by 0.25")


def test_a_call_of_the_reference_alone_is_missing() -> None:
    """One that only the reference has is missing."""
    known = facts()
    found = said(known, known.lone_finding(LoneCall(reference=1), "Torch.exp.0.forward", SIZES, "input.0"), LINE)
    assert (found.kind, found.call, found.mechanism) == ("missing", "Functional.layer_norm.0.forward", "semantic")
    assert "only the reference has this call; Torch.exp.0.forward then gets input.0 off by 0.25" in found.reason
    assert found.details["shows_in"] == "Torch.exp.0.forward"


def test_two_dtypes_and_random_draws_are_said() -> None:
    """The answer then says so: the target computes in bfloat16, the reference in float32."""
    known = facts()
    plain = known.finding(OutputDiffers(), 1, SIZES)
    dtypes = said(known, replace(plain, dtypes=Dtypes("bfloat16", "float32")))
    assert dtypes.reason.endswith("; it computes in bfloat16, the reference in float32")
    random = said(known, replace(plain, random=True))
    assert random.reason.endswith("; it draws random numbers, and the two runs drew different ones")


def test_whatever_made_data_differ_it_is_the_data() -> None:
    known = facts()
    found = said(known, known.finding(OutputDiffers(), 0, SIZES, "output.0"))
    assert (found.kind, found.phase) == ("data", "input")
    assert found.reason.startswith("the input data differs before any call")
