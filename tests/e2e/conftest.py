"""Real runs, real comparisons and a real browser for the viewer's tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import numscope as ns
from numscope.view.session import Session
from tests.e2e import runs
from tests.e2e.browser import CHROMIUM, PATIENCE, chromium, ready, serving, watch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None and os.environ.get("CI") != "true":
        for item in items:
            if "page" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="no chromium: apt-get install chromium"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five small runs of one model."""
    folder = tmp_path_factory.mktemp("runs")
    runs.train(folder / "npu", wrong=True)
    runs.train(folder / "gpu", wrong=False)
    runs.train(folder / "npu-stats", wrong=True, keep="stats", steps=1)
    runs.train(folder / "gpu-stats", wrong=False, keep="stats", steps=1)
    runs.train(folder / "overflow", wrong=False, keep="stats", explode=True)
    return folder


@pytest.fixture(scope="session")
def comparison(folder: Path) -> Any:
    return ns.compare(folder / "npu", folder / "gpu")


@pytest.fixture(scope="session")
def compared(comparison: Any) -> Iterator[str]:
    """The address of a viewer of a comparison with kept tensors."""
    with serving(ready(Session.of_comparison(comparison))) as access:
        yield access.url


@pytest.fixture(scope="session")
def alone(folder: Path) -> Iterator[str]:
    """The address of a viewer of one run that overflows."""
    with serving(ready(Session.of_run(ns.open_run(folder / "overflow")))) as access:
        yield access.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the tests of one file: while Playwright runs, asyncio.run fails in its thread, so it must end."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; anything that goes wrong on it fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, locale="en-US", accept_downloads=True)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    faults = watch(page)
    yield page
    context.close()
    assert faults == []


@pytest.fixture
def go(page: Any) -> Callable[[str, str], Any]:
    """Open a page of a viewer: `go(address, "calls?q=gelu")`."""

    def to(address: str, where: str) -> Any:
        page.goto(f"{address}#/{where}")
        return page

    return to
