"""Opening runs: the start page, the command, hooktools' forms, a run that is still being written."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from numscope.store.reader import open_run
from numscope.view.app import Viewer
from numscope.view.jobs import Choice
from numscope.view.recent import Memory
from tests.e2e import runs
from tests.e2e.browser import serving, until


@pytest.fixture
def empty(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Viewer]]:
    """A viewer with nothing open, started in the folder of the runs."""
    monkeypatch.chdir(folder)
    viewer = Viewer(memory=Memory(tmp_path / "viewer.json"))
    with serving(viewer) as access:
        yield access.url, viewer


def test_two_runs_are_chosen_compared_and_remembered(go: Any, empty: tuple[str, Viewer], folder: Path) -> None:
    page = go(empty[0], "")
    page.wait_for_selector("[data-testid=recent]")
    page.locator(".pick:has(bdi:text-matches('/npu$')) >> text=Target").click()
    page.locator(".pick:has(bdi:text-matches('/gpu$')) >> text=Reference").click()
    page.click("button[type=submit]")
    page.wait_for_selector("[data-testid=origin]")
    assert empty[1].memory.read().runs[:2] == [str(folder / "npu"), str(folder / "gpu")]
    page.click(".brand")
    page.wait_for_selector("text=Which runs?")
    assert page.locator("input[type=text]").first.input_value().endswith("npu")
    told = page.locator(".pick:has(bdi:text-matches('/npu$'))").first.inner_text()
    assert "diverged" in told  # the last verdict, beside the date and the size of the run
    assert re.search(r"\d{4}-\d\d-\d\d", told)
    assert re.search(r"\d (kB|MB|KB)", told)


def test_a_path_that_is_no_run_is_said_in_one_line(go: Any, empty: tuple[str, Viewer]) -> None:
    page = go(empty[0], "start")
    page.wait_for_selector("form")
    page.locator("input[type=text]").first.fill("nowhere/at/all")
    page.click("button[type=submit]")
    page.wait_for_selector(".error")
    assert "nowhere/at/all" in page.inner_text(".error")


def test_the_directory_form_lists_errors_and_its_summary(go: Any, empty: tuple[str, Viewer]) -> None:
    page = go(empty[0], "directory")
    page.get_by_label("First directory").fill("npu")
    page.get_by_label("Second directory").fill("gpu")
    page.get_by_label("steps").fill("[0,1)")
    page.get_by_label("metric").select_option("CS")
    page.click("text=Start")
    page.wait_for_selector("[data-testid=entries]")
    page.wait_for_selector("button[type=submit]:not([disabled])")  # entries are shown while more of them come
    assert page.locator("[data-testid=entries] tbody tr").count() > 100
    page.click("text=Summary only")
    until(page, "document.querySelectorAll('[data-testid=entries] tbody tr').length === 100")
    with page.expect_download() as download:
        page.click("text=Export the log")
    assert len(download.value.path().read_text().splitlines()) == 101
    with page.expect_download() as download:
        page.click("text=Conclusion as .xlsx")
    sheet = openpyxl.load_workbook(io.BytesIO(download.value.path().read_bytes())).active
    assert sheet.max_row == 101
    page.click("text=Clear")
    until(page, "!document.querySelector('[data-testid=entries]')")
    page.reload()
    assert page.get_by_label("First directory").input_value() == "npu"
    page.get_by_label("steps").fill("from 1 to 2")
    page.click("text=Start")
    page.wait_for_selector(".error >> text=not a range")
    page.get_by_label("First directory").fill("nothing-here")
    page.get_by_label("steps").fill("")
    page.click("text=Start")
    page.wait_for_selector(".error >> text=nothing-here")


def test_an_entry_of_two_directories_leads_to_its_two_files_and_back(go: Any, empty: tuple[str, Viewer]) -> None:
    page = go(empty[0], "directory")
    page.get_by_label("First directory").fill("npu")
    page.get_by_label("Second directory").fill("gpu")
    page.get_by_label("steps").fill("0")
    page.click("text=Start")
    page.wait_for_selector("button[type=submit]:not([disabled])")
    page.click("[data-testid=entries] td a")
    page.wait_for_selector("text=Next file")
    page.wait_for_selector("[data-testid=entries] td")
    assert page.get_by_label("Second file").input_value().startswith("gpu")
    page.go_back()
    page.wait_for_selector("text=Summary only")
    page.wait_for_selector("[data-testid=entries] td a")
    page.get_by_label("threshold").fill("1e30")
    page.click("text=Start")
    page.wait_for_selector("text=No error is above the threshold.")


def test_the_file_form_goes_to_the_next_and_previous_file(go: Any, empty: tuple[str, Viewer]) -> None:
    page = go(empty[0], "file")
    name = "Functional.gelu.1.forward"
    page.get_by_label("First file").fill(f"npu::{name}.input.0")
    page.get_by_label("Second file").fill(f"gpu::{name}.input.0")
    page.click("text=Start")
    page.wait_for_selector("[data-testid=entries] td")
    page.click("text=Next file")
    page.wait_for_selector("[data-testid=entries] >> text=output 0")
    assert page.get_by_label("First file").input_value() == f"npu::{name}.output.0"
    page.click("text=Previous file")
    page.wait_for_selector("[data-testid=entries] >> text=input 0")


def wait_for_a_step(path: Path) -> None:
    """Wait for the writer, which is a thread of its own."""
    while not (path / "manifest.json").exists() or not open_run(path).steps:
        time.sleep(0.02)


def test_a_run_that_is_being_written_shows_its_new_steps(go: Any, tmp_path: Path) -> None:
    viewer = Viewer(memory=Memory(tmp_path / "viewer.json"))
    with serving(viewer) as access, closing(runs.training(tmp_path / "live", steps=3)) as steps:
        next(steps)
        next(steps)
        wait_for_a_step(tmp_path / "live")
        viewer.open(Choice(str(tmp_path / "live")))
        page = go(access.url, "calls")
        page.wait_for_selector("[data-testid=count]")
        page.wait_for_selector(".line")
        before = page.inner_text("[data-testid=count]")
        list(steps)
        page.wait_for_selector(f"[data-testid=count]:not(:has-text('{before}'))")


def test_a_comparison_says_that_new_steps_have_come(go: Any, tmp_path: Path, folder: Path) -> None:
    viewer = Viewer(memory=Memory(tmp_path / "viewer.json"))
    with serving(viewer) as access, closing(runs.training(tmp_path / "live", wrong=True, steps=2)) as steps:
        next(steps)
        wait_for_a_step(tmp_path / "live")
        viewer.open(Choice(str(tmp_path / "live"), str(folder / "gpu")))
        page = go(access.url, "calls")
        page.wait_for_selector(".line .badge")
        before = page.inner_text("[data-testid=count]")
        list(steps)
        page.click("text=Compare again")
        page.wait_for_selector(f"[data-testid=count]:not(:has-text('{before}'))")
        page.wait_for_selector("text=Compare again", state="detached")


def test_the_command_serves_and_stops_cleanly(page: Any, folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "numscope", "view", "npu", "gpu", "--no-open"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    server = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
        assert address, line
        page.goto(address[0])
        page.wait_for_selector("[data-testid=origin]")
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=60)
    assert server.returncode == 0
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "nowhere"), (["npu", "--host", "0.0.0.0"], "--allow-remote")],
)
def test_a_wrong_command_is_one_line(folder: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "numscope", "view", "--no-open", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
