"""compare of two runs that were captured with verify: a call's own error is known, so that no rule about rounding is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import numscope as ns
from tests.integration import device_faults


def captured(path: Path, **settings: object) -> Path:
    with ns.capture(path, verify=True, on_error="raise", **settings) as cap:
        for _ in device_faults.train(steps=1):
            cap.step()
    return path


@pytest.mark.parametrize("name", list(device_faults.FAULTS)[::4])
def test_the_call_that_computes_wrongly_is_the_origin_and_which_elements_is_said(name: str, tmp_path: Path) -> None:
    fault = device_faults.FAULTS[name]
    with device_faults.faulty(name):
        target = captured(tmp_path / "target")
    reference = captured(tmp_path / "reference")
    report = ns.compare(target, reference).report
    assert report.verdict == "diverged"
    origin = report.origin
    assert origin.call.split(".")[1] in fault.calls
    assert origin.mechanism == "device"
    assert "computes wrongly on cpu" in origin.reason
    assert "the other side computes as exactly as its kind does" in origin.reason


def test_a_reference_that_computes_wrongly_is_named_as_such(tmp_path: Path) -> None:
    with device_faults.faulty("product with a wrong tile"):
        reference = captured(tmp_path / "reference")
    origin = ns.compare(captured(tmp_path / "target"), reference).report.origin
    assert "in the reference" in origin.reason
    assert "computes wrongly" in origin.reason


def job(x: torch.Tensor) -> torch.Tensor:
    """A function that makes much of what comes in: 1e-6 becomes 1e-2."""
    return torch.sin(torch.mul(x, 1e4)).sum()


def run(path: Path, off: float, verify: bool) -> Path:
    x = torch.linspace(1, 2, 64)
    with ns.capture(path, verify=verify, on_error="raise", stacks=False) as cap:
        job(torch.add(x, off).exp())
        cap.step()
    return path


def test_calls_that_are_exact_on_both_sides_are_no_origin_whatever_they_make_of_what_came_in(tmp_path: Path) -> None:
    for name, verify in (("with", True), ("without", False)):
        report = ns.compare(run(tmp_path / f"{name}-a", 1e-7, verify), run(tmp_path / f"{name}-b", 0.0, verify)).report
        named = [one.call for one in report.suspects]
        assert "Torch.sin.0.forward" not in named, report.reason


def test_an_argument_that_differs_is_an_origin_though_both_sides_compute_exactly(tmp_path: Path) -> None:
    for name, form in (("a", "tanh"), ("b", "none")):
        with ns.capture(tmp_path / name, verify=True, on_error="raise") as cap:
            torch.nn.functional.gelu(torch.linspace(-2, 2, 64), approximate=form)
            cap.step()
    report = ns.compare(tmp_path / "a", tmp_path / "b").report
    assert report.verdict == "diverged"
    assert report.origin.call == "Functional.gelu.0.forward"
    assert report.origin.mechanism == "semantic"


def test_healthy_runs_are_as_equal_with_verify_as_without(tmp_path: Path) -> None:
    assert ns.compare(captured(tmp_path / "a"), captured(tmp_path / "b")).report.verdict == "identical"
