"""The page of `numscope check --html`: what computes wrongly, and the own error of each operator beside its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import numscope as ns
from numscope.__main__ import main
from tests.integration import device_faults


def captured(path: Path) -> str:
    with ns.capture(path, verify=True, on_error="raise") as cap:
        for _ in device_faults.train(steps=1):
            cap.step()
    return str(path)


def test_a_run_with_a_faulty_kernel(page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with device_faults.faulty("product with a wrong tile"):
        run = captured(tmp_path / "run")
    file = tmp_path / "check.html"
    assert main(["check", run, "--html", str(file)]) == 1
    page.goto(file.as_uri())
    page.wait_for_selector("[data-testid=picture]")
    assert "A call computes wrongly" in page.inner_text("[data-testid=verdict]")
    assert "Functional.linear.0.forward" in page.inner_text("[data-testid=origin]")
    assert page.locator("[data-testid=picture] .bad").count() >= 1
    right = page.locator("[data-testid=picture] g:not(.bad) circle")
    assert right.count() > 5
    mark = page.locator("[data-testid=picture] .bad .limit-mark").first.bounding_box()
    dot = page.locator("[data-testid=picture] .bad circle").first.bounding_box()
    assert dot["x"] > mark["x"]  # beyond its limit
    page.click("text=zh")
    page.wait_for_selector("text=有调用计算错误")


def test_a_healthy_run(page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "check.html"
    assert main(["check", captured(tmp_path / "run"), "--html", str(file)]) == 0
    page.goto(file.as_uri())
    page.wait_for_selector("[data-testid=picture]")
    assert "Nothing is wrong" in page.inner_text("[data-testid=verdict]")
    assert page.locator("[data-testid=picture] .bad").count() == 0
