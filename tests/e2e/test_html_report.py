"""The HTML report: one file, opened from disk, with no request of any kind."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from numscope.compare.comparison import Comparison, compare
from numscope.compare.parts.rows import Rows
from numscope.core.report import Origin, Report
from numscope.report.html import write_html
from tests.e2e import synthetic
from tests.unit.compare.test_judge import chain

ORIGIN = "Functional.gelu.1.forward"
NASTY = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def report(comparison: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(comparison, path)
    return path


def test_the_report_opens_from_disk_and_shows_the_first_pages(page: Any, report: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("[data-testid=origin]")
    assert ORIGIN in page.inner_text("[data-testid=origin]")
    assert page.locator("[data-testid=cap]").count() == 0  # nothing is left out
    assert "approximate=self.approximate" in page.inner_text(".frame.user")
    page.click(".tabs >> text=Story")
    page.wait_for_selector("[data-testid=plot] canvas")
    page.click(".tabs >> text=Calls")
    page.wait_for_selector(".line .badge")
    page.get_by_label("Name").fill("gelu")
    page.wait_for_selector("text=12 of 378")
    page.click(".head >> text=error out")
    page.keyboard.press("n")
    page.wait_for_selector(".line.on")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#/tensor/"))
    page.keyboard.press("o")
    page.wait_for_selector(f"h1:has-text('{ORIGIN}')")
    assert '"tanh"' in page.inner_text("[data-testid=arguments]")
    assert "ULP, largest" in page.inner_text("[data-testid=errors]")
    assert page.locator(".tabs >> text=Model").count() == 0  # what needs a server is not offered
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_the_answer_says_what_is_missing_and_how_small_a_fault_would_have_shown(page: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    runs = (chain(noise=True).write(tmp_path / "a", steps=1), chain().write(tmp_path / "b", steps=3))
    write_html(compare(*runs), path)
    page.goto(path.as_uri())
    page.wait_for_selector("[data-testid=verdict]")
    assert "in the 1 of 3 steps that both have" in page.inner_text("[data-testid=verdict]")
    assert "only the reference has steps 1, 2" in page.inner_text("[data-testid=missing]")
    assert "of a call's output would show" in page.inner_text("[data-testid=resolution]")
    assert page.locator(".limit").count() >= 3


def test_names_from_a_run_cannot_become_code(page: Any, comparison: Any, tmp_path: Path) -> None:
    calls = comparison.calls
    names = pa.array([NASTY if name == ORIGIN else name for name in calls["target_name"].to_pylist()])
    calls = calls.set_column(calls.column_names.index("target_name"), "target_name", names)
    origin = dataclasses.replace(comparison.report.origin, call=NASTY, reason=NASTY, module=NASTY)
    nasty = dataclasses.replace(
        comparison,
        call_rows=Rows.of(calls),
        report=dataclasses.replace(comparison.report, origin=origin, suspects=(origin,)),
    )
    path = tmp_path / "report.html"
    write_html(nasty, path)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector("[data-testid=origin]")
    assert NASTY in page.inner_text("[data-testid=origin]")
    assert dialogs == []
    assert path.read_text().count("<script") == 2


def test_a_large_comparison_is_capped_and_says_so(page: Any, comparison: Any, tmp_path: Path) -> None:
    calls, pairs, report = synthetic.comparison(100_000)
    origin = report["origin"]
    told = Report(
        verdict="diverged",
        origin=Origin(origin["call"], "api", "forward", 0, 0, origin["reason"]),
        counts=report["counts"],
        prefix=report["prefix"],
        coverage=report["coverage"],
    )
    large = Comparison(told, Rows.of(calls), Rows.of(pairs), comparison.target, comparison.reference)
    path = tmp_path / "large.html"
    write_html(large, path)
    assert path.stat().st_size < 5_000_000
    page.goto(path.as_uri())
    page.wait_for_selector("[data-testid=cap]")
    assert "2,000 of 100,000 calls" in page.inner_text("[data-testid=cap]")
    page.click(".tabs >> text=Story")
    page.wait_for_selector("[data-testid=plot] canvas")
