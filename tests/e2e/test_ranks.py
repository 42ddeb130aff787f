"""Ranks and steps as a grid, and the same call on all ranks, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import numscope as ns
from bench.many_ranks import Fault, write_pair
from numscope.view.session import Session
from tests.e2e import runs
from tests.e2e.browser import ready, serving, until

RANKS, STEPS = 12, 4


class Job:
    """A viewer of a comparison of many ranks, and where the target is wrong."""

    def __init__(self, url: str, fault: Fault) -> None:
        self.url, self.fault = url, fault


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("ranks")
    runs.train(folder / "template", wrong=False, keep="stats", steps=1)
    fault = write_pair(ns.open_run(folder / "template"), folder, RANKS, STEPS)
    found = ns.compare(folder / "target", folder / "reference")
    with serving(ready(Session.of_comparison(found))) as access:
        yield Job(access.url, fault)


def test_the_grid_shows_every_step_of_every_rank_the_worst_first(go: Any, job: Job) -> None:
    page = go(job.url, "ranks")
    page.wait_for_selector("[data-testid=ranks]")
    assert page.locator("[data-testid=ranks] a").count() == RANKS * STEPS
    first = page.locator("[data-testid=ranks] .line:not(.head) [role=rowheader]").first
    assert first.inner_text() == f"rank {job.fault.rank}"
    assert "1 of 12 ranks" in page.inner_text("[data-testid=ranks-summary]")
    page.click("text=by number")
    until(page, "() => document.querySelector('[data-testid=ranks] [role=rowheader]').innerText === 'rank 0'")
    assert page.locator("[data-testid=ranks] a.v-origin").count() == 1
    page.click(".segments >> text=error")
    until(page, "() => document.querySelectorAll('[data-testid=ranks] a.by-error').length === 48")


def test_the_grid_is_walked_by_the_keyboard_and_a_cell_opens_its_calls(go: Any, job: Job) -> None:
    page = go(job.url, "answer")
    page.wait_for_selector("nav.tabs >> text=Ranks")
    page.keyboard.press("5")
    page.wait_for_selector("[data-testid=ranks]")
    assert page.locator("[data-testid=ranks] a[tabindex='0']").count() == 1  # one stop of the tabulator
    page.focus("[data-testid=ranks] a[tabindex='0']")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    label = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert label.startswith(f"rank {job.fault.rank}, step 2: origin")
    page.keyboard.press("Enter")
    page.wait_for_selector(".line .badge")
    assert f"step=2&rank={job.fault.rank}" in page.url


def test_a_call_stands_beside_itself_on_all_ranks(go: Any, job: Job) -> None:
    page = go(job.url, "answer")
    page.wait_for_selector("nav.tabs")
    page.keyboard.press("o")
    page.wait_for_selector("[data-testid=on-ranks]")
    rows = page.locator("[data-testid=on-ranks] tbody tr")
    assert rows.count() == RANKS
    assert f"{job.fault.rank}\t" in rows.first.inner_text()
    assert "origin" in rows.first.inner_text() or "inherited" in rows.first.inner_text()
    current = page.locator("[data-testid=on-ranks] tr[aria-current]")
    assert current.inner_text() == rows.first.inner_text()
    page.keyboard.press("]")
    until(page, "rank => document.querySelector('h1 ~ *, main').innerText.includes(`rank ${rank}`)", job.fault.rank + 1)


def test_ranks_are_told_in_chinese_and_no_page_of_one_rank_has_them(go: Any, job: Job, compared: str) -> None:
    page = go(compared, "answer")
    page.wait_for_selector("nav.tabs")
    assert page.locator("nav.tabs >> text=Ranks").count() == 0
    page = go(job.url, "ranks")
    page.wait_for_selector("[data-testid=ranks]")
    page.click("[aria-label=Language]")
    until(page, "() => document.querySelector('h1').innerText === 'rank 与步'")
    assert "12 个 rank 中有 1 个存在错误的调用" in page.inner_text("[data-testid=ranks-summary]")
